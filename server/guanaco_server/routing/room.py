"""Builds the routing room: which submission a new conversation talks to."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.commits import CommitWatch
from guanaco_server.deployments.beside import VersionsBeside
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.routing.occupancy import Occupancy, ReadCapacities, ReadCounts
from guanaco_server.routing.service import CountDuels, CountVotes, RoutingService
from guanaco_server.runtime.clock import Clock
from guanaco_server.scaling.sleep import SleepService
from guanaco_server.scaling.usage import TrafficRecorder
from guanaco_server.submissions.rollouts.canaries import CanaryRecorder
from guanaco_server.submissions.runs.events import StatusChanges
from guanaco_server.submissions.service import SubmissionService


@dataclass(frozen=True)
class RoutingRoom:
    """``service`` is a loop too: it keeps the routing snapshot fresh."""

    service: RoutingService


def build_routing(
    clock: Clock,
    *,
    submissions: SubmissionService,
    changes: StatusChanges,
    deployments: DeploymentService,
    versions: VersionsBeside,
    competitions: CompetitionService,
    count_votes: CountVotes,
    count_duels: CountDuels,
    count_turns: ReadCounts,
    read_capacities: ReadCapacities,
    crowded: Callable[[], Set[str]],
    traffic: TrafficRecorder,
    sleep_service: SleepService,
    canaries: CanaryRecorder,
    commits: CommitWatch,
) -> RoutingRoom:
    """``count_votes`` counts by competition, ``count_duels`` those of one by pair; open turns are by submission, capacities by engine, ``crowded`` those for which turns wait."""
    service = RoutingService(
        clock,
        submissions,
        deployments,
        versions,
        competitions,
        count_votes,
        count_duels,
        Occupancy(count_turns, read_capacities, crowded),
        traffic,
        sleep_service,
        canaries,
        commits,
    )
    changes.subscribe(lambda _id, _status: service.note_change())
    return RoutingRoom(service)
