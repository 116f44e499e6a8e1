"""Gives room to deployments that wait for it, and puts others to sleep for them; ``budget.py`` says which.

One of the deployments that share an engine has its room, and the others need none; all of them are stopped, or none.
Runs in the reconciler's loop, so that there is one that decides. A deployment that waits is told why.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from guanaco_server.clusters.cluster import Cluster
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.engines.swaps import IdleServer, IdleServers, Rank, idle_servers
from guanaco_server.deployments.reconciling.backoff import Backoff
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.tables import DeploymentRow, EngineRow, Phase
from guanaco_server.runtime.clock import Clock
from guanaco_server.scaling.budget import Budget, Claim, Room, RoomPlan, Tenant, share
from guanaco_server.scaling.usage import DeploymentUsage, UsageReader
from guanaco_server.scaling.worth_plan import WorthPlan, WorthPlanner

ROUSED = (Phase.WAITING, Phase.WAKING)
ASKING = (*ROUSED, Phase.SLEEPING)

FOREVER_S = 100 * 365 * 86_400.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HotEngines:
    """How many servers without users stay, for how long (0 is no limit), and whether the machine has memory for them now."""

    most: int = 0
    keep_s: float = 0.0
    has_memory: Callable[[int], bool] = lambda _: True


class Admission:
    """Decides who gets room. A deployment with ``feedback_target`` ratings has enough; with 0 none ever has.

    ``awake_floor`` says how many submissions are to be awake now. ``planner`` says what each is worth, where that is the policy.
    ``hot`` servers stay although nobody uses them.
    """

    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        deployments: DeploymentService,
        usage: UsageReader,
        budget: Budget,
        feedback_target: int,
        awake_floor: Callable[[], int],
        idle: IdleServers,
        planner: WorthPlanner | None,
        hot: HotEngines,
    ) -> None:
        self._clock = clock
        self._cluster = cluster
        self._deployments = deployments
        self._usage = usage
        self._budget = budget
        self._feedback_target = feedback_target
        self._awake_floor = awake_floor
        self._idle = idle
        self._planner = planner
        self._hot = hot
        self._pace = Backoff(clock)

    async def step(self) -> frozenset[str]:
        """Share the room once between those who have it and those who ask for it.

        Return the names of the servers that nobody uses and that are to stop.
        """
        rows = await self._deployments.list_wishes()
        self._pace.forget_all_but({row.submission_id for row in rows if row.phase in ASKING})
        spares = await self._deployments.spares.list()
        if not spares and not any(row.phase in ASKING for row in rows):
            await self._note_yielding(rows, WorthPlan())
            return frozenset()
        usage = await self._usage.read()
        worth = await self._planner.plan(rows, usage) if self._planner else WorthPlan()
        await self._note_yielding(rows, worth)
        if await self._make_room(rows, usage, worth):
            rows = await self._deployments.list_wishes()
        rows = await self._take_over(rows, worth)
        plan = await self._share(rows, spares, usage, worth)
        await self._carry_out(plan, rows)
        rows = await self._deployments.list_wishes()
        if plan.victims:
            rows = await self._take_over(rows, worth)
        return await self._surplus(rows, plan, worth)

    async def _surplus(
        self, rows: list[DeploymentRow], plan: RoomPlan, worth: WorthPlan
    ) -> frozenset[str]:
        idle = idle_servers(
            rows, await self._deployments.spares.list(), (Phase.SLEEPING, Phase.WAKING)
        )
        since = self._clock.now() - timedelta(seconds=self._hot.keep_s or FOREVER_S)
        has_place = self._cluster.can_relabel and self._hot.has_memory(0)
        useful = [
            server
            for server in idle
            if server.idle_since >= since
            and (server.spare is None or await self._idle.is_usable(server))
        ]
        return surplus(
            rows,
            idle,
            useful,
            frozenset(await self._cluster.list_deployments()),
            plan,
            self._budget,
            self._hot.most if has_place else 0,
            worth.rank,
        )

    async def _share(
        self,
        rows: list[DeploymentRow],
        spares: list[EngineRow],
        usage: dict[str, DeploymentUsage],
        worth: WorthPlan,
    ) -> RoomPlan:
        by_id = {row.submission_id: row for row in rows}
        running = await self._cluster.list_deployments()
        having = {row.server_key for row in rows if row.phase.has_server}
        claims = list(self._claims(rows, usage, worth, running))
        for claim in claims:
            if by_id[claim.submission_id].server_key in having:
                await self._grant(by_id[claim.submission_id])
        return share(
            self._budget,
            _weighed(tenants_of(rows, usage, self._feedback_target), rows, worth),
            _one_an_engine(claims, by_id, having),
            _leaving(rows, spares, running),
            self._clock.now(),
        )

    async def _note_yielding(self, rows: list[DeploymentRow], plan: WorthPlan) -> None:
        """Write down who makes room and for whom, for the gateways."""
        for row in rows:
            wished = plan.yields.get(row.submission_id)
            if row.yields_to != wished:
                if wished is not None:
                    logger.info("%s", plan.why)
                row.yields_to = wished
                await self._deployments.note(row.submission_id, yields_to=wished)
        self._deployments.learn_yielding(rows)

    async def _make_room(
        self, rows: list[DeploymentRow], usage: dict[str, DeploymentUsage], plan: WorthPlan
    ) -> bool:
        """Put those to sleep that make room and are quiet, and wake the one for which they do. Return whether they sleep now."""
        by_id = {row.submission_id: row for row in rows}
        leaving = [by_id[name] for name in plan.yields]
        unused_since = self._clock.now() - timedelta(seconds=self._budget.quiet_s)
        if not leaving or any(
            last_used(row) > unused_since or usage[row.owner].open_streams for row in leaving
        ):
            return False
        slept = [
            await self._deployments.put_to_sleep(row.submission_id, unused_since) for row in leaving
        ]
        if not all(slept):
            return any(slept)
        for name in set(plan.yields.values()):
            logger.info("%s sleeps, %s wakes", ", ".join(sorted(plan.yields)), name)
            await self._deployments.wake(name)
        return True

    async def _take_over(self, rows: list[DeploymentRow], worth: WorthPlan) -> list[DeploymentRow]:
        """Give those that wait for room the servers of their shape that nobody needs, and return what is so afterwards."""
        for row in [row for row in rows if row.phase in ROUSED]:
            donor = await self._idle.find_for(
                row, rows, await self._deployments.spares.list(), worth.rank
            )
            if donor is None:
                continue
            if await self._deployments.take_server(row.submission_id, donor.engine):
                logger.info("%s takes over the server of %s", row.submission_id, donor.engine)
            rows = await self._deployments.list_wishes()
        return rows

    def _claims(
        self,
        rows: list[DeploymentRow],
        usage: dict[str, DeploymentUsage],
        worth: WorthPlan,
        running: Collection[str],
    ) -> Iterable[Claim]:
        awake = awake_of(rows)
        to_warm = below_floor(rows, usage, self._awake_floor())
        for row in rows:
            known = usage.get(row.owner, DeploymentUsage())
            is_asleep = row.phase is Phase.SLEEPING
            is_patient = is_asleep and not known.is_reward
            needs_ratings = known.ownership.is_open and not is_rated(known, self._feedback_target)
            is_missed = known.is_needed(awake) if known.is_reward else needs_ratings
            is_missed = is_missed or row.submission_id in (to_warm | worth.wanted)
            if row.phase in ASKING and (is_missed or not is_asleep):
                yield Claim(
                    row.submission_id,
                    known.ownership.owner,
                    room_of(row),
                    row.updated_at,
                    is_patient,
                    worth.rate(row.submission_id),
                    Room(row.gpu_count, 1)
                    if deployment_name(row.server_key) in running
                    else Room(),
                )

    async def _carry_out(self, plan: RoomPlan, each: list[DeploymentRow]) -> None:
        rows = {row.submission_id: row for row in each}
        by_name = users_by_engine(row for row in each if row.phase.has_server)
        unused_since = self._clock.now() - timedelta(seconds=self._budget.quiet_s)
        for victim in plan.victims:
            for user in by_name[deployment_name(rows[victim].server_key)]:
                if await self._deployments.put_to_sleep(user.submission_id, unused_since):
                    logger.info("%s is put to sleep: its room is needed", user.submission_id)
        for submission_id, why in plan.waits.items():
            for row in _woken_with(rows[submission_id], each):
                if row.waits_for != why:
                    logger.info("%s waits for room: %s", row.submission_id, why)
                    await self._deployments.note(row.submission_id, waits_for=why)
        for submission_id in plan.granted:
            if self._pace.allows(submission_id):
                for row in _woken_with(rows[submission_id], each):
                    await self._grant(row)

    async def _grant(self, row: DeploymentRow) -> None:
        """Give it its room. A new deployment is started by its pipeline stage, one that wakes by the reconciler."""
        logger.info("%s has room: it was %s", row.submission_id, row.phase)
        to_phase = Phase.STARTING if row.phase is Phase.WAITING else Phase.RESTARTING
        await self._deployments.admit(row.submission_id, row.phase, to_phase)


def surplus(
    rows: Sequence[DeploymentRow],
    idle: Sequence[IdleServer],
    useful: Sequence[IdleServer],
    running: Set[str],
    plan: RoomPlan,
    budget: Budget,
    most: int,
    rank: Rank,
) -> frozenset[str]:
    """Return the names of the running servers without users that are to stop: all but ``most`` of the useful ones, those of the highest rank, that the budget has room for.

    A server whose deployments all sleep, or wait for room after a wake, may stay. One that is promised room uses its own.
    """
    unused = {
        name
        for name, users in users_by_engine(rows).items()
        if name in running
        and not any(row.phase.has_server or row.submission_id in plan.promised for row in users)
    }
    unused.update(server.name for server in idle if server.spare and server.name in running)
    kept, taken = set[str](), plan.taken
    for server in sorted(useful, key=rank, reverse=True):
        with_it = taken + Room(server.gpu_count, 1)
        if server.name in unused and len(kept) < most and budget.holds(with_it):
            kept.add(server.name)
            taken = with_it
    return frozenset(unused - kept)


def _leaving(
    rows: Iterable[DeploymentRow], spares: Iterable[EngineRow], running: Iterable[str]
) -> Room:
    """Return the room of servers that run and that no deployment should have."""
    by_name = users_by_engine(rows)
    gpus = {deployment_name(one.id): one.spare.gpu_count for one in spares if one.spare}
    leaving = Room()
    for name in running:
        users = by_name.get(name, [])
        if not any(row.phase.has_server for row in users):
            leaving += Room(max((row.gpu_count for row in users), default=gpus.get(name, 1)), 1)
    return leaving


def _weighed(
    tenants: Iterable[Tenant], rows: Iterable[DeploymentRow], plan: WorthPlan
) -> list[Tenant]:
    """Give each tenant the worth of the best deployment on its engine."""
    best: defaultdict[str, float] = defaultdict(float)
    keys = {row.submission_id: row.server_key for row in rows}
    for name, key in keys.items():
        best[key] = max(best[key], plan.rate(name))
    return [replace(tenant, worth=best[keys[tenant.submission_id]]) for tenant in tenants]


def _one_an_engine(
    claims: Iterable[Claim], rows: Mapping[str, DeploymentRow], having: Set[str]
) -> list[Claim]:
    """Leave out the claims for engines that have room, and all but the most urgent claim for one that has none."""
    found: dict[str, Claim] = {}
    for claim in sorted(claims, key=lambda claim: (claim.is_patient, claim.since)):
        engine = rows[claim.submission_id].server_key
        if engine not in having:
            found.setdefault(engine, claim)
    return list(found.values())


def _woken_with(claimant: DeploymentRow, rows: Iterable[DeploymentRow]) -> list[DeploymentRow]:
    """Return a deployment that asked for room, and those of its engine that wait for it too."""
    engine = claimant.server_key
    also = [row for row in rows if row.server_key == engine and row.phase in ROUSED]
    return also if claimant in also else [claimant, *also]


def users_by_engine(rows: Iterable[DeploymentRow]) -> dict[str, list[DeploymentRow]]:
    """Group the deployments by the name of their engine on the cluster."""
    found: defaultdict[str, list[DeploymentRow]] = defaultdict(list)
    for row in rows:
        found[deployment_name(row.server_key)].append(row)
    return dict(found)


def room_of(row: DeploymentRow) -> Room:
    return Room(row.gpu_count * row.wanted_replicas, row.wanted_replicas)


def awake_of(rows: Iterable[DeploymentRow]) -> frozenset[str]:
    return frozenset(row.submission_id for row in rows if row.phase.has_server)


def last_used(row: DeploymentRow) -> datetime:
    return row.last_traffic_at or row.updated_at


def below_floor(
    rows: Iterable[DeploymentRow], usage: dict[str, DeploymentUsage], floor: int
) -> frozenset[str]:
    """Return the submissions that sleep although too few are awake: the latest used, as many as are missing."""
    chats = [
        row
        for row in rows
        if (known := usage.get(row.owner)) is not None
        and known.ownership.is_open
        and not known.is_reward
        and not row.is_beside
    ]
    asleep = sorted(
        (row for row in chats if row.phase is Phase.SLEEPING), key=last_used, reverse=True
    )
    missing = floor - (len(chats) - len(asleep))
    return frozenset(row.submission_id for row in asleep[: max(0, missing)])


def tenants_of(
    rows: Iterable[DeploymentRow], usage: dict[str, DeploymentUsage], feedback_target: int
) -> list[Tenant]:
    """Return the deployments that have room, one for each engine. A reward model may not go while a deployment that works with it stays."""
    having = [row for row in rows if row.phase.has_server]
    awake = awake_of(having)
    return [
        _tenant_of_all([_tenant(row, usage, feedback_target, awake) for row in users])
        for users in users_by_engine(having).values()
    ]


def _tenant_of_all(users: list[Tenant]) -> Tenant:
    """Return one tenant for those that share an engine: it may go when each of them may, and counts for the first."""
    first = min(users, key=lambda user: user.submission_id)
    used_at = [user.used_at for user in users if user.used_at is not None]
    return replace(
        first,
        room=max((user.room for user in users), key=lambda room: (room.servers, room.gpus)),
        used_at=max(used_at) if len(used_at) == len(users) else None,
        open_streams=sum(user.open_streams for user in users),
        is_rated=all(user.is_rated for user in users),
    )


def _tenant(
    row: DeploymentRow, usage: dict[str, DeploymentUsage], feedback_target: int, awake: Set[str]
) -> Tenant:
    known = usage.get(row.owner, DeploymentUsage())
    may_go = (
        row.phase is Phase.READY
        and known.ownership.is_published
        and not known.is_needed(awake)
        and not row.is_beside
    )
    return Tenant(
        row.submission_id,
        known.ownership.owner,
        room_of(row),
        max(row.updated_at, row.last_traffic_at or row.updated_at) if may_go else None,
        known.open_streams,
        is_rated(known, feedback_target),
    )


def is_rated(usage: DeploymentUsage, feedback_target: int) -> bool:
    """Tell whether a deployment has the ratings that it was served for; a reward model is not rated, and counts as done."""
    if usage.is_reward:
        return feedback_target > 0
    return 0 < feedback_target <= usage.feedback
