"""What the rest of the platform knows of a deployment: whose it is, its ratings, its open streams.

The rooms above give it; this one asks for it through three functions and knows none of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass


@dataclass(frozen=True)
class Ownership:
    """``is_published``: the pipeline has let go of it, and it may be scaled; ``is_open``: it takes new conversations.

    ``users`` are the deployments that work with a reward model; None for one that is none.
    """

    owner: str = ""
    is_published: bool = False
    is_open: bool = False
    users: frozenset[str] | None = None


@dataclass(frozen=True)
class Usage:
    ownership: Ownership = Ownership()
    feedback: int = 0
    open_streams: int = 0

    @property
    def is_reward(self) -> bool:
        return self.ownership.users is not None

    def is_needed(self, awake: Set[str]) -> bool:
        """Of a reward model: whether a submission that works with it has a server now."""
        return bool((self.ownership.users or frozenset()) & awake)


ReadOwners = Callable[[], Awaitable[Mapping[str, Ownership]]]
ReadCounts = Callable[[], Awaitable[Mapping[str, int]]]


class UsageReader:
    """``read_owners`` knows each submission that should be served or will be; the others count."""

    def __init__(
        self, read_owners: ReadOwners, count_feedback: ReadCounts, count_streams: ReadCounts
    ) -> None:
        self._read_owners = read_owners
        self._count_feedback = count_feedback
        self._count_streams = count_streams

    async def read(self) -> dict[str, Usage]:
        owners = await self._read_owners()
        feedback, streams = await self._count_feedback(), await self._count_streams()
        return {
            submission_id: Usage(
                ownership, feedback.get(submission_id, 0), streams.get(submission_id, 0)
            )
            for submission_id, ownership in owners.items()
        }
