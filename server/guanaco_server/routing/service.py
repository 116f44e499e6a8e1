"""Decides in memory which submission a conversation talks to, from a snapshot of what is published and its endpoints."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import AskRule, Competition, MemoryRule
from guanaco.errors import ModelUnavailable, NoModelAvailable
from guanaco.submissions import Status
from guanaco_server.competitions.entry import admitted
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.commits import LOOK_ANYWAY_S, CommitWatch
from guanaco_server.deployments.beside import VersionsBeside
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.versions import ConversationStart
from guanaco_server.routing import queries
from guanaco_server.routing.occupancy import Occupancy
from guanaco_server.routing.policies.duelling import Duelling, duelling
from guanaco_server.routing.policies.posterior import Posterior
from guanaco_server.routing.snapshot import (
    DecisionRecord,
    Pool,
    RivalRecord,
    Snapshot,
    Votes,
    choose_rival,
    policy_of,
    take,
)
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock
from guanaco_server.scaling.sleep import SleepService
from guanaco_server.scaling.usage import TrafficRecorder
from guanaco_server.statistics.duel_decisions import COUNTED_PER_USER
from guanaco_server.statistics.duel_strengths import PairCounts
from guanaco_server.submissions.catalog import ServingSubmission
from guanaco_server.submissions.rollouts.canaries import CanaryRecorder, ComparedConversation
from guanaco_server.submissions.service import SubmissionService

DUELS_S = 5.0  # between two plans of a competition's duels, at least
DUELS_SHARE = 20  # so many times as long as the reading took, at least
NOBODY: Mapping[str, int] = {}
REFRESH_S = 1.0  # how old a rating's count may be; statuses come at once
AGE_S = 5.0  # without commits: well within http/health.py's STALE_S

MOST_TRIES = 8  # submissions by the rule that a persona may not fit, and then as many of those with the most room

Fits = Callable[[ServingSubmission], Awaitable[bool]]
CountVotes = Callable[[], Awaitable[Mapping[str, Mapping[str, Votes]]]]
CountDuels = Callable[[str], Awaitable[PairCounts]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LiveSubmission:
    """A published submission; ``endpoints`` are those of its replicas that are ready, empty while there is none.

    ``version`` is the key of the deployment that they belong to: while a redeploy shifts there are two. ``model`` is the
    name by which they know its model. ``compared`` notes how the reply goes, for a canary.
    """

    serving: ServingSubmission
    version: str
    model: str
    endpoints: tuple[str, ...]
    compared: ComparedConversation | None = None


@dataclass(frozen=True)
class Assigned:
    """A submission for a new conversation; ``pool`` and ``decision`` where its competition has a seed."""

    live: LiveSubmission
    pool: Pool | None = None
    decision: DecisionRecord | None = None

    @property
    def submission_id(self) -> str:
        return self.live.serving.id


class RoutingService:
    def __init__(
        self,
        clock: Clock,
        submissions: SubmissionService,
        deployments: DeploymentService,
        versions: VersionsBeside,
        competitions: CompetitionService,
        count_votes: CountVotes,
        count_duels: CountDuels,
        occupancy: Occupancy,
        traffic: TrafficRecorder,
        sleep_service: SleepService,
        canaries: CanaryRecorder,
        commits: CommitWatch,
    ) -> None:
        """``count_votes`` gives the votes by competition and submission, ``count_duels`` a competition's duels by pair."""
        self._clock = clock
        self._submissions = submissions
        self._deployments = deployments
        self._versions = versions
        self._competitions = competitions
        self._count_votes = count_votes
        self._count_duels = count_duels
        self._occupancy = occupancy
        self._traffic = traffic
        self._sleep_service = sleep_service
        self._canaries = canaries
        self._commits = commits
        self._serving: dict[str, ServingSubmission] = {}
        self._votes: Mapping[str, Mapping[str, Votes]] = {}
        self._rules: dict[str, Competition] = {}
        self._pools: dict[str, Pool] = {}
        self._duels: dict[str, PairCounts] = {}
        self._count_again_at: dict[str, float] = {}
        self._uniform: set[str] = set()  # competitions whose rule only a newer version knows
        self._posterior = Posterior()
        self._seed = secrets.randbits(63)  # of the competitions that have none
        self._refreshed_at = self._looked_for_sleepers_at = float("-inf")
        self._looking = asyncio.Lock()
        self._read_at = float("-inf")
        self._background = Background("routing snapshot")

    async def start(self) -> None:
        await self.refresh()
        self._background.start(self._keep_fresh())

    async def stop(self) -> None:
        await self._background.stop()

    def note_change(self) -> None:
        """Something was published or withdrawn: look at once."""
        self._commits.wake()

    def age_s(self) -> float:
        """Return how old the snapshot is."""
        return time.monotonic() - self._refreshed_at

    async def refresh(self) -> None:
        now = time.monotonic()
        await self._write_counts()
        await self._deployments.refresh_endpoints()
        await self._versions.refresh()
        serving = await self._submissions.catalog.list_serving()
        await self._occupancy.refresh({one.id: one.params.candidate_count for one in serving})
        competitions = await self._competitions.list_running()
        self._votes = await self._count_votes()
        self._serving = {submission.id: submission for submission in serving}
        for competition in competitions:
            await self._read_duels(competition)
            await self._prepare(competition)
        running = {competition.id for competition in competitions}
        for ended in self._rules.keys() - running:
            del self._rules[ended], self._pools[ended]
            self._duels.pop(ended, None)
        self._refreshed_at = self._read_at = now

    async def _read_duels(self, competition: Competition) -> None:
        """Count them again where they settle who is best, and enough time has passed."""
        began = time.monotonic()
        if not competition.is_settled_by_duels:
            self._duels.pop(competition.id, None)
        elif competition.id not in self._duels or began >= self._count_again_at[competition.id]:
            self._duels[competition.id] = await self._count_duels(competition.id)
            took_s = time.monotonic() - began
            self._count_again_at[competition.id] = began + max(DUELS_S, DUELS_SHARE * took_s)

    async def _write_counts(self) -> None:
        await self._traffic.write()
        await self._canaries.write()

    async def _follow(self, has_changed: bool) -> None:
        """Refresh where anything was committed; otherwise the snapshot is as good as a new one."""
        now = time.monotonic()
        await self._write_counts()
        if has_changed or now - self._read_at >= LOOK_ANYWAY_S:
            await self.refresh()
        else:
            self._refreshed_at = now

    def live(self) -> list[LiveSubmission]:
        """Return what takes conversations now, ready or asleep, in no order."""
        return [self._live(serving) for serving in self._serving.values() if _takes(serving)]

    async def assign(
        self,
        competition: Competition,
        seen: Sequence[str] = (),
        key: str = "",
        fits: Fits | None = None,
    ) -> Assigned:
        """Return a submission for a new conversation; NoModelAvailable when none takes it.

        One that is at capacity is not chosen while another has room. When all that are awake are at capacity, one that sleeps
        is woken for the next ones; when none is awake, it is chosen at once.
        ``seen`` are those that the user had, least recently had first; ``key`` is the conversation's id. One that it does
        not fit, by ``fits``, is not chosen at all.
        """
        pool = await self._pool(competition)
        if not any(map(self._deployments.replicas, pool.snapshot.ids)):
            await self._look_again()
            pool = await self._pool(competition)
        key = key or secrets.token_hex()
        chosen = await self._choose_fitting(pool, seen, key, self.choose, fits)
        if chosen is None:
            asleep = await self._asleep(competition)
            chosen = await self._choose_fitting(asleep, seen, key, self._choose, fits)
            if chosen is None:
                raise NoModelAvailable
            await self._sleep_service.request_wake(chosen.submission_id)
        elif chosen.submission_id in self._occupancy.full:
            await self._wake_another(competition, fits)
        self._traffic.note(chosen.submission_id)
        return chosen

    async def _wake_another(self, competition: Competition, fits: Fits | None) -> None:
        """Have one that sleeps woken, unless one is waking already. Scaling decides whether it gets room."""
        now = time.monotonic()
        if now < self._looked_for_sleepers_at + REFRESH_S:
            return
        self._looked_for_sleepers_at = now
        asleep = await self._asleep(competition)
        if asleep.snapshot.ids & await self._sleep_service.waking():
            return
        chosen = await self._choose_fitting(asleep, (), secrets.token_hex(), self._choose, fits)
        if chosen is not None:
            await self._sleep_service.request_wake(chosen.submission_id)

    async def _choose_fitting(
        self,
        pool: Pool,
        seen: Sequence[str],
        key: str,
        choose: Callable[[Pool, Sequence[str], str, Set[str]], Assigned | None],
        fits: Fits | None,
    ) -> Assigned | None:
        barred: frozenset[str] = frozenset()
        for number in range(2 * MOST_TRIES):
            chosen = choose(pool, seen, key, barred)
            if chosen is None or fits is None or await fits(chosen.live.serving):
                return chosen
            barred |= self._same_limits(pool, chosen.live.serving)
            if number == MOST_TRIES - 1:
                barred |= self._small(pool, barred)
        return None

    def _same_limits(self, pool: Pool, serving: ServingSubmission) -> frozenset[str]:
        """Return those of the pool that refuse whatever this one refuses."""
        others = (self._serving[name] for name in pool.snapshot.ids if name in self._serving)
        return frozenset(other.id for other in others if _fit_key(other) == _fit_key(serving))

    def _small(self, pool: Pool, barred: Set[str]) -> frozenset[str]:
        """Return all but the few that are given the most tokens."""
        left = [self._serving[name] for name in pool.snapshot.ids - barred if name in self._serving]
        left.sort(key=lambda one: one.params.max_input_tokens)
        return frozenset(one.id for one in left[:-MOST_TRIES])

    def choose(
        self, pool: Pool, seen: Sequence[str], key: str, barred: Set[str] = frozenset()
    ) -> Assigned | None:
        """Return the decision itself: in memory, at once. Return None if no model of the pool is awake."""
        full = self._occupancy.full | self._deployments.yielding
        if full and (roomy := self._choose(pool, seen, key, barred | full, self._is_open)):
            return roomy
        return self._choose(pool, seen, key, barred, self._is_open)

    def _choose(
        self,
        pool: Pool,
        seen: Sequence[str],
        key: str,
        barred: Set[str],
        may_have: Callable[[str], bool] | None = None,
    ) -> Assigned | None:
        rule = pool.snapshot.rule
        seed = self._seed if rule.seed is None else rule.seed
        may_have = may_have or self._serving.__contains__
        if (
            rule.seed is not None
        ):  # all that is closed is recorded, so that the chances can be computed again
            closed = {name for name in pool.snapshot.ids if not may_have(name)}
            barred = barred | closed if closed else barred
        chosen = pool.choose(seed, key, seen, barred)
        while chosen is not None and not may_have(chosen):  # since the snapshot was taken
            barred = barred | {chosen}
            chosen = pool.choose(seed, key, seen, barred)
        if chosen is None:
            return None
        assigned = Assigned(self._live(self._serving[chosen]))
        if rule.seed is not None and not rule.kind.is_unknown:
            decision = _decision(pool, seed, key, seen, barred)
            assigned = replace(assigned, pool=pool, decision=decision)
        return assigned

    async def _asleep(self, competition: Competition) -> Pool:
        """Return the submissions that sleep or wake, with the competition's rule."""
        asleep = await self._sleep_service.asleep()
        sleeping = [one for one in self._serving.values() if one.id in asleep and _takes(one)]
        entrants = admitted(competition, sleeping)
        snapshot = take(competition.assignment, entrants, self._votes.get(competition.id, {}))
        return Pool(snapshot, await policy_of(snapshot, self._posterior))

    def assign_to(self, submission_id: str) -> Assigned:
        """Assign this submission, whatever the rule says. Raises NoModelAvailable if it cannot."""
        if not self._is_open(submission_id):
            raise NoModelAvailable
        self._traffic.note(submission_id)
        return Assigned(self._live(self._serving[submission_id]))

    async def assign_chosen(self, submission_id: str, fits: Fits) -> Assigned:
        """Assign the submission that an app has chosen; one that sleeps is woken. NoModelAvailable if it cannot, or does not fit."""
        if submission_id not in self._serving:
            await self._look_again()
        serving = self._serving.get(submission_id)
        if serving is None or not _takes(serving) or not await fits(serving):
            raise NoModelAvailable
        await self._sleep_service.request_wake(submission_id)
        self._traffic.note(submission_id)
        return Assigned(self._live(serving))

    def asks_for_feedback(self, competition_id: str, questions: int) -> bool:
        """Return whether a running competition asks for the user's opinion after the reply to this many messages."""
        rules = self._rules.get(competition_id)
        return rules is not None and rules.feedback_after == questions

    def ask_rule(self, competition_id: str, questions: int) -> tuple[AskRule, int | None] | None:
        """Return the rule and the seed by which it is drawn whether to ask after the reply to this many messages; None where nothing is drawn."""
        rules = self._rules.get(competition_id)
        if rules is None or rules.ask is None or rules.ask.after != questions:
            return None
        return rules.ask, rules.assignment.seed

    def knows_running(self, competition_id: str) -> bool:
        """Return whether a competition runs, by the last snapshot."""
        return competition_id in self._rules

    def has_battles(self, competition_id: str) -> bool:
        """Return whether a running competition lets two submissions answer one message."""
        rules = self._rules.get(competition_id)
        return rules is not None and rules.duels.battles

    def compared_regenerations(self, competition_id: str) -> float:
        """Return the share of regenerations that a running competition compares, where an app allows it."""
        rules = self._rules.get(competition_id)
        return 0.0 if rules is None else rules.duels.regenerations

    def memory_rule(self, competition_id: str) -> MemoryRule:
        """Return what a running competition says of its conversations' memory."""
        rules = self._rules.get(competition_id)
        return MemoryRule() if rules is None else rules.memory

    def rival(
        self, competition_id: str, own: str, key: str, met: Mapping[str, int] = NOBODY
    ) -> Assigned | None:
        """Choose another submission that answers beside ``own``, by the competition's rule. It must be awake: None while no other is.

        Args:
            competition_id: The competition of the conversation.
            own: The conversation's submission.
            key: The battle's id.
            met: The user's duels between ``own`` and each other submission; where these no longer count, others are preferred.
        """
        pool = self._pools.get(competition_id)
        if pool is None:
            return None
        rule, ids = pool.snapshot.rule, pool.snapshot.ids
        closed = {name for name in ids if not self._is_open(name)}
        full = closed | ((self._occupancy.full | self._deployments.yielding) & ids)
        for barred in (full, closed):
            decision = RivalRecord(
                snapshot=pool.snapshot.digest if rule.seed is not None else "",
                seed=self._seed if rule.seed is None else rule.seed,
                key=key,
                own=own,
                seen=tuple(sorted(met.keys() & ids, key=lambda name: (met[name], name))),
                spent=tuple(sorted(name for name in ids if met.get(name, 0) >= COUNTED_PER_USER)),
                barred=tuple(sorted(barred)),
            )
            chosen = choose_rival(pool, decision)
            if chosen is not None:
                self._traffic.note(chosen)
                assigned = Assigned(self._live(self._serving[chosen]))
                is_recorded = rule.seed is not None and not rule.kind.is_unknown
                return replace(assigned, pool=pool, decision=decision) if is_recorded else assigned
        return None

    def serving(self, submission_id: str) -> ServingSubmission | None:
        """Return a submission that is served, by the last snapshot."""
        return self._serving.get(submission_id)

    def can_take(self, submission_id: str) -> bool:
        """Return whether it is awake and has room now."""
        return self._is_open(submission_id) and self.has_place(submission_id)

    def has_place(self, submission_id: str) -> bool:
        """Return whether it has room, if it is awake."""
        return submission_id not in self._occupancy.full

    def keep_awake(self, submission_ids: Sequence[str]) -> None:
        """Count a conversation that needs all of these submissions as use of each."""
        for submission_id in submission_ids:
            self._traffic.note(submission_id)

    async def wake_together(self, submission_ids: Sequence[str]) -> None:
        """Wake those of these submissions that sleep, for conversations that need all of them. Do nothing while one is not deployed."""
        if not all(map(self._is_deployed, submission_ids)):
            return
        self.keep_awake(submission_ids)
        for submission_id in submission_ids:
            if not self._deployments.replicas(submission_id):
                await self._sleep_service.request_wake(submission_id)

    def _is_deployed(self, submission_id: str) -> bool:
        serving = self._serving.get(submission_id)
        return serving is not None and _takes(serving)

    async def record(self, session: AsyncSession, assigned: Assigned, kept: timedelta) -> None:
        """Store what the decision needs to be replayed, within the caller's transaction, for as long as it is ``kept``."""
        if assigned.pool is not None:
            await queries.keep_snapshot(session, assigned.pool.snapshot, self._clock.now(), kept)

    async def recorded(self, session: AsyncSession, decision: DecisionRecord) -> Snapshot | None:
        """Return what the decision was made of, if it is still kept, within the caller's transaction."""
        return await queries.snapshot(session, decision.snapshot)

    async def target(
        self, submission_id: str, talk: ConversationStart | None = None
    ) -> LiveSubmission:
        """Return the submission of this conversation, and the servers of the version that it talks to, while it is served: also an inactive one, and one that sleeps is woken. Without endpoints while its server is started again; ModelUnavailable otherwise, ModelWaking when waking takes long."""
        if submission_id not in self._serving:
            await self._look_again()
        elif not self._deployments.replicas(submission_id):
            await self._deployments.refresh_endpoints()
        serving = self._serving.get(submission_id)
        if serving is None:
            raise ModelUnavailable(submission_id, is_served=False)
        self._traffic.note(submission_id)
        arm = self._versions.arm_of(submission_id, talk)
        version = self._versions.version_for(submission_id, talk)
        live = LiveSubmission(
            serving,
            version,
            self._deployments.model_name(version),
            self._deployments.replicas(version),
            self._canaries.conversation(arm, talk.id) if arm and talk else None,
        )
        if live.endpoints:
            return live
        endpoints = await self._sleep_service.wake(submission_id)
        return replace(live, endpoints=endpoints, model=self._deployments.model_name(submission_id))

    async def find_again(self, submission_id: str, has_moved: bool) -> tuple[str, ...]:
        """Return where a submission is served when its servers are of no use: they are gone, or ``has_moved`` and they were given another model.

        It is woken if it sleeps, and one that has moved is waited for. ModelWaking if that takes too long.
        """
        if has_moved:  # so what this process knows of it is old
            await self._deployments.read_endpoints(submission_id)
        else:
            await self._deployments.refresh_endpoints()
        found = self._deployments.replicas(submission_id)
        if found or not (has_moved or await self._sleep_service.is_asleep(submission_id)):
            return found
        return await self._sleep_service.wake(submission_id)

    async def _look_again(self) -> None:
        """A snapshot that is begun after now: whoever misses something shares the next one, which is at most a second away."""
        now = time.monotonic()
        async with self._looking:
            if self._refreshed_at < now:
                await asyncio.sleep(REFRESH_S - self.age_s())
            if self._refreshed_at < now:  # by the loop, meanwhile
                await self.refresh()

    async def _pool(self, competition: Competition) -> Pool:
        """Build the pool from these very rules, which may be newer than the snapshot."""
        known = self._rules.get(competition.id)
        if known is not competition and known != competition:
            await self._prepare(competition)
        return self._pools[competition.id]

    async def _prepare(self, competition: Competition) -> None:
        entrants = admitted(
            competition, [one for one in self._serving.values() if self._is_open(one.id)]
        )
        snapshot = take(
            competition.assignment,
            entrants,
            self._votes.get(competition.id, {}),
            self._duelling(competition, entrants),
        )
        pool = self._pools.get(competition.id)
        if pool is None or pool.snapshot != snapshot:
            pool = Pool(snapshot, await policy_of(snapshot, self._posterior))
            if snapshot.rule.kind.is_unknown and competition.id not in self._uniform:
                self._uniform.add(competition.id)
                logger.warning(
                    "competition %s: this version does not know the assignment rule %s and chooses uniformly",
                    competition.id,
                    snapshot.rule.kind,
                )
        self._rules[competition.id], self._pools[competition.id] = competition, pool

    def _duelling(
        self, competition: Competition, entrants: Sequence[ServingSubmission]
    ) -> Duelling | None:
        """Plan the next duels of those that may be duelled with now."""
        rule, counts = competition.assignment, self._duels.get(competition.id)
        names = [one.id for one in entrants if rule.weights.get(one.id, 1.0) > 0]
        if counts is None or len(names) < 2:
            return None
        return duelling(names, counts, rule.within, rule.recency_floor, rule.newest_until)

    def _is_open(self, submission_id: str) -> bool:
        """Return whether new conversations may go there at once."""
        return self._is_deployed(submission_id) and bool(self._deployments.replicas(submission_id))

    def _live(self, serving: ServingSubmission) -> LiveSubmission:
        return LiveSubmission(
            serving,
            serving.id,
            self._deployments.model_name(serving.id),
            self._deployments.replicas(serving.id),
        )

    async def _keep_fresh(self) -> None:
        while True:
            has_changed = await self._commits.wait(REFRESH_S, AGE_S)
            try:
                await self._follow(has_changed)
            except (DBAPIError, OSError) as error:
                self._commits.reset()
                logger.warning("the routing snapshot stays as it was: %s", error)


def _fit_key(serving: ServingSubmission) -> object:
    return serving.artifact_key, serving.formatter, serving.params.max_input_tokens


def _takes(serving: ServingSubmission) -> bool:
    """Return whether new conversations may go there while it has a model server."""
    return serving.status is Status.DEPLOYED and serving.is_understood


def _decision(
    pool: Pool, seed: int, key: str, seen: Sequence[str], barred: Set[str]
) -> DecisionRecord:
    ids = pool.snapshot.ids
    return DecisionRecord(
        snapshot=pool.snapshot.digest,
        seed=seed,
        key=key,
        seen=tuple(name for name in seen if name in ids),
        barred=tuple(sorted(barred & ids)),
    )
