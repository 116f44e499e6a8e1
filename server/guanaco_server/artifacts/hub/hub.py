"""The port to the Hugging Face Hub: read-only, at an exact commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class RepoFile:
    path: str
    size_bytes: int


@dataclass(frozen=True)
class RepoSnapshot:
    """A repo at one commit."""

    repo: str
    commit: str
    files: tuple[RepoFile, ...]

    def file(self, path: str) -> RepoFile | None:
        return next((file for file in self.files if file.path == path), None)


class Hub(Protocol):
    """Errors are RepoNotFound, RepoGated, RevisionNotFound, HubTokenRefused and HubUnreachable.

    A private or gated repo is opened by its developer's own token alone, never by the platform's: a private one is
    RepoNotFound, as one that does not exist.
    """

    def with_token(self, token: str | None) -> Hub:
        """Return the Hub as a developer with this token sees it; without one, public repos only."""
        ...

    async def resolve(self, repo: str, revision: str | None) -> RepoSnapshot:
        """Return the exact commit that a branch, tag or commit (main without one) means now, and its files."""
        ...

    async def read(self, snapshot: RepoSnapshot, path: str, start: int, length: int) -> bytes:
        """Read at most ``length`` bytes of a file from offset ``start``; fewer only at its end."""
        ...
