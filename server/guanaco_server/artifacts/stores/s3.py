"""Artifacts in a bucket of S3, or of a server that speaks its protocol.

    artifacts/<key>/   model.tensors, the small files, and last of all manifest.json
    staging/<key>/     of an unpublished artifact: ticket, note of the multipart upload, journal, manifest

An artifact is there once its manifest is, and that is one PUT, so none is ever seen in part. Nothing here asks
the server to refuse an overwrite (If-None-Match): some servers ignore that silently. No lock is needed: a key stands for its content, so that two who write one artifact write the same bytes, and of two manifests either is right.

The job that writes has presigned URLs only. Whatever is read back is checked against the manifest's SHA-256.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError

from guanaco.errors import SerializerDied, StoreUnreachable
from guanaco_server.artifacts.stores.kept_files import KeptFiles
from guanaco_server.artifacts.stores.s3_client import Bucket, S3Config, StoredObject
from guanaco_server.artifacts.stores.s3_probe import try_out
from guanaco_server.artifacts.stores.s3_uploads import OpenUpload, Uploads
from guanaco_server.artifacts.stores.store import KEY, PIECE_BYTES, checked_key
from guanaco_server.engine.artifacts.store_trust import as_environment
from guanaco_server.formats.manifest import MANIFEST_NAME, TENSORS_NAME, Manifest, StoredFile
from guanaco_server.runtime import threads
from guanaco_server.serializer.targets import read_resume_log
from guanaco_server.serializer.task import (
    JOURNAL_NAME,
    SMALL_FILES,
    SerializerJob,
    SerializerTask,
    Upload,
)

TICKET_NAME = "ticket.json"

logger = logging.getLogger(__name__)


class S3Store:
    """Keeps artifacts in a bucket. With ``kept``, small files that were read once are read without the bucket from then on."""

    def __init__(self, config: S3Config, kept: KeptFiles | None = None) -> None:
        self._bucket = Bucket(config)
        self._kept = kept
        self._uploads = Uploads(self._bucket)

    async def check(self) -> None:
        """Try each right that the store needs. The address of the server is told here alone: only operators read this."""
        try:
            await threads.STORE.run(try_out, self._bucket, self._uploads)
        except StoreUnreachable as error:
            where = f"The store is {self._bucket.uri('')} at {self._bucket.config.place}."
            raise StoreUnreachable(
                error.detail, hint=f"{error.hint} {where}", is_lasting=error.is_lasting
            ) from None

    async def find(self, key: str) -> Manifest | None:
        return await threads.STORE.run(self._find, key)

    async def list_keys(self) -> list[str]:
        return await threads.STORE.run(self._list_keys)

    async def read(self, key: str, path: str) -> bytes:
        return await threads.STORE.run(self._read, key, path)

    async def pieces(self, key: str, path: str) -> AsyncIterator[bytes]:
        listed = await threads.STORE.run(self._listed, key, path)
        name = _published(key, path)
        body = await threads.STORE.run(self._bucket.open, name) if listed else None
        if listed is None or body is None:
            raise FileNotFoundError(f"no {path} in artifact {key}")
        digest = hashlib.sha256()
        try:
            while piece := await threads.STORE.run(
                self._bucket.read_piece, name, body, PIECE_BYTES
            ):
                digest.update(piece)
                yield piece
        finally:
            await threads.STORE.run(body.close)
        if digest.hexdigest() != listed.sha256:
            raise self._changed(key, path)

    async def begin(self, job: SerializerJob, max_bytes: int) -> str:
        return await threads.STORE.run(self._begin, job, max_bytes)

    async def publish(self, key: str) -> Manifest:
        return await threads.STORE.run(self._publish, key)

    async def discard(self, key: str) -> None:
        await threads.STORE.run(self._discard, key)

    async def discard_stale(self, older_than_s: float) -> list[str]:
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)
        return await threads.STORE.run(self._discard_stale, before)

    async def delete(self, key: str) -> None:
        await threads.STORE.run(self._delete, key)

    def uri(self, key: str) -> str:
        return self._bucket.uri(f"artifacts/{checked_key(key)}")

    async def access(self, key: str) -> dict[str, str]:
        return await threads.STORE.run(self._access, key)

    def environment(self) -> dict[str, str]:
        certificates = self._bucket.certificates
        return as_environment(certificates) if certificates else {}

    async def free_bytes(self) -> int | None:
        return None

    def _find(self, key: str) -> Manifest | None:
        data = self._bucket.get(_published(key, MANIFEST_NAME))
        try:
            return Manifest.model_validate_json(data) if data is not None else None
        except ValidationError:
            raise StoreUnreachable(
                f"The manifest of {self.uri(key)} cannot be read.",
                hint="Delete that artifact: it is made again when it is needed.",
            ) from None

    def _list_keys(self) -> list[str]:
        return sorted(_keys_published(self._bucket.objects("artifacts/")))

    def _read(self, key: str, path: str) -> bytes:
        if self._kept is None:
            return self._read_stored(key, path)
        data = self._kept.find(key, path)
        if data is not None:
            return data
        try:
            return self._read_stored(key, path)
        except StoreUnreachable as error:
            data = self._kept.find_anywhere(key, path)
            if data is None:
                raise
            logger.warning("%s of %s is read from the node's cache: %s", path, key[:16], error)
            return data

    def _read_stored(self, key: str, path: str) -> bytes:
        missing = FileNotFoundError(f"no {path} in artifact {key}")
        manifest = self._find(key)
        if manifest is None:
            raise missing
        if path == MANIFEST_NAME:
            return manifest.model_dump_json().encode()
        listed = {file.path: file for file in manifest.files}
        if self._kept is not None and path not in listed:
            self._kept.keep(manifest)
        data = self._bucket.get(_published(key, path)) if path in listed else None
        if data is None:
            raise missing
        if hashlib.sha256(data).hexdigest() != listed[path].sha256:
            raise self._changed(key, path)
        if self._kept is not None:
            self._kept.keep(manifest, path, data)
        return data

    def _listed(self, key: str, path: str) -> StoredFile | None:
        manifest = self._find(key)
        files = manifest.files if manifest else ()
        return next((file for file in files if file.path == path), None)

    def _changed(self, key: str, path: str) -> StoreUnreachable:
        return StoreUnreachable(
            f"{path} in {self.uri(key)} is not what was stored there.",
            hint="Delete that artifact: it is made again when it is needed.",
        )

    def _begin(self, job: SerializerJob, max_bytes: int) -> str:
        upload = self._uploads.find(job.key, max_bytes)
        if upload is None:  # what is written down of an earlier upload is not true of this one
            for name in (JOURNAL_NAME, MANIFEST_NAME):
                self._bucket.delete(_staging(job.key, name))
            upload = self._uploads.create(job.key, max_bytes)
        else:
            self._forget_lost_parts(job.key, upload)
        ticket = SerializerTask(**job.model_dump(), upload=self._places(job.key, upload, max_bytes))
        self._bucket.put(_staging(job.key, TICKET_NAME), ticket.model_dump_json().encode())
        return self._bucket.presign("get_object", _staging(job.key, TICKET_NAME))

    def _forget_lost_parts(self, key: str, upload: OpenUpload) -> None:
        """Take out of the journal the parts that the server has lost, or has otherwise: the next job sends them again."""
        name = _staging(key, JOURNAL_NAME)
        data = self._bucket.get(name)
        log = None if data is None else read_resume_log(data)
        if log is None:
            return
        stored = {part.number: part for part in self._uploads.parts(key, upload)}
        kept = {
            number: etag
            for number, etag in log.parts.items()
            if (part := stored.get(number)) and part.etag.strip('"') == etag.strip('"')
        }
        if kept != log.parts:
            self._bucket.put(
                name, log.model_copy(update={"parts": kept}).model_dump_json().encode()
            )

    def _places(self, key: str, upload: OpenUpload, max_bytes: int) -> Upload:
        names = {name: _published(key, name) for name in SMALL_FILES}
        names |= {name: _staging(key, name) for name in (JOURNAL_NAME, MANIFEST_NAME)}
        journal = self._bucket.presign("get_object", names[JOURNAL_NAME])
        return Upload(
            identity=upload.upload_id,
            part_bytes=upload.part_bytes,
            part_urls=self._uploads.part_urls(key, upload, max_bytes),
            put_urls={
                name: self._bucket.presign("put_object", path) for name, path in names.items()
            },
            get_urls={JOURNAL_NAME: journal},
        )

    def _publish(self, key: str) -> Manifest:
        manifest = self._find(key)
        if manifest is None:
            manifest = self._staged(key)
            self._uploads.complete(key, manifest.tensors_bytes)
            self._require_sizes(manifest)
            self._bucket.put(_published(key, MANIFEST_NAME), manifest.model_dump_json().encode())
        self._drop_staging(key)
        return manifest

    def _staged(self, key: str) -> Manifest:
        data = self._bucket.get(_staging(key, MANIFEST_NAME))
        if data is None:
            raise SerializerDied("The serializer left no whole artifact: there is no manifest.")
        try:
            manifest = Manifest.model_validate_json(data)
        except ValidationError as error:
            raise SerializerDied("The serializer left a manifest that cannot be read.") from error
        if manifest.key != key:
            raise SerializerDied("The serializer left the artifact of another key.")
        return manifest

    def _require_sizes(self, manifest: Manifest) -> None:
        sizes = {file.path: file.size_bytes for file in manifest.files}
        for name, size in {TENSORS_NAME: manifest.tensors_bytes, **sizes}.items():
            if self._bucket.size(_published(manifest.key, name)) != size:
                raise SerializerDied(
                    f"The serializer left no whole artifact: {name} is not as listed."
                )

    def _discard(self, key: str) -> None:
        if self._find(key) is None:
            self._drop(_published(key, ""))
        self._drop_staging(key)

    def _drop_staging(self, key: str) -> None:
        """Drop the staging place. The notes go last, so that a discard that was cut short is found again."""
        self._uploads.abort(key)
        self._drop(_staging(key, ""))

    def _discard_stale(self, before: datetime) -> list[str]:
        stale = sorted(key for key, at in self._last_writes().items() if at < before)
        for key in stale:
            self._discard(key)
        return stale

    def _last_writes(self) -> dict[str, datetime]:
        """Return when each staging place was last written to."""
        written = list(self._bucket.objects("artifacts/"))
        published = {f"artifacts/{key}/" for key in _keys_published(written)}
        signs = [(found.name, found.modified_at) for found in self._bucket.objects("staging/")]
        signs += [
            (found.name, found.modified_at)
            for found in written
            if found.name.rpartition("/")[0] + "/" not in published
        ]
        for upload in self._uploads.all_open():
            signs.append((upload.name, self._uploads.last_written(upload)))
        latest: dict[str, datetime] = {}
        for name, at in signs:
            key = name.split("/")[1]
            if KEY.fullmatch(key):
                latest[key] = max(latest.get(key, at), at)
        return latest

    def _delete(self, key: str) -> None:
        """Delete the manifest first, so that a delete that was cut short leaves no artifact, only stale objects."""
        if self._kept is not None:
            self._kept.drop(key)
        self._bucket.delete(_published(key, MANIFEST_NAME))
        self._drop(_published(key, ""))

    def _access(self, key: str) -> dict[str, str]:
        manifest = self._find(key)
        return {
            path: self._bucket.presign("get_object", _published(key, path))
            for path in (manifest.paths if manifest else ())
        }

    def _drop(self, folder: str) -> None:
        for found in list(self._bucket.objects(folder)):
            self._bucket.delete(found.name)


def _keys_published(objects: Iterable[StoredObject]) -> Iterator[str]:
    """List the keys by the names of all objects: about ten an artifact, a thousand a request."""
    for found in objects:
        _, key, *rest = found.name.split("/")
        if rest == [MANIFEST_NAME] and KEY.fullmatch(key):
            yield key


def _published(key: str, name: str) -> str:
    return f"artifacts/{checked_key(key)}/{name}"


def _staging(key: str, name: str) -> str:
    return f"staging/{checked_key(key)}/{name}"
