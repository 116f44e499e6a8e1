"""Which tensors a process reads, and which of their hashes it is the one to verify.

Ranks of one tensor-parallel group map the same file, so each hashes every n-th piece: together they verify
every byte once. A tensor that no other rank reads is verified by its reader alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from guanaco_server.formats.manifest import Manifest, TensorRecord


def _every(name: str) -> bool:
    return True


def _none(name: str) -> bool:
    return False


@dataclass(frozen=True)
class Selection:
    """By default everything. ``is_ours_alone`` tells of tensors that only this rank of the ``ranks`` reads."""

    is_wanted: Callable[[str], bool] = _every
    rank: int = 0
    ranks: int = 1
    is_ours_alone: Callable[[str], bool] = _none

    def records(self, manifest: Manifest) -> list[TensorRecord]:
        """The wanted tensors, in the order of their bytes."""
        wanted = (record for record in manifest.tensors if self.is_wanted(record.name))
        return sorted(wanted, key=lambda record: record.offset)

    def verifies(self, record: TensorRecord, number: int) -> bool:
        """Whether the piece of that number, counted over the whole file, is this rank's to hash."""
        return number % self.ranks == self.rank or self.is_ours_alone(record.name)


EVERYTHING = Selection()
