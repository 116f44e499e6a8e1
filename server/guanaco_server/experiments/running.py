"""The running experiments in memory, at most a second old, for new conversations."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.contract import unknown_members
from guanaco.experiments import ExperimentRequest, ExperimentState, Overrides, Variant
from guanaco_server.database.database import Database
from guanaco_server.experiments import queries
from guanaco_server.experiments.tables import ExposureRow
from guanaco_server.experiments.variants import is_in_part, models_of, unit_of, variant_of
from guanaco_server.routing.service import RoutingService
from guanaco_server.runtime.background import Background

REFRESH_S = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Exposure:
    experiment: str
    variant: Variant
    unit: str


class RunningExperiments:
    def __init__(self, database: Database, routing: RoutingService) -> None:
        self._database = database
        self._routing = routing
        self._running: dict[str, ExperimentRequest] = {}
        self._variants: dict[tuple[str, str], Variant] = {}
        self._woken_at: dict[str, float] = {}
        self._commits = database.watch_commits()
        self._background = Background("running experiments")

    async def start(self) -> None:
        await self.refresh()
        self._background.start(self._keep_fresh())

    async def stop(self) -> None:
        await self._background.stop()

    async def refresh(self) -> None:
        async with self._database.read() as session:
            rows = await queries.all_rows(session)
        self._running = {
            row.name: row.rules
            for row in rows
            if row.state is ExperimentState.RUNNING and not any(unknown_members(row.rules))
        }
        self._variants = {
            (row.name, variant.name): variant
            for row in rows
            if row.state
            is not ExperimentState.DRAFT  # an unknown state too: its conversations go on
            for variant in row.rules.variants
        }

    async def enter(self, account_id: str, user_id: str, competition_id: str) -> Exposure | None:
        """Return the experiment in which a new conversation of this user takes part, if any.

        While one of its models can take no conversation, an experiment takes none in any variant, because its variants
        must have the same users at the same times. For that reason each conversation that it would take keeps all of its
        models awake, and wakes those that sleep.
        """
        if not self._running:
            return None
        unit = unit_of(account_id, user_id)
        for experiment in self._running.values():
            if (
                experiment.competition in (None, competition_id)
                and is_in_part(experiment, unit)
                and await self._has_all_models(experiment)
            ):
                return Exposure(experiment.name, variant_of(experiment, unit), unit)
        return None

    async def _has_all_models(self, experiment: ExperimentRequest) -> bool:
        models = models_of(experiment)
        if all(map(self._routing.can_take, models)):
            self._routing.keep_awake(models)
            return True
        now = time.monotonic()
        if now >= self._woken_at.get(experiment.name, float("-inf")) + REFRESH_S:
            self._woken_at[experiment.name] = now
            await self._routing.wake_together(models)
        return False

    def variants(self, experiment: str) -> Sequence[Variant]:
        """Return the variants of a running experiment."""
        running = self._running.get(experiment)
        return running.variants if running is not None else ()

    async def unserved(self, experiment: ExperimentRequest) -> list[str]:
        """Return the models of an experiment that are not deployed or have no ready server."""
        missing = self._not_ready(experiment)
        if missing:  # by the last snapshot, which may be old
            await self._routing.refresh()
            missing = self._not_ready(experiment)
        return missing

    async def wake(self, experiment: ExperimentRequest) -> None:
        """Wake the models of an experiment that sleep."""
        await self._routing.wake_together(models_of(experiment))

    def expose(
        self, session: AsyncSession, exposure: Exposure, conversation_id: str, now: datetime
    ) -> None:
        """Store that the conversation takes part, within the caller's transaction and after the conversation's row."""
        session.add(
            ExposureRow(
                conversation_id=conversation_id,
                experiment=exposure.experiment,
                variant=exposure.variant.name,
                unit=exposure.unit,
                created_at=now,
            )
        )

    async def overrides(self, experiment: str, variant: str) -> Overrides:
        """Return what a variant changes, also after the experiment has stopped."""
        if (experiment, variant) not in self._variants:  # another process has just started it
            await self.refresh()
        return self._variants[experiment, variant]

    async def variants_of(
        self, session: AsyncSession, conversation_ids: Sequence[str]
    ) -> dict[str, str]:
        """Read the variant of each conversation that takes part in an experiment, within the caller's transaction."""
        return await queries.variants_of(session, conversation_ids)

    def _not_ready(self, experiment: ExperimentRequest) -> list[str]:
        ready = {one.serving.id for one in self._routing.live() if one.endpoints}
        return [model for model in models_of(experiment) if model not in ready]

    async def _keep_fresh(self) -> None:
        while True:
            await self._commits.wait(REFRESH_S)
            try:
                await self.refresh()
            except (DBAPIError, OSError) as error:
                self._commits.reset()
                logger.warning("experiments not refreshed; trying again: %s", error)
