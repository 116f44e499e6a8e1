"""Finds whether an archive of WAL continues a base backup without a gap.

A segment's name is its timeline, and its number in two halves. Recovery replays one segment after the other, and ends before
the first that is missing: what is archived after it is of no use to this backup.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from guanaco.errors import BackupDamaged, BackupFailed

MANIFEST = "backup_manifest"  # PostgreSQL's own, beside the archives of a base backup
SEGMENT = re.compile(r"[0-9A-F]{24}")
USUAL_SEGMENT_BYTES = 16 * 1024 * 1024
LOG_BYTES = 2**32


@dataclass(frozen=True)
class WalPosition:
    """A place in the WAL; ``lsn`` is a number of bytes."""

    timeline: int
    lsn: int


def lsn_of(text: str) -> int:
    """Return the bytes of an LSN such as ``0/B000138``."""
    high, low = text.split("/")
    return int(high, 16) * LOG_BYTES + int(low, 16)


def end_of_backup(base: Path) -> WalPosition:
    """Return where the WAL ends that a base backup holds itself."""
    try:
        last = json.loads((base / MANIFEST).read_text())["WAL-Ranges"][-1]
        return WalPosition(int(last["Timeline"]), lsn_of(last["End-LSN"]))
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        raise BackupDamaged(f"The {MANIFEST} of {base} cannot be read.") from None


def require_archive(archive: Path) -> None:
    """Raise BackupFailed where the folder is not there."""
    if not archive.is_dir():
        raise BackupFailed(
            f"The archive of WAL {archive} is no folder on this machine, so nothing was done.",
            hint="Mount it, correct backup_wal_dir, or leave that out to go without archived WAL.",
        )


class WalArchive:
    """The segments in a folder. They all have the same size, which the server's owner may have chosen."""

    def __init__(self, archive: Path) -> None:
        require_archive(archive)
        self.path = archive
        found = [path for path in archive.iterdir() if SEGMENT.fullmatch(path.name)]
        self.segment_bytes = max(
            (path.stat().st_size for path in found), default=USUAL_SEGMENT_BYTES
        )
        self._names = sorted(path.name for path in found)

    def problem_after_backup(self, end: WalPosition) -> str | None:
        """Return in a sentence what is missing after a backup whose own WAL ends there; None where nothing is."""
        after = self._after(end.timeline)
        last = (end.lsn - 1) // self.segment_bytes
        if not after or max(after) < last:
            return (
                f"{self.path} has no WAL of this backup or after it: {self._name(end.timeline, last)} "
                "should be there. Look at archive_mode, archive_command and backup_wal_dir."
            )
        return self._gap(end.timeline, after, last + 1)

    def problem_after_recovery(self, end: WalPosition) -> str | None:
        """Return in a sentence why a recovery that ended there did not reach the archive's end; None where it did."""
        after, ended_in = self._after(end.timeline), end.lsn // self.segment_bytes
        if not after or max(after) <= ended_in:
            return None
        return self._gap(end.timeline, after, ended_in) or (
            f"The segment {self._name(end.timeline, ended_in)} is damaged: recovery ends in it, and "
            f"the archive goes on to {self._name(end.timeline, max(after))}."
        )

    def _gap(self, timeline: int, after: set[int], first: int) -> str | None:
        missing = first
        while missing in after:
            missing += 1
        if missing > max(after):
            return None
        beyond = sum(one > missing for one in after)
        return (
            f"The segment {self._name(timeline, missing)} is missing in {self.path}: recovery ends before it, "
            f"and {beyond} archived after it cannot be replayed."
        )

    def _after(self, timeline: int) -> set[int]:
        """Return the numbers on this timeline and on those that forked from it later."""
        return {self._number(name) for name in self._names if int(name[:8], 16) >= timeline}

    def _number(self, name: str) -> int:
        return int(name[8:16], 16) * (LOG_BYTES // self.segment_bytes) + int(name[16:], 16)

    def _name(self, timeline: int, number: int) -> str:
        high, low = divmod(number, LOG_BYTES // self.segment_bytes)
        return f"{timeline:08X}{high:08X}{low:08X}"
