"""Makes a backup: the database in one snapshot, and beside it the manifests of the artifacts.

    stage ─▶ copy the database ─▶ list the artifacts ─▶ sum every file ─▶ backup.json ─▶ rename

Whatever ends it on the way, a full disk or kill -9, leaves nothing that has the name of a backup.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from guanaco import __version__
from guanaco.errors import InvalidSettings
from guanaco_server.assembly.adapters import build_verifier
from guanaco_server.backups import postgresql, sqlite
from guanaco_server.backups.document import (
    IN_THE_CLEAR,
    BackupDocument,
    Method,
    SecretReference,
    fingerprint_of,
    seal_of,
)
from guanaco_server.backups.folder import BackupFolder, files_of
from guanaco_server.backups.postgresql import DatabaseSnapshot
from guanaco_server.backups.wal import WalArchive, end_of_backup
from guanaco_server.runtime.data_dir import PSEUDONYM_KEY, key_of_file, key_of_setting
from guanaco_server.settings import Settings

ARTIFACTS = "artifacts.json"


@dataclass(frozen=True)
class MadeBackup:
    """``wal_problem`` says why no archived WAL continues a base backup; it can be restored without."""

    path: Path
    document: BackupDocument
    took_s: float
    removed: tuple[Path, ...]
    is_on_the_same_disk: bool
    wal_problem: str | None = None


def make_backup(settings: Settings, *, keep: int | None = None) -> MadeBackup:
    """Back the platform up, whether it runs or not, into ``backup_dir``.

    Args:
        settings: The platform's.
        keep: Afterwards remove all but that many of the newest backups.

    Raises:
        BackupFailed: It could not be made; nothing is left that looks like one.
        DatabaseUnavailable: PostgreSQL does not answer.
        StoreUnreachable: The artifacts cannot be listed.
    """
    began, at = time.monotonic(), datetime.now(UTC)
    folder = BackupFolder(settings.backups_path)
    method = method_of(settings)
    with folder.writing(at) as staged:
        snapshot = _copy_database(settings, method, staged, at)
        manifests = asyncio.run(build_verifier(settings).manifests())
        (staged / ARTIFACTS).write_text(
            json.dumps([one.model_dump(mode="json") for one in manifests])
        )
        document = BackupDocument(
            method=method,
            guanaco=__version__,
            revision=snapshot.revision,
            database=snapshot.version,
            taken_at=snapshot.taken_at.astimezone(UTC),
            finished_at=datetime.now(UTC),
            files=files_of(staged),
            rows=snapshot.rows,
            artifacts=len(manifests),
            secrets=tuple(secrets_of(settings)),
            holds_in_the_clear=IN_THE_CLEAR,
        )
        if (key := pseudonym_key(settings)) is not None:
            seal = seal_of(document.model_dump_json(), key)
            document = document.model_copy(update={"seal": seal})
        path = folder.finish(staged, document)
        removed = folder.keep(keep) if keep else []
    return MadeBackup(
        path,
        document,
        time.monotonic() - began,
        tuple(removed),
        settings.database_url is None and _is_same_disk(path, settings.data_dir),
        wal_problem_of(settings, path, document),
    )


def wal_problem_of(settings: Settings, folder: Path, document: BackupDocument) -> str | None:
    """Return in a sentence what the archive lacks of a base backup's WAL and of what follows it."""
    if document.method != "base" or settings.backup_wal_dir is None:
        return None
    end = end_of_backup(folder / postgresql.BASE)
    return WalArchive(settings.backup_wal_dir).problem_after_backup(end)


def method_of(settings: Settings) -> Method:
    """A base backup has no advantage over a dump but that archived WAL continues it."""
    if settings.database_url is None:
        return "sqlite"
    return "dump" if settings.backup_wal_dir is None else "base"


def secrets_of(settings: Settings) -> list[SecretReference]:
    """Name the key of the pseudonyms. Others, as the Hub's token, are replaced where they are lost."""
    key = pseudonym_key(settings)
    if key is None:
        return []
    given = settings.pseudonym_key is not None
    place = "GUANACO_PSEUDONYM_KEY" if given else str(settings.data_dir.absolute() / PSEUDONYM_KEY)
    return [SecretReference(name="pseudonym_key", kept_in=place, fingerprint=fingerprint_of(key))]


def pseudonym_key(settings: Settings) -> bytes | None:
    """Return the platform's key; None where there is none yet."""
    if settings.pseudonym_key is not None:
        return key_of_setting(settings.pseudonym_key.get_secret_value())
    path = settings.data_dir / PSEUDONYM_KEY
    try:
        return key_of_file(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise InvalidSettings(f"{path} is no key.") from None


def _copy_database(
    settings: Settings, method: Method, staged: Path, at: datetime
) -> DatabaseSnapshot:
    match method:
        case "sqlite":
            sqlite.copy_files(settings.data_dir.absolute(), staged)
            copy = staged / sqlite.TABLES
            revision = sqlite.revision_of_file(copy)
            return DatabaseSnapshot(
                at, revision, f"SQLite {sqlite3.sqlite_version}", sqlite.count_rows(copy)
            )
        case "dump":
            return postgresql.dump(settings.sqlalchemy_url, staged)
        case "base":
            assert settings.backup_wal_dir is not None
            return postgresql.base_backup(settings.sqlalchemy_url, staged, settings.backup_wal_dir)


def _is_same_disk(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev
