"""The erasure ledger in the artifacts' bucket: an object for each entry."""

from __future__ import annotations

from collections.abc import Collection

from guanaco_server.artifacts.stores.s3_client import Bucket, S3Config
from guanaco_server.feedback.erasures.ledger import NAME, ErasureEntry, parsed
from guanaco_server.runtime import threads

PREFIX = "erasures/"


class S3Ledger:
    def __init__(self, config: S3Config) -> None:
        self._bucket = Bucket(config)

    async def add(self, entry: ErasureEntry) -> None:
        name, data = PREFIX + entry.id, entry.model_dump_json().encode()
        await threads.STORE.run(self._bucket.put, name, data)

    async def ids(self) -> set[str]:
        return await threads.STORE.run(self._ids)

    async def read(self, ids: Collection[str]) -> list[ErasureEntry]:
        return await threads.STORE.run(lambda: [self._read(one) for one in ids])

    def _ids(self) -> set[str]:
        names = (found.name.removeprefix(PREFIX) for found in self._bucket.objects(PREFIX))
        return {name for name in names if NAME.fullmatch(name)}

    def _read(self, entry_id: str) -> ErasureEntry:
        data = self._bucket.get(PREFIX + entry_id)
        return parsed(data or b"", self._bucket.uri(PREFIX + entry_id))
