"""Reads each engine's load and writes down how many replicas it should have, or that it sleeps.

Deployments that share an engine are decided together: their replicas come from the sum of what is asked of all, and the engine sleeps when each of them may. One of several does not sleep alone, because that would free nothing.

Every ``interval_s``; with nothing deployed it waits for a commit.
It only writes the wish; the reconciler brings the cluster to it. Samples are in memory: a controller that has just
started decides nothing until it has seen a whole window.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy.exc import DBAPIError

from guanaco_server.database.commits import LOOK_ANYWAY_S, CommitWatch
from guanaco_server.deployments.engines.assignment import by_engine, capacity_of
from guanaco_server.deployments.model_servers.model_server import (
    ModelServer,
    ModelServerFault,
    ServerLoad,
)
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock
from guanaco_server.scaling.admission import awake_of, is_rated, last_used, tenants_of
from guanaco_server.scaling.budget import Budget, Room, spare_replicas
from guanaco_server.scaling.replicas import (
    DeploymentLoad,
    LoadSample,
    ReplicaLimits,
    capacity,
    decide,
)
from guanaco_server.scaling.schedule import Schedule
from guanaco_server.scaling.usage import DeploymentUsage, UsageReader

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScalingPolicy:
    """``feedback_target`` ratings and ``idle_s`` without traffic let a deployment sleep; a target of 0 never does.

    ``shares_addresses``: an endpoint may stand for several replicas.
    """

    limits: ReplicaLimits
    budget: Budget
    feedback_target: int = 0
    idle_s: float = 900.0
    interval_s: float = 5.0
    engine_args: tuple[str, ...] = ()
    shares_addresses: bool = True
    schedule: Schedule = field(default_factory=Schedule)

    def limits_at(self, at: datetime) -> ReplicaLimits:
        """Return the limits of this moment, with the schedule's floor."""
        least = max(self.limits.min_replicas, self.schedule.floors(at).replicas)
        return replace(
            self.limits, min_replicas=least, max_replicas=max(least, self.limits.max_replicas)
        )


