"""Proves that a backup can be restored, by restoring it into a scratch place.

    sums ─▶ restore ─▶ count the rows ─▶ migrate ─▶ rank every frozen season again ─▶ repeat later erasures
      ─▶ look every artifact up

The platform's own database is not read and not changed; the artifact store is read.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import SecretStr
from sqlalchemy.engine import make_url

from guanaco.errors import BackupDamaged, GuanacoError, InvalidSettings
from guanaco_server.assembly.adapters import build_adapters
from guanaco_server.assembly.platform import Platform
from guanaco_server.backups import postgresql, sqlite
from guanaco_server.backups.document import BackupDocument, fingerprint_of
from guanaco_server.backups.folder import read_backup, writable
from guanaco_server.backups.making import ARTIFACTS, pseudonym_key, wal_problem_of
from guanaco_server.backups.scratch import empty_server, restored_server
from guanaco_server.backups.wal import WalArchive
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import newest_revision, upgrade
from guanaco_server.database.schema import revision_of
from guanaco_server.runtime.data_dir import DataDir
from guanaco_server.settings import Settings
from guanaco_server.web.room import WebOptions

PLACE = "pg"  # PostgreSQL's folder within the scratch one


@dataclass(frozen=True)
class CheckedSeason:
    """``problem`` is None where the same ratings gave the same bytes, or where ``reasons`` say why they must differ."""

    competition: str
    sha256: str
    reasons: tuple[str, ...] = ()
    erased_since: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Proof:
    """The result of verifying a backup. ``lost_from`` and ``loses_s``: whatever was committed since then is not in it (RPO).
    ``wal_problem`` says why the recovery did not get to the end of the archived WAL.
    ``erasures`` of the ledger came after the backup; None: they cannot be repeated without the key that they were entered with.
    ``took_s`` is how long it took until a restored platform could have begun (RTO).
    """

    path: Path
    document: BackupDocument
    rows: int
    row_problems: tuple[str, ...]
    revision: str
    seasons: tuple[CheckedSeason, ...]
    erasures: int | None
    artifacts: int
    missing_artifacts: tuple[str, ...]
    has_same_key: bool
    wal_problem: str | None
    lost_from: datetime
    loses_s: float
    took_s: float

    @property
    def is_good(self) -> bool:
        return self.wal_problem is None and self.is_as_it_was

    @property
    def is_as_it_was(self) -> bool:
        """True if all that the backup itself holds is whole."""
        return not (self.row_problems or self.missing_artifacts or self.erasures is None) and all(
            season.problem is None for season in self.seasons
        )


def verify_backup(
    settings: Settings,
    folder: Path,
    *,
    scratch_url: str | None = None,
    scratch_dir: Path | None = None,
) -> Proof:
    """Restore a backup into a scratch place and examine it.

    Args:
        settings: The platform's: its artifact store, its keys, its archive of WAL.
        folder: The backup.
        scratch_url: An empty PostgreSQL database for a dump. None: a server of its own, which is gone afterwards.
        scratch_dir: Where scratch files go. None: the system's temporary folder.

    Raises:
        BackupDamaged: The backup is not whole, was changed, is too new, or cannot be restored.
        BackupFailed: This machine lacks what is needed to try it.
    """
    document = read_backup(folder, pseudonym_key(settings))
    require_known_revision(document)
    with _scratch(scratch_dir) as scratch:
        began = time.monotonic()
        with restored(settings, folder, document, scratch, scratch_url) as own:
            counted = _count(own)
            wal = _recovered(settings, own, folder, document, scratch)
            revision = asyncio.run(_migrate(own))
            took_s = time.monotonic() - began
            found = asyncio.run(_examine(own, _listed_artifacts(folder)))
    lost_from = max(wal.newest_commit or document.taken_at, document.taken_at)
    key = pseudonym_key(settings)
    prints = {secret.fingerprint for secret in document.secrets if secret.name == "pseudonym_key"}
    return Proof(
        path=folder,
        document=document,
        rows=sum(counted.values()),
        row_problems=tuple(_differences(document.rows, counted)),
        revision=revision,
        seasons=found.seasons,
        erasures=found.erasures,
        artifacts=found.artifacts,
        missing_artifacts=found.missing_artifacts,
        has_same_key=not prints or (key is not None and fingerprint_of(key) in prints),
        wal_problem=wal.problem,
        lost_from=lost_from.astimezone(UTC),
        loses_s=(datetime.now(UTC) - lost_from).total_seconds(),
        took_s=took_s,
    )


def require_known_revision(document: BackupDocument) -> None:
    """Raise BackupDamaged for a backup of a newer version, which this one cannot migrate."""
    if document.revision > (newest := newest_revision()):
        raise BackupDamaged(
            f"The backup's tables are at revision {document.revision}, and this Guanaco knows {newest}.",
            hint=f"Use Guanaco {document.guanaco} or a newer one.",
        )


@contextmanager
def restored(
    settings: Settings,
    folder: Path,
    document: BackupDocument,
    scratch: Path,
    scratch_url: str | None,
) -> Iterator[Settings]:
    """Restore into a scratch place; yields the settings of a platform that has its data there and the real artifacts."""
    own = settings.model_copy(
        update={
            "data_dir": scratch / "data-dir",
            "artifacts_dir": settings.artifacts_path.absolute(),
            "cluster": "local",
            "role": "all",
            "database_url": None,
        }
    )
    own.data_dir.mkdir(mode=0o700)
    match document.method:
        case "sqlite":
            for name in (sqlite.TABLES, sqlite.WORKFLOWS):
                if (folder / name).exists():
                    with writable(scratch):
                        shutil.copyfile(folder / name, own.data_dir / name)
                    sqlite.require_sound(own.data_dir / name)
            yield own
        case "dump" if scratch_url is not None:
            postgresql.restore_dump(folder, scratch_url)
            yield _at(own, scratch_url)
        case "dump":
            with empty_server(_folder(scratch)) as url:
                postgresql.restore_dump(folder, url)
                yield _at(own, url)
        case "base":
            place = _folder(scratch)
            with writable(scratch):
                postgresql.unpack_base(folder, place / "data", settings.backup_wal_dir, None)
            user, database = _names(settings)
            with restored_server(place, user, database) as url:
                yield _at(own, url)


def _at(settings: Settings, url: str) -> Settings:
    return settings.model_copy(update={"database_url": SecretStr(url)})


def _folder(scratch: Path) -> Path:
    """Return a folder of PostgreSQL's own, which another user than ours may own."""
    scratch.chmod(0o711)
    (folder := scratch / PLACE).mkdir(mode=0o700)
    return folder


