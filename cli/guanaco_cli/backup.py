"""`guanaco backup` and `guanaco restore`: copy a platform's data, prove that the copy is good, put it back.

For operators: they work on the data itself, with the platform's settings, whether or not a platform runs.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guanaco.errors import BackupDamaged, InvalidInput
from guanaco_cli import words
from guanaco_cli.console import GREEN, console
from guanaco_cli.installation import needs_platform, read_settings
from guanaco_cli.options import AsJson, Config, DataDir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guanaco_server.backups.document import BackupDocument
    from guanaco_server.backups.making import MadeBackup
    from guanaco_server.backups.verifying import CheckedSeason, Proof

app = typer.Typer()
restore_app = typer.Typer()

To = Annotated[
    Path | None,
    typer.Option("--to", metavar="DIR", help="Folder of the backups. [default: backup_dir]"),
]
Backup = Annotated[
    Path | None,
    typer.Argument(
        metavar="BACKUP",
        help="A backup's folder, or its name in the folder of the backups. [default: the newest]",
    ),
]


@app.callback(
    invoke_without_command=True, epilog="Example: guanaco backup --to /mnt/backups --keep 14"
)
def backup(
    context: typer.Context,
    data_dir: DataDir = None,
    config: Config = None,
    to: To = None,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Remove all but this many of the newest.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Back up the database, while the platform runs or not. The artifacts are listed, not copied."""
    if context.invoked_subcommand is not None:
        return
    with needs_platform():
        from guanaco_server.backups.making import make_backup
    made = make_backup(read_settings({"data_dir": data_dir, "backup_dir": to}, config), keep=keep)
    if as_json:
        console.json(
            {"path": str(made.path), "took_s": made.took_s, "wal_problem": made.wal_problem}
            | _plain(made.document)
        )
        return
    _tell(made, {"--data-dir": data_dir, "--config": config, "--to": to})


@app.command("list", epilog="Example: guanaco backup list --to /mnt/backups")
def list_backups(
    data_dir: DataDir = None, config: Config = None, to: To = None, as_json: AsJson = False
) -> None:
    """List the backups, the oldest first."""
    with needs_platform():
        from guanaco_server.backups.folder import BackupFolder, read_document
    folder = BackupFolder(
        read_settings({"data_dir": data_dir, "backup_dir": to}, config).backups_path
    )
    if to is not None and not folder.root.is_dir():
        raise InvalidInput(
            f"--to: {folder.root} is no folder.", hint="Name the folder of the backups."
        )
    found, damaged = [], []
    for path in folder.finished():
        try:
            found.append((path, read_document(path)))
        except BackupDamaged as error:
            damaged.append((path, error.detail))
    if as_json:
        console.json(
            {
                "backups": [{"path": str(path)} | _plain(one) for path, one in found],
                "damaged": [{"path": str(path), "problem": problem} for path, problem in damaged],
            }
        )
        return
    if not found and not damaged:
        console.say(f"There is no backup in {folder.root}: `guanaco backup` makes one.")
        return
    console.table(
        ("backup", "taken", "kind", "MB>", "revision", "Guanaco"),
        [
            (
                path.name,
                words.moment(one.taken_at),
                one.method,
                f"{one.size_bytes / 1e6:,.1f}",
                one.revision,
                one.guanaco,
            )
            for path, one in found
        ],
    )
    for _, problem in damaged:
        console.warn(problem)