class Autoscaler:
    def __init__(
        self,
        deployments: DeploymentService,
        model_server: ModelServer,
        clock: Clock,
        usage: UsageReader,
        policy: ScalingPolicy,
        is_leader: Callable[[], bool],
        commits: CommitWatch,
    ) -> None:
        self._deployments = deployments
        self._model_server = model_server
        self._clock = clock
        self._usage = usage
        self._policy = policy
        self._is_leader = is_leader
        self._commits = commits
        self._has_work = True
        self._samples: dict[str, tuple[LoadSample, ...]] = {}
        self._background = Background("autoscaler")

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def step(self) -> None:
        """Decide once for every engine whose deployments are ready and published."""
        rows = await self._deployments.list_wishes()
        self._has_work = bool(rows)
        limits = self._policy.limits_at(self._clock.now())
        has_replicas = limits.max_replicas > 1 or any(row.wanted_replicas > 1 for row in rows)
        if not has_replicas and not self._policy.feedback_target:
            return
        usage = await self._usage.read()
        having = [row for row in rows if row.phase.has_server]
        ready = [row for row in having if _may_be_scaled(row, usage)]
        engines = by_engine(ready)
        self._samples = {engine: self._samples.get(engine, ()) for engine in engines}
        kept, sharing = self._kept_awake(ready, usage), by_engine(having)
        have_server = awake_of(rows)
        awake = [
            users
            for engine, users in engines.items()
            if len(users) < len(sharing[engine])
            or any(row.submission_id in kept for row in users)
            or not await self._put_to_sleep(users, usage, have_server)
        ]
        if has_replicas:
            await asyncio.gather(*(self._sample(users, usage) for users in awake))
            for users in awake:
                await self._scale(users, rows, usage, limits)

    async def _run(self) -> None:
        while True:
            interval_s = self._policy.interval_s
            await self._commits.wait(interval_s, interval_s if self._has_work else LOOK_ANYWAY_S)
            if not self._is_leader():
                self._samples.clear()
                self._has_work = True  # it may lead at any time
                continue
            try:
                await self.step()
            except (DBAPIError, OSError) as error:
                logger.warning("scaling failed, trying again: %s", error)
                self._has_work = True

    def _kept_awake(
        self, ready: list[DeploymentRow], usage: dict[str, DeploymentUsage]
    ) -> frozenset[str]:
        """Return those that the floor keeps awake: the latest used. A reward model is kept by who works with it."""
        floor = self._policy.schedule.floors(self._clock.now()).awake
        chats = [row for row in ready if not usage[row.submission_id].is_reward]
        chats.sort(key=last_used, reverse=True)
        return frozenset(row.submission_id for row in chats[:floor])

    async def _put_to_sleep(
        self,
        users: list[DeploymentRow],
        usage: dict[str, DeploymentUsage],
        have_server: Set[str],
    ) -> bool:
        """Put an engine to sleep that none of its deployments needs. Return whether it sleeps."""
        if not all(self._is_idle(row, usage[row.submission_id], have_server) for row in users):
            return False
        idle_since = self._clock.now() - timedelta(seconds=self._policy.idle_s)
        slept = [
            row
            for row in users
            if await self._deployments.put_to_sleep(row.submission_id, idle_since)
        ]
        frees_nothing = "; its model server stays for others, so this frees nothing"
        for row in slept:
            logger.info(
                "%s is put to sleep: it has %d ratings and had no traffic for %g s%s",
                row.submission_id,
                usage[row.submission_id].feedback,
                self._policy.idle_s,
                "" if len(slept) == len(users) else frees_nothing,
            )
        return len(slept) == len(users)

    def _is_idle(self, row: DeploymentRow, usage: DeploymentUsage, have_server: Set[str]) -> bool:
        idle_since = self._clock.now() - timedelta(seconds=self._policy.idle_s)
        return (
            is_rated(usage, self._policy.feedback_target)
            and not usage.open_streams
            and not usage.is_needed(have_server)
            and row.updated_at <= idle_since
            and last_used(row) <= idle_since
        )

    async def _sample(self, users: list[DeploymentRow], usage: dict[str, DeploymentUsage]) -> None:
        """Sample the load. Where one address stands for several replicas, the answer of one is taken for all. Open streams always count."""
        lead = users[0]
        loads = await self._loads(lead.submission_id)
        if not loads:
            return
        now, each, starting = self._clock.now(), 1.0, 0
        if self._policy.shares_addresses:
            each = max(1.0, lead.applied_replicas / len(loads))
        else:
            starting = max(0, lead.wanted_replicas - len(loads))
        running = round(sum(load.running for load in loads) * each)
        waiting = round(sum(load.waiting for load in loads) * each)
        streams = sum(usage[row.submission_id].sequences for row in users)
        places = round(len(loads) * each * self._capacity(users))
        unseen = max(0, streams - running - waiting)  # they wait in a gateway, or came just now
        begun = min(unseen, max(0, places - running))
        sample = LoadSample(now, running + begun, waiting + unseen - begun, starting)
        samples = (*self._samples[lead.server_key], sample)
        oldest = now - timedelta(seconds=self._policy.limits.memory_s)
        while len(samples) > 1 and samples[1].at <= oldest:
            samples = samples[1:]
        self._samples[lead.server_key] = samples

    async def _loads(self, submission_id: str) -> list[ServerLoad]:
        """Return the load of each server; none at all if one does not answer."""
        endpoints = self._deployments.replicas(submission_id)
        try:
            return await asyncio.gather(*(self._model_server.load(each) for each in endpoints))
        except ModelServerFault as fault:
            logger.debug("no load of %s: %s", submission_id, fault)
            return []

    def _capacity(self, users: list[DeploymentRow]) -> int:
        return capacity(capacity_of(users), self._policy.engine_args)

    async def _scale(
        self,
        users: list[DeploymentRow],
        rows: list[DeploymentRow],
        usage: dict[str, DeploymentUsage],
        limits: ReplicaLimits,
    ) -> None:
        now = self._clock.now()
        lead = max(users, key=lambda row: row.wanted_replicas)
        samples = self._samples[lead.server_key]
        load = DeploymentLoad(
            lead.wanted_replicas,
            self._capacity(users),
            samples,
            min(lead.wanted_replicas, sum(usage[row.submission_id].open_streams for row in users)),
            max((row.scaled_at for row in users if row.scaled_at), default=None),
        )
        wanted = decide(load, limits, now)
        if wanted > lead.wanted_replicas:
            wanted = lead.wanted_replicas + self._room(lead, rows, usage, wanted)
        if all(row.wanted_replicas == wanted for row in users):
            return
        latest = samples[-1] if samples else LoadSample(now, 0, 0)
        logger.info(
            "%s gets %d replicas instead of %d: %d sequences run and %d wait, at %d a replica",
            ", ".join(row.submission_id for row in users),
            wanted,
            lead.wanted_replicas,
            latest.running,
            latest.waiting,
            load.capacity,
        )
        for row in users:
            row.wanted_replicas = wanted
            await self._deployments.note(row.submission_id, wanted_replicas=wanted, scaled_at=now)
        self._deployments.woken.set()

    def _room(
        self,
        row: DeploymentRow,
        rows: list[DeploymentRow],
        usage: dict[str, DeploymentUsage],
        wanted: int,
    ) -> int:
        """Return how many further replicas fit. They take free room only, and none that a deployment waits for."""
        budget = self._policy.budget
        if budget.is_limited and any(r.phase in (Phase.WAITING, Phase.WAKING) for r in rows):
            return 0
        tenants = tenants_of(rows, usage, 0)
        return spare_replicas(budget, tenants, Room(row.gpu_count, 1), wanted - row.wanted_replicas)


def _may_be_scaled(row: DeploymentRow, usage: dict[str, DeploymentUsage]) -> bool:
    known = usage.get(row.submission_id)
    return row.phase is Phase.READY and known is not None and known.ownership.is_published
