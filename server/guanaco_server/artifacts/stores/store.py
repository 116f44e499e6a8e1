"""The port to where serialized models live.

An artifact is written once, under its key, by a serializer job that gets a ticket; ``publish`` makes it
visible in one step. Whoever sees a manifest sees a whole artifact. What a key stands for is decided by its
content, so two that write the same artifact at once write the same bytes.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from typing import Protocol

from guanaco.errors import StoreUnreachable
from guanaco_server.formats.manifest import Manifest
from guanaco_server.serializer.task import SerializerJob

PIECE_BYTES = 1_048_576
KEY = re.compile(r"[0-9a-f]{8,128}")
START_PATIENCE_S = 60.0  # a store that restarts, or fails over, is away for half a minute
START_RETRY_S = 2.0

logger = logging.getLogger(__name__)


class ArtifactStore(Protocol):
    """Every call may be repeated. Keys are lower-case hexadecimal digits. Errors are StoreUnreachable and DiskFull."""

    async def check(self) -> None:
        """StoreUnreachable where artifacts cannot be written, read and deleted as this store does it."""
        ...

    async def find(self, key: str) -> Manifest | None:
        """Return the manifest of a published artifact."""
        ...

    async def list_keys(self) -> list[str]:
        """Return the keys of all published artifacts."""
        ...

    async def read(self, key: str, path: str) -> bytes:
        """Return a small file of a published artifact (config, tokenizer); FileNotFoundError if it has none of that name."""
        ...

    def pieces(self, key: str, path: str) -> AsyncIterator[bytes]:
        """Return the same in pieces of at most PIECE_BYTES, for what is not to be in memory as a whole."""
        ...

    async def begin(self, job: SerializerJob, max_bytes: int) -> str:
        """Open the staging place of a job whose tensors file has at most ``max_bytes``; the URL of its ticket.

        Data of an earlier attempt for the same key is kept, so that the job can resume.
        """
        ...

    async def publish(self, key: str) -> Manifest:
        """Make the staged artifact the published one, if it is whole; if another was first, that one stays."""
        ...

    async def discard(self, key: str) -> None:
        """Drop the staging place."""
        ...

    async def discard_stale(self, older_than_s: float) -> list[str]:
        """Drop staging places that nobody has written to for so long; their keys."""
        ...

    async def delete(self, key: str) -> None:
        """Drop a published artifact."""
        ...

    def uri(self, key: str) -> str:
        """Names a published artifact, for people and for the model server; no secret."""
        ...

    async def access(self, key: str) -> dict[str, str]:
        """Return a URL that needs no credentials for each file of a published artifact, by path; each is a secret for an hour or more."""
        ...

    def environment(self) -> dict[str, str]:
        """Variables that jobs and model servers need to use this store's URLs; no secrets. Mostly none."""
        ...

    async def free_bytes(self) -> int | None:
        """Room left, or None where there is no limit."""
        ...


def checked_key(key: str) -> str:
    """Return the key. Raise ValueError for anything that is no key, which is a programming error."""
    if not KEY.fullmatch(key):
        raise ValueError(f"not an artifact key: {key!r}")
    return key


async def wait_until_usable(store: ArtifactStore) -> None:
    """Check the store until it works: one request that fails is no reason to end at a start.

    Raises:
        StoreUnreachable: It did not work for START_PATIENCE_S, or only a person can mend it.
    """
    deadline = time.monotonic() + START_PATIENCE_S
    while True:
        try:
            return await store.check()
        except StoreUnreachable as error:
            if error.is_lasting or time.monotonic() > deadline:
                raise
            logger.warning("%s Trying again in %g s.", error.detail, START_RETRY_S)
        await asyncio.sleep(START_RETRY_S)
