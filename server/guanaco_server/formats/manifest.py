"""The manifest beside an artifact: what it was made from, and the SHA-256 of every byte that counts.

    manifest.json       this, written last: where it is, the artifact is whole
    model.tensors       a tensorizer file; its tensors are listed here with their places and hashes
    config.json, …      the small files, each with its hash

A tensor's bytes are hashed in pieces of PIECE_BYTES, so that several readers can check one tensor, a reader of
a part of it can check that part, and a serializer that was killed need not begin it again. A tensor no larger
than that has one hash, of all its bytes; one without bytes has none. Each SHA-256 has a CRC-32 beside it: it finds
whatever a disk or a copy spoils, at more than twice the speed, where nobody could have forged one without the other.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

MANIFEST_NAME = "manifest.json"
TENSORS_NAME = "model.tensors"
PIECE_BYTES = 32 * 1024**2


class StoredFile(BaseModel):
    model_config = ConfigDict(frozen=True)

    path: str
    size_bytes: int
    sha256: str


class TensorRecord(BaseModel):
    """``dtype`` as safetensors spells it (BF16); ``offset`` is that of the first data byte in model.tensors."""

    model_config = ConfigDict(frozen=True)

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int
    sha256: tuple[str, ...]
    crc32: tuple[int, ...]

    def pieces(self) -> list[tuple[int, int, str]]:
        """Start and end within the tensor's bytes, and the SHA-256, of each piece."""
        starts = range(0, self.size_bytes, PIECE_BYTES)
        return [
            (start, min(start + PIECE_BYTES, self.size_bytes), digest)
            for start, digest in zip(starts, self.sha256, strict=True)
        ]


class AdapterPart(BaseModel):
    """The part of a manifest that only an unmerged LoRA adapter has: its tensors are added to those of ``base_key`` when text is generated.

    ``scales`` are by module: W + scale * B A, as in a merge.
    """

    model_config = ConfigDict(frozen=True)

    base_key: str
    scales: dict[str, float]


class Manifest(BaseModel):
    """The contents of an artifact, and what it was made from; ``files`` are the small ones, without the manifest itself.

    ``adapter`` is None for a whole model. An adapter's small files are those that its merged model would have.
    """

    model_config = ConfigDict(frozen=True)

    key: str
    repo: str
    commit: str
    base_repo: str | None = None
    base_commit: str | None = None
    dtype: str = "auto"
    adapter: AdapterPart | None = None
    files: tuple[StoredFile, ...]
    tensors_bytes: int
    tensors: tuple[TensorRecord, ...]
    tool_versions: dict[str, str]
    created_at: datetime

    @property
    def tensor_count(self) -> int:
        return len(self.tensors)

    @property
    def size_bytes(self) -> int:
        return self.tensors_bytes + sum(file.size_bytes for file in self.files)

    def summary(self) -> dict[str, Any]:
        """Return everything except the list of tensors, for people and their programs."""
        fields = self.model_dump(mode="json", exclude={"tensors"})
        return fields | {"tensor_count": self.tensor_count, "size_bytes": self.size_bytes}

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file of the artifact, in the order in which they should be written."""
        return (TENSORS_NAME, *(file.path for file in self.files), MANIFEST_NAME)
