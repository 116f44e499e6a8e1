"""The erasure ledger: which erasures there were, kept outside the database, so that a restored backup does not undo them.

It names nobody. A user is a keyed hash of account and id that occurs nowhere else, so that the ledger can be joined with
nothing; whoever has the key and the restored rows finds who it was, and nobody else. A conversation is its random id.
Entries are added before the database is changed, never changed, and revoked by another entry.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from guanaco.errors import StoreUnreachable
from guanaco_server.runtime import threads

NAME = re.compile(r"[0-9a-f]{32}")


class ErasureEntry(BaseModel):
    """An erasure of what began until ``at``: of a ``user``, or of one ``conversation``; or the end of another entry.

    ``key`` is the fingerprint of the key that ``user`` was hashed with.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    at: datetime
    user: str | None = None
    key: str | None = None
    conversation: str | None = None
    revokes: str | None = None


class ErasureLedger(Protocol):
    """Every call may be repeated. Errors are StoreUnreachable."""

    async def add(self, entry: ErasureEntry) -> None:
        """Keep an entry; it is on the disk when this returns."""
        ...

    async def ids(self) -> set[str]: ...

    async def read(self, ids: Collection[str]) -> list[ErasureEntry]: ...


class UserHashes:
    """Hashes users for the ledger."""

    def __init__(self, key: bytes) -> None:
        self._key = hmac.new(key, b"erasure ledger", hashlib.sha256).digest()
        self.fingerprint = hmac.new(self._key, b"which key", hashlib.sha256).hexdigest()[:16]

    def of(self, user_key: str) -> str:
        return hmac.new(self._key, user_key.encode(), hashlib.sha256).hexdigest()


def new_id() -> str:
    return secrets.token_hex(16)


def in_force(entries: Sequence[ErasureEntry]) -> list[ErasureEntry]:
    """Leave out entries that were revoked, and what revoked them; the oldest first."""
    revoked = {entry.revokes for entry in entries if entry.revokes is not None}
    kept = (one for one in entries if one.revokes is None and one.id not in revoked)
    return sorted(kept, key=lambda entry: entry.at)


class MemoryLedger:
    def __init__(self) -> None:
        self.entries: dict[str, ErasureEntry] = {}

    async def add(self, entry: ErasureEntry) -> None:
        self.entries[entry.id] = entry

    async def ids(self) -> set[str]:
        return set(self.entries)

    async def read(self, ids: Collection[str]) -> list[ErasureEntry]:
        return [self.entries[one] for one in ids]


class LocalLedger:
    """A file for each entry, in a folder that is beside the artifacts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def add(self, entry: ErasureEntry) -> None:
        try:
            await threads.FILES.run(self._add, entry)
        except OSError as error:
            raise StoreUnreachable(
                f"The erasure ledger {self._folder} cannot be written: {error.strerror}.",
                hint="Nothing was erased. Make room there, and erase again.",
            ) from None

    async def ids(self) -> set[str]:
        return await threads.FILES.run(self._ids)

    async def read(self, ids: Collection[str]) -> list[ErasureEntry]:
        return await threads.FILES.run(lambda: [self._read(one) for one in ids])

    def _add(self, entry: ErasureEntry) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f".{entry.id}"
        with path.open("w") as file:
            file.write(entry.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        path.rename(self._folder / entry.id)
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _ids(self) -> set[str]:
        if not self._folder.is_dir():
            return set()
        return {path.name for path in self._folder.iterdir() if NAME.fullmatch(path.name)}

    def _read(self, entry_id: str) -> ErasureEntry:
        return parsed((self._folder / entry_id).read_bytes(), str(self._folder / entry_id))


def parsed(data: bytes, place: str) -> ErasureEntry:
    """Read an entry; fields that a newer version has added are ignored."""
    try:
        return ErasureEntry.model_validate_json(data)
    except ValidationError:
        raise StoreUnreachable(f"The erasure ledger's entry {place} cannot be read.") from None
