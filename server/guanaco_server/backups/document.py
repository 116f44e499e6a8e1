"""Describes a backup in its ``backup.json``. A folder without one is no backup."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

FORMAT = 1  # raise it when an older version could not restore what a newer one writes

Method = Literal["sqlite", "dump", "base"]


class BackedUpFile(BaseModel):
    """A file of the backup, by its path in the folder."""

    model_config = ConfigDict(frozen=True)

    path: str
    size_bytes: int
    sha256: str


class SecretReference(BaseModel):
    """A secret that a restored platform needs, and that the backup does not hold.

    ``fingerprint`` tells whether a key is the same one. It is an HMAC under the key, so it reveals nothing of a random key.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    kept_in: str
    fingerprint: str


class BackupDocument(BaseModel):
    """``taken_at``: whatever was committed before that moment is in the backup. ``rows`` are counted in the same snapshot,
    where the method has one. ``seal`` is a keyed sum of all the rest, so that whoever changes a file and its SHA-256 is found out.
    """

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    method: Method
    guanaco: str
    revision: str
    database: str
    taken_at: datetime
    finished_at: datetime
    files: tuple[BackedUpFile, ...]
    rows: dict[str, int] | None
    artifacts: int
    secrets: tuple[SecretReference, ...]
    holds_in_the_clear: tuple[str, ...]
    seal: str | None = None

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


IN_THE_CLEAR = (
    "what users and models said, with users' ids and names",
    "the secrets that webhooks are signed with",
    "hashes of API keys",
)


def fingerprint_of(key: bytes) -> str:
    return hmac.new(key, b"guanaco backup: which key", hashlib.sha256).hexdigest()[:16]


def seal_of(document: str, key: bytes) -> str:
    """Return the seal of a document's JSON, whatever seal and form that has."""
    fields = json.loads(document)
    fields.pop("seal", None)
    message = b"guanaco backup: seal\n" + json.dumps(fields, sort_keys=True).encode()
    return hmac.new(key, message, hashlib.sha256).hexdigest()
