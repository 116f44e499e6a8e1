"""A Hub in memory, for tests."""

from __future__ import annotations

import hashlib

from guanaco.errors import RepoGated, RepoNotFound, RevisionNotFound
from guanaco_server.artifacts.hub.hub import RepoFile, RepoSnapshot


class MemoryHub:
    def __init__(self) -> None:
        self._repos: dict[str, dict[str, bytes]] = {}
        self._gated: set[str] = set()

    def add_repo(self, repo: str, files: dict[str, bytes]) -> str:
        """Add or replace a repo; its commit."""
        self._repos[repo] = dict(files)
        return self._commit(repo)

    def gate(self, repo: str) -> None:
        self._gated.add(repo)

    async def resolve(self, repo: str, revision: str | None) -> RepoSnapshot:
        if repo not in self._repos:
            raise RepoNotFound(repo)
        if repo in self._gated:
            raise RepoGated(repo)
        commit = self._commit(repo)
        if revision not in (None, "main", commit):
            raise RevisionNotFound(repo, str(revision))
        files = (RepoFile(path, len(data)) for path, data in self._repos[repo].items())
        return RepoSnapshot(repo, commit, tuple(files))

    async def read(self, snapshot: RepoSnapshot, path: str, start: int, length: int) -> bytes:
        return self._repos[snapshot.repo][path][start : start + length]

    def _commit(self, repo: str) -> str:
        digest = hashlib.sha1(usedforsecurity=False)
        for path, data in sorted(self._repos[repo].items()):
            digest.update(path.encode() + b"\0" + data)
        return digest.hexdigest()
