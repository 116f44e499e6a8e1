"""A Hub in memory, for tests."""

from __future__ import annotations

import hashlib

from guanaco.errors import RepoGated, RepoNotFound, RevisionNotFound
from guanaco_server.artifacts.hub.hub import RepoFile, RepoSnapshot


class MemoryHub:
    def __init__(self, shared: MemoryHub | None = None, token: str | None = None) -> None:
        """``shared`` is the Hub of which this is another view, with a developer's token."""
        self._repos: dict[str, dict[str, bytes]] = shared._repos if shared else {}
        self._gated: dict[str, str | None] = shared._gated if shared else {}
        self._private: dict[str, str | None] = shared._private if shared else {}
        self._token = token

    def add_repo(self, repo: str, files: dict[str, bytes]) -> str:
        """Add or replace a repo; its commit."""
        self._repos[repo] = dict(files)
        return self._commit(repo)

    def gate(self, repo: str, token: str | None = None) -> None:
        """``token`` alone opens the repo's files; None does."""
        self._gated[repo] = token

    def make_private(self, repo: str, token: str | None = None) -> None:
        """``token`` alone sees the repo; None does."""
        self._private[repo] = token

    def with_token(self, token: str | None) -> MemoryHub:
        return self if token is None else MemoryHub(self, token)

    async def resolve(self, repo: str, revision: str | None) -> RepoSnapshot:
        if repo not in self._repos or not self._opens(self._private, repo):
            raise RepoNotFound(repo)
        if repo in self._gated and self._token is None:
            raise RepoGated(repo)
        commit = self._commit(repo)
        if revision not in (None, "main", commit):
            raise RevisionNotFound(repo, str(revision))
        files = (RepoFile(path, len(data)) for path, data in self._repos[repo].items())
        return RepoSnapshot(repo, commit, tuple(files))

    async def read(self, snapshot: RepoSnapshot, path: str, start: int, length: int) -> bytes:
        if not self._opens(self._private, snapshot.repo):
            raise RepoNotFound(snapshot.repo)
        if not self._opens(self._gated, snapshot.repo):
            raise RepoGated(snapshot.repo)
        return self._repos[snapshot.repo][path][start : start + length]

    def _opens(self, closed: dict[str, str | None], repo: str) -> bool:
        return repo not in closed or (self._token is not None and self._token == closed[repo])

    def _commit(self, repo: str) -> str:
        digest = hashlib.sha1(usedforsecurity=False)
        for path, data in sorted(self._repos[repo].items()):
            digest.update(path.encode() + b"\0" + data)
        return digest.hexdigest()
