"""A Hub that is made at its first question, for importing huggingface_hub takes 0.2 s and 8 MB."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.runtime import threads


class LateHub:
    """``make`` imports the adapter and makes it; it is called in a thread, once."""

    def __init__(self, make: Callable[[], Hub]) -> None:
        self._make = make
        self._made: Hub | None = None
        self._lock = asyncio.Lock()

    def with_token(self, token: str | None) -> Hub:
        return self if token is None else LateHub(lambda: self._make().with_token(token))

    async def resolve(self, repo: str, revision: str | None) -> RepoSnapshot:
        return await (await self._hub()).resolve(repo, revision)

    async def read(self, snapshot: RepoSnapshot, path: str, start: int, length: int) -> bytes:
        return await (await self._hub()).read(snapshot, path, start, length)

    async def _hub(self) -> Hub:
        async with self._lock:
            if self._made is None:
                self._made = await threads.HUB.run(self._make)
            return self._made
