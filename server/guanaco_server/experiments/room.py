"""Builds the experiments room: A/B comparisons, as admins see them and as conversations meet them."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.experiments.obstacles import ObstacleFinder
from guanaco_server.experiments.running import RunningExperiments
from guanaco_server.experiments.service import ExperimentService, Outcomes
from guanaco_server.prompts.service import PromptService
from guanaco_server.routing.service import RoutingService
from guanaco_server.runtime.clock import Clock
from guanaco_server.scaling.sleep import SleepService
from guanaco_server.submissions.service import SubmissionService


@dataclass(frozen=True)
class ExperimentsRoom:
    """``running`` is a loop: it keeps the running experiments fresh in memory."""

    service: ExperimentService
    running: RunningExperiments


def build_experiments(
    database: Database,
    clock: Clock,
    *,
    submissions: SubmissionService,
    competitions: CompetitionService,
    routing: RoutingService,
    prompts: PromptService,
    sleep_service: SleepService,
    outcomes: Outcomes,
) -> ExperimentsRoom:
    """``outcomes`` counts what experiments are judged by."""
    running = RunningExperiments(database, routing)
    obstacles = ObstacleFinder(submissions, competitions, sleep_service, routing)
    service = ExperimentService(
        database, clock, submissions, competitions, running, prompts, obstacles, outcomes
    )
    return ExperimentsRoom(service, running)