@app.command(epilog="Example: guanaco backup verify /mnt/backups/20261122T191500Z --json")
def verify(
    path: Backup = None,
    data_dir: DataDir = None,
    config: Config = None,
    to: To = None,
    scratch_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An empty PostgreSQL database to restore a dump into. [default: a server of its own]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into a scratch place, and prove what it holds. The platform is left alone."""
    with needs_platform():
        from guanaco_server.backups.verifying import verify_backup
    settings = read_settings({"data_dir": data_dir, "backup_dir": to}, config)
    proof = verify_backup(settings, _find(settings, path), scratch_url=scratch_url)
    if as_json:
        console.json(_proof(proof))
    else:
        _tell_proof(proof)
    if proof.is_as_it_was and proof.wal_problem is not None:
        raise BackupDamaged(
            f"The backup can be restored, but what came after {_second(proof.lost_from)} cannot be recovered.",
            hint="Bring the segments back, or make another backup now: only a backup after the gap goes on with what is archived after it.",
        )
    if not proof.is_good:
        raise BackupDamaged(
            "The backup can be restored, but not everything in it is as it was.",
            hint="The lines above say what differs. Verify an older one: `guanaco backup list`.",
        )


@restore_app.command("restore", epilog="Example: guanaco restore --data-dir /srv/guanaco")
def restore(
    path: Backup = None,
    data_dir: DataDir = None,
    config: Config = None,
    to: To = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Set the SQLite database that is there aside.")
    ] = False,
    pg_data: Annotated[
        Path | None,
        typer.Option(
            "--pg-data",
            metavar="DIR",
            help="New data folder of PostgreSQL, for a base backup.",
            file_okay=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help="Recover up to this moment, such as 2026-11-22T19:15:00Z. [default: all there is]",
        ),
    ] = None,
    without_key: Annotated[
        bool,
        typer.Option("--without-key", help="Go on although the pseudonym key is another one."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a backup as the platform's data. Stop the platform first."""
    with needs_platform():
        from guanaco_server.backups.restoring import restore_backup
    settings = read_settings({"data_dir": data_dir, "backup_dir": to}, config)
    done = restore_backup(
        settings,
        _find(settings, path),
        replace=replace,
        pg_data=pg_data,
        until=_moment(until),
        without_key=without_key,
    )
    if as_json:
        console.json(
            {
                "into": done.into,
                "set_aside": str(done.set_aside) if done.set_aside else None,
                "must_start_postgresql": done.must_start,
                "took_s": done.took_s,
                "wal_problem": done.wal_problem,
            }
        )
        return
    console.say(f"Restored into {done.into} in {done.took_s:.1f} s.", style=GREEN)
    if done.set_aside is not None:
        console.say(f"What was there is {done.set_aside} now.")
    if done.wal_problem is not None:
        console.warn(done.wal_problem)
    if done.must_start:
        console.say(
            f"Next: let PostgreSQL's user own it, start it (`pg_ctl -D {done.into} start`),"
        )
        console.say("      and name it in GUANACO_DATABASE_URL.")
    console.say(
        "`guanaco up` or `guanaco migrate` then repeats the erasures that the backup has not seen."
    )
    console.say(
        "Artifacts that are not in the store are made again from the Hub once the platform runs."
    )


@app.command(epilog="Example: guanaco backup erasures --revoke 4f1c0e77a1b2c3d4e5f60718293a4b5c")
def erasures(
    data_dir: DataDir = None,
    config: Config = None,
    revoke: Annotated[
        str | None,
        typer.Option(metavar="ENTRY", help="Do not repeat this one after a restore."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the erasures that a restored database will repeat.

    They are repeated when the platform starts. They name nobody."""
    with needs_platform():
        from guanaco_server.backups import erasures as ledger
    settings = read_settings({"data_dir": data_dir}, config)
    if revoke is not None:
        ledger.revoke(settings, revoke)
        console.say(
            "That erasure is not repeated any more. What it erased comes back only with a backup."
        )
        return
    found = ledger.list_entries(settings)
    if as_json:
        console.json({"erasures": [one.model_dump(mode="json") for one in found]})
        return
    console.table(
        ("entry", "at", "of"),
        [
            (
                one.id,
                f"{one.at:%Y-%m-%d %H:%M:%S}",
                f"conversation {one.conversation}" if one.conversation else "a user",
            )
            for one in found
        ],
    )


def _find(settings: Any, named: Path | None) -> Path:
    """Return the backup of that path or name; the newest where none is named."""
    from guanaco_server.backups.folder import BackupFolder

    folder = BackupFolder(settings.backups_path)
    return folder.newest() if named is None else folder.find(named)


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"--until: {text} is no time.", hint="Write 2026-11-22T19:15:00Z."
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _tell(made: MadeBackup, given: Mapping[str, Path | None]) -> None:
    """Say what was made; ``given`` has the options that say where, which the next command needs too."""
    document = made.document
    console.line(str(made.path))
    rows = f", {sum(document.rows.values()):,} rows" if document.rows is not None else ""
    console.say(
        f"{document.database}, {document.size_bytes / 1e6:,.1f} MB{rows}, {document.artifacts} artifacts listed, in {made.took_s:.1f} s."
    )
    console.say(f"It holds in the clear: {'; '.join(document.holds_in_the_clear)}.")
    for secret in document.secrets:
        console.say(f"It does not hold {secret.name}: keep a copy of {secret.kept_in}.")
    if made.removed:
        console.say(f"Removed: {', '.join(path.name for path in made.removed)}.")
    if made.wal_problem is not None:
        console.warn(made.wal_problem)
    if made.is_on_the_same_disk:
        console.warn("It is on the same disk as the database. --to names a folder on another one.")
    verify = ["guanaco", "backup", "verify"]
    for option, path in given.items():
        verify += [] if path is None else [option, str(path)]
    console.say(f"Next: `{shlex.join(verify)}` proves that it can be restored.")


def _tell_proof(proof: Proof) -> None:
    good = "the same" if not proof.row_problems else "not the same"
    rows: list[tuple[str, str]] = [
        ("files", f"{len(proof.document.files)}, every SHA-256 is the recorded one"),
        ("tables", f"restored at revision {proof.document.revision}, migrated to {proof.revision}"),
        (
            "rows",
            f"{proof.rows:,}, {good}" if proof.document.rows is not None else f"{proof.rows:,}",
        ),
        *(("rows", problem) for problem in proof.row_problems),
        *((f"season {one.competition}", one.problem or _season(one)) for one in proof.seasons),
        ("artifacts", f"{proof.artifacts} needed, {len(proof.missing_artifacts)} missing"),
        *(("artifact missing", key) for key in proof.missing_artifacts),
        (
            "pseudonym key",
            "the backup's" if proof.has_same_key else "another one than the backup's",
        ),
        *(() if proof.wal_problem is None else [("archived WAL", proof.wal_problem)]),
        (
            "would be lost",
            f"{_time(proof.loses_s)}: what came after {_second(proof.lost_from)}",
        ),
        ("took", f"{_time(proof.took_s)} to restore and migrate"),
    ]
    console.table(("what", "found"), rows, title=str(proof.path))
    if proof.is_good:
        console.say("The backup is good.", style=GREEN)


def _season(one: CheckedSeason) -> str:
    if one.reasons:
        return f"differs, as it must: {' '.join(one.reasons)}"
    return f"ranked again, the same: {one.sha256}"


def _proof(proof: Proof) -> dict[str, Any]:
    return {
        "path": str(proof.path),
        "is_good": proof.is_good,
        "rows": proof.rows,
        "row_problems": list(proof.row_problems),
        "revision": proof.revision,
        "seasons": [
            {
                "competition": one.competition,
                "sha256": one.sha256,
                "erased_since": one.erased_since,
                "reasons": list(one.reasons),
                "problem": one.problem,
            }
            for one in proof.seasons
        ],
        "erasures_repeated": proof.erasures,
        "artifacts": proof.artifacts,
        "missing_artifacts": list(proof.missing_artifacts),
        "has_same_key": proof.has_same_key,
        "wal_problem": proof.wal_problem,
        "lost_from": proof.lost_from.isoformat(),
        "rpo_s": proof.loses_s,
        "rto_s": proof.took_s,
        "backup": _plain(proof.document),
    }


def _plain(document: BackupDocument) -> dict[str, Any]:
    return document.model_dump(mode="json")


def _second(at: datetime) -> str:
    """Write a moment as `--until` takes it."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
