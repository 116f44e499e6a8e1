"""Is an artifact what its manifest says, and is that what the Hub has?"""

from __future__ import annotations

import hashlib
import ssl

import httpx2  # huggingface_hub's: its transport errors come through

from guanaco.errors import ArtifactNotFound, CorruptConfig, HubUnreachable
from guanaco.submissions import WeightDtype
from guanaco_server.artifacts.checking.checks import CheckLimits, check_repo
from guanaco_server.artifacts.hub.hub import Hub
from guanaco_server.artifacts.service import serializer_job
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.engine.artifacts.store_trust import trusted_by
from guanaco_server.formats.manifest import TENSORS_NAME, Manifest
from guanaco_server.runtime import threads
from guanaco_server.serializer.task import SerializerJob

NO_LIMITS = CheckLimits(max_parameters=2**63, max_weight_bytes=2**63)  # it was let in before


class ArtifactVerifier:
    def __init__(self, store: ArtifactStore, hub: Hub, hub_endpoint: str) -> None:
        self._store = store
        self._hub = hub
        self._hub_endpoint = hub_endpoint

    async def manifests(self) -> list[Manifest]:
        """List every published artifact, the oldest first."""
        found = [await self._store.find(key) for key in await self._store.list_keys()]
        return sorted((m for m in found if m is not None), key=lambda m: m.created_at)

    async def keys(self, beginnings: list[str] | None) -> list[str]:
        """Return the keys that begin with the prefix, or all. Raise ArtifactNotFound if none or more than one does."""
        known = await self._store.list_keys()
        if beginnings is None:
            return known
        found = []
        for beginning in beginnings:
            matching = [key for key in known if key.startswith(beginning)]
            if len(matching) != 1:
                raise ArtifactNotFound(beginning)
            found += matching
        return found

    async def delete(self, key: str) -> None:
        await self._store.delete(key)

    async def against_manifest(self, key: str) -> list[str]:
        """Return a sentence for each thing that is not as the manifest says."""
        manifest = await self._manifest(key)
        found = [
            f"The file {file.path} is damaged or missing."
            for file in manifest.files
            if await self._digest(key, file.path) != file.sha256
        ]
        url = (await self._store.access(key))[TENSORS_NAME]
        trusted = trusted_by(self._store.environment())
        return found + await threads.STORE.run(_stored_differences, manifest, url, trusted)

    async def against_hub(self, key: str) -> list[str]:
        """Return a sentence for each thing that is not what the repo at its commit makes."""
        manifest = await self._manifest(key)
        dtype = WeightDtype.read(manifest.dtype)
        if dtype.is_unknown:
            return [f"Only a newer version of Guanaco can compare it: its dtype is {dtype}."]
        job = await self._job(manifest, dtype)
        if job.key != key:
            return [f"{manifest.repo} at {manifest.commit[:8]} makes an artifact of another key."]
        return await threads.STORE.run(_hub_differences, job, manifest)

    async def _manifest(self, key: str) -> Manifest:
        manifest = await self._store.find(key)
        if manifest is None:
            raise ArtifactNotFound(key)
        return manifest

    async def _digest(self, key: str, path: str) -> str | None:
        try:
            return hashlib.sha256(await self._store.read(key, path)).hexdigest()
        except (FileNotFoundError, CorruptConfig):
            return None

    async def _job(self, manifest: Manifest, dtype: WeightDtype) -> SerializerJob:
        snapshot = await self._hub.resolve(manifest.repo, manifest.commit)
        model = await check_repo(self._hub, snapshot, NO_LIMITS, manifest.base_commit)
        return serializer_job(
            snapshot,
            model,
            dtype,
            self._hub_endpoint,
            memory_bytes=0,
            base_key=manifest.adapter.base_key if manifest.adapter else None,
        )


def _stored_differences(manifest: Manifest, url: str, trusted: ssl.SSLContext | None) -> list[str]:
    from guanaco_server.engine.artifacts.errors import UnreachableArtifactError
    from guanaco_server.serializer.reporting import JobFailed
    from guanaco_server.serializer.verification import open_artifact_file, stored_differences

    try:
        with open_artifact_file(url, manifest.tensors_bytes, TENSORS_NAME, trusted) as stream:
            return stored_differences(manifest, stream)
    except (JobFailed, UnreachableArtifactError, OSError) as error:
        return [f"{TENSORS_NAME} cannot be read: {str(error).rstrip('.')}."]


def _hub_differences(job: SerializerJob, manifest: Manifest) -> list[str]:
    from guanaco_server.serializer.reporting import JobFailed, diagnose
    from guanaco_server.serializer.verification import hub_differences

    try:
        return hub_differences(job, manifest)
    except (JobFailed, OSError, httpx2.HTTPError) as error:  # as serializer/repo_files.py raises
        raise HubUnreachable(diagnose(error).message) from error
