"""Says why a running experiment takes no conversation now: a model of a variant cannot, or its competition does not run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set

from guanaco.errors import CompetitionClosed
from guanaco.experiments import (
    Experiment,
    ExperimentRequest,
    ExperimentState,
    Obstacle,
    ObstacleReason,
)
from guanaco.submissions import Status
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.experiments.variants import models_of
from guanaco_server.routing.service import RoutingService
from guanaco_server.scaling.sleep import SleepService
from guanaco_server.submissions.service import SubmissionService

WORDS = {
    ObstacleReason.ASLEEP: "{model} sleeps. The next conversation that the experiment would take wakes it.",
    ObstacleReason.STARTING: "{model} has no ready model server now; one is being started.",
    ObstacleReason.FULL: "{model} has no room now. It takes conversations again when others end.",
}
NOT_DEPLOYED = "{model} is {status}. {cure}"
REACTIVATE = "`guanaco reactivate {model}` serves it again; or stop the experiment."
STOP = "Stop the experiment: it takes nobody without it."


class ObstacleFinder:
    def __init__(
        self,
        submissions: SubmissionService,
        competitions: CompetitionService,
        sleep_service: SleepService,
        routing: RoutingService,
    ) -> None:
        self._submissions = submissions
        self._competitions = competitions
        self._sleep_service = sleep_service
        self._routing = routing

    async def find(self, experiments: Collection[Experiment]) -> list[list[Obstacle]]:
        """Return what keeps each of these experiments from taking conversations; nothing for one that does not run."""
        running = [one for one in experiments if one.state is ExperimentState.RUNNING]
        models = {model for one in running for model in models_of(one)}
        if not running:
            return [[] for _ in experiments]
        statuses = await self._submissions.catalog.statuses(models)
        asleep = await self._sleep_service.asleep() - await self._sleep_service.waking()
        reasons = {model: self._reason(model, statuses.get(model), asleep) for model in models}
        return [
            [*await self._closed(one), *_of_variants(one, reasons, statuses)]
            if one.state is ExperimentState.RUNNING
            else []
            for one in experiments
        ]

    async def _closed(self, experiment: ExperimentRequest) -> list[Obstacle]:
        if experiment.competition is None:
            return []
        try:
            await self._competitions.require_running(experiment.competition)
        except CompetitionClosed as error:
            reason = ObstacleReason.COMPETITION_CLOSED
            return [Obstacle(variant=None, model=None, reason=reason, detail=error.detail)]
        return []

    def _reason(self, model: str, status: Status | None, asleep: Set[str]) -> ObstacleReason | None:
        if status is not Status.DEPLOYED:
            return ObstacleReason.NOT_DEPLOYED
        if model in asleep:
            return ObstacleReason.ASLEEP
        if self._routing.can_take(model):
            return None
        has_place = self._routing.has_place(model)
        return ObstacleReason.STARTING if has_place else ObstacleReason.FULL


def _of_variants(
    experiment: ExperimentRequest,
    reasons: Mapping[str, ObstacleReason | None],
    statuses: Mapping[str, Status],
) -> list[Obstacle]:
    found = []
    for variant in experiment.variants:
        reason = None if variant.model is None else reasons[variant.model]
        if variant.model is not None and reason is not None:
            detail = _detail(variant.model, reason, statuses.get(variant.model))
            found.append(
                Obstacle(variant=variant.name, model=variant.model, reason=reason, detail=detail)
            )
    return found


def _detail(model: str, reason: ObstacleReason, status: Status | None) -> str:
    if reason is not ObstacleReason.NOT_DEPLOYED:
        return WORDS[reason].format(model=model)
    word = "deleted" if status is None else status.replace("_", " ")
    cure = REACTIVATE.format(model=model) if status is Status.INACTIVE else STOP
    return NOT_DEPLOYED.format(model=model, status=word, cure=cure)