def _names(settings: Settings) -> tuple[str, str]:
    if settings.database_url is None:
        return "postgres", "postgres"
    url = make_url(settings.sqlalchemy_url)
    user = url.username or str(url.query.get("user", "")) or "postgres"
    return user, url.database or user


@contextmanager
def _scratch(parent: Path | None) -> Iterator[Path]:
    with writable(parent or Path(tempfile.gettempdir())):
        folder = Path(tempfile.mkdtemp(prefix="guanaco-verify-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class _RecoveredWal:
    newest_commit: datetime | None = None
    problem: str | None = None


def _recovered(
    settings: Settings, own: Settings, folder: Path, document: BackupDocument, scratch: Path
) -> _RecoveredWal:
    """Read what the running scratch server has replayed, which its own writes have not changed yet."""
    if document.method != "base" or settings.backup_wal_dir is None:
        return _RecoveredWal()
    recovery = postgresql.read_recovery(own.sqlalchemy_url, scratch / PLACE / "data")
    archived = WalArchive(settings.backup_wal_dir)
    problem = wal_problem_of(settings, folder, document)
    return _RecoveredWal(
        recovery.newest_commit, problem or archived.problem_after_recovery(recovery.ended_at)
    )


def _count(settings: Settings) -> dict[str, int]:
    if settings.database_url is None:
        return sqlite.count_rows(settings.data_dir / sqlite.TABLES)
    return postgresql.rows_of(settings.sqlalchemy_url)


def _differences(recorded: dict[str, int] | None, found: dict[str, int]) -> Iterator[str]:
    for table, count in (recorded or {}).items():
        if found.get(table) != count:
            yield f"{table} has {found.get(table, 0):,} rows and had {count:,}."


async def _migrate(settings: Settings) -> str:
    database = Database(settings.sqlalchemy_url)
    try:
        await upgrade(database)
        return await revision_of(database) or ""
    finally:
        await database.close()


def _listed_artifacts(folder: Path) -> set[str]:
    """Read the keys of the artifacts that were in the store when the backup was made."""
    return {one["key"] for one in json.loads((folder / ARTIFACTS).read_text())}


@dataclass(frozen=True)
class _Findings:
    seasons: tuple[CheckedSeason, ...]
    erasures: int | None
    artifacts: int
    missing_artifacts: tuple[str, ...]


async def _examine(settings: Settings, listed: set[str]) -> _Findings:
    async with assembled(settings) as platform:
        rooms, store = platform.rooms, platform.adapters.store
        seasons = [
            await _recount(platform, competition.id)
            for competition in await rooms.competitions.service.list_all()
            if competition.frozen_at is not None
        ]
        try:
            erasures = await rooms.feedback.erasures.replay()
        except InvalidSettings:
            erasures = None
        now = datetime.now(UTC)
        needed = sorted(listed & await rooms.submissions.service.catalog.needed_artifacts(now))
        missing = [key for key in needed if await store.find(key) is None]
    return _Findings(tuple(seasons), erasures, len(needed), tuple(missing))


async def _recount(platform: Platform, competition: str) -> CheckedSeason:
    try:
        frozen = await platform.rooms.leaderboard.seasons.find(competition)
        check = await platform.rooms.leaderboard.seasons.recompute(competition)
    except GuanacoError as error:
        return CheckedSeason(competition, "", problem=error.detail)
    if check.is_same:
        return CheckedSeason(competition, check.sha256)
    erased = await platform.rooms.feedback.erasures.count_since(frozen.frozen_at)
    problem = None if check.reasons else f"It is {check.recomputed_sha256} now."
    return CheckedSeason(competition, check.sha256, tuple(check.reasons), erased, problem)


@asynccontextmanager
async def assembled(settings: Settings) -> AsyncIterator[Platform]:
    """Put a platform together over the restored database, and start none of it."""
    database = Database(settings.sqlalchemy_url)
    adapters = build_adapters(settings, DataDir(settings.data_dir))
    platform = Platform(
        settings,
        database,
        adapters,
        pseudonym_key=pseudonym_key(settings) or b"of nobody",
        web_options=WebOptions.of(settings),
    )
    try:
        yield platform
    finally:
        await adapters.model_server.close()
        await platform.rooms.prompts.service.close()
        await platform.rooms.artifacts.configs.checker.close()
        await database.close()
