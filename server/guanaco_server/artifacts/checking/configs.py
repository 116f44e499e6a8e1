"""Reads the configs of artifacts, which strangers wrote, in the process that checks repos."""

from __future__ import annotations

from typing import Any

from guanaco_server.artifacts.checking.process import RepoChecker
from guanaco_server.artifacts.stores.store import ArtifactStore


class ArtifactConfigs:
    """``checker`` has the processes."""

    def __init__(self, store: ArtifactStore, checker: RepoChecker) -> None:
        self._store = store
        self.checker = checker

    async def read(self, artifact_key: str, path: str) -> dict[str, Any]:
        """Return a config without what is large in it. FileNotFoundError if the artifact has none, CorruptConfig if it cannot be read."""
        return await self.checker.read_config(path, await self._store.read(artifact_key, path))
