"""Reads how much each deployment is needed: its owner, ratings, open streams, and its last traffic.

The rooms above give the first three through functions; this room knows none of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime

from guanaco_server.deployments.service import DeploymentService
from guanaco_server.runtime.clock import Clock


@dataclass(frozen=True)
class Ownership:
    """``is_published``: the pipeline is done with it, and it may be scaled; ``is_open``: it takes new conversations.

    ``users`` are the deployments that work with a reward model; None for one that is none. Each of its replies has that number of ``candidates``.
    """

    owner: str = ""
    is_published: bool = False
    is_open: bool = False
    users: frozenset[str] | None = None
    candidates: int = 1


@dataclass(frozen=True)
class DeploymentUsage:
    ownership: Ownership = Ownership()
    feedback: int = 0
    open_streams: int = 0

    @property
    def sequences(self) -> int:
        """The sequences of the open streams."""
        return self.open_streams * self.ownership.candidates

    @property
    def is_reward(self) -> bool:
        return self.ownership.users is not None

    def is_needed(self, awake: Set[str]) -> bool:
        """Tell whether this is a reward model, and a submission that works with it has a server now."""
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

    async def read(self) -> dict[str, DeploymentUsage]:
        owners = await self._read_owners()
        feedback, streams = await self._count_feedback(), await self._count_streams()
        return {
            submission_id: DeploymentUsage(
                ownership, feedback.get(submission_id, 0), streams.get(submission_id, 0)
            )
            for submission_id, ownership in owners.items()
        }


class TrafficRecorder:
    """Notes in memory when each deployment was last asked for something; written down once a second at most."""

    def __init__(self, clock: Clock, deployments: DeploymentService) -> None:
        self._clock = clock
        self._deployments = deployments
        self._noted: dict[str, datetime] = {}

    def note(self, submission_id: str) -> None:
        self._noted[submission_id] = self._clock.now()

    async def write(self) -> None:
        """Write down what was noted since the last call."""
        noted = dict(self._noted)
        if not noted:
            return
        await self._deployments.record_traffic(noted)
        self._noted = {name: at for name, at in self._noted.items() if noted.get(name) != at}
