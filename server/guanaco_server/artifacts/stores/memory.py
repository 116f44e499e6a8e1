"""Artifacts in memory, for tests; what a serializer job would write is given to ``stage``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from guanaco.errors import SerializerDied
from guanaco_server.artifacts.stores.store import PIECE_BYTES
from guanaco_server.formats.manifest import MANIFEST_NAME, Manifest
from guanaco_server.serializer.task import SerializerJob

Artifact = tuple[Manifest, dict[str, bytes]]


class MemoryStore:
    def __init__(self, free_bytes: int | None = None) -> None:
        self._free_bytes = free_bytes
        self._staged: dict[str, Artifact | None] = {}
        self._published: dict[str, Artifact] = {}

    def stage(self, key: str, manifest: Manifest, files: Mapping[str, bytes]) -> None:
        """Be the serializer job."""
        self._staged[key] = (manifest, dict(files))

    async def check(self) -> None:
        return

    async def find(self, key: str) -> Manifest | None:
        return self._published[key][0] if key in self._published else None

    async def list_keys(self) -> list[str]:
        return sorted(self._published)

    async def read(self, key: str, path: str) -> bytes:
        manifest, files = self._published.get(key, (None, {}))
        if manifest is not None and path == MANIFEST_NAME:
            return manifest.model_dump_json().encode()
        if path not in files:
            raise FileNotFoundError(f"no {path} in artifact {key}")
        return files[path]

    async def pieces(self, key: str, path: str) -> AsyncIterator[bytes]:
        data = await self.read(key, path)
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]

    async def begin(self, job: SerializerJob, max_bytes: int) -> str:
        self._staged.setdefault(job.key, None)
        return f"memory://staging/{job.key}"

    async def publish(self, key: str) -> Manifest:
        if key not in self._published:
            artifact = self._staged.get(key)
            if artifact is None:
                raise SerializerDied("The serializer left no whole artifact: there is no manifest.")
            self._published[key] = artifact
        await self.discard(key)
        return self._published[key][0]

    async def discard(self, key: str) -> None:
        self._staged.pop(key, None)

    async def discard_stale(self, older_than_s: float) -> list[str]:
        """Time stands still here: what is staged is stale when nothing is young enough."""
        stale = sorted(self._staged) if older_than_s <= 0 else []
        for key in stale:
            await self.discard(key)
        return stale

    async def delete(self, key: str) -> None:
        self._published.pop(key, None)

    def uri(self, key: str) -> str:
        return f"memory://{key}"

    async def access(self, key: str) -> dict[str, str]:
        manifest = await self.find(key)
        return {path: f"{self.uri(key)}/{path}" for path in manifest.paths} if manifest else {}

    def environment(self) -> dict[str, str]:
        return {}

    async def free_bytes(self) -> int | None:
        return self._free_bytes
