"""The port to where serialized models live.

An artifact is written once, under its key, by a serializer job that gets ``staging_uri``; ``publish``
makes it visible in one step. Whoever sees a manifest sees a whole artifact.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from pydantic import BaseModel, ConfigDict

MANIFEST_NAME = "manifest.json"
TENSORS_NAME = "model.tensors"


class StoredFile(BaseModel):
    model_config = ConfigDict(frozen=True)

    path: str
    size_bytes: int
    sha256: str


class Manifest(BaseModel):
    """What an artifact holds and what it was made from; ``files`` leaves out the manifest itself."""

    model_config = ConfigDict(frozen=True)

    key: str
    repo: str
    commit: str
    tensor_count: int
    files: tuple[StoredFile, ...]
    tool_versions: dict[str, str]
    created_at: datetime

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class ArtifactStore(Protocol):
    """Every call may be repeated."""

    async def find(self, key: str) -> Manifest | None:
        """The manifest of a published artifact."""
        ...

    async def read(self, key: str, path: str) -> bytes:
        """A small file of a published artifact (config, tokenizer)."""
        ...

    async def begin(self, key: str) -> str:
        """The URI of an empty staging place for a serializer job; what an earlier attempt left there is dropped."""
        ...

    async def publish(self, key: str) -> Manifest:
        """Make the staged artifact the published one; if another was first, that one stays."""
        ...

    async def discard(self, key: str) -> None:
        """Drop the staging place."""
        ...

    async def delete(self, key: str) -> None:
        """Drop a published artifact."""
        ...

    def uri(self, key: str) -> str:
        """Where a model server reads a published artifact from."""
        ...

    async def free_bytes(self) -> int | None:
        """Room left, or None where there is no limit."""
        ...
