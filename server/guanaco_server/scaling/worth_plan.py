"""Decides by worth (worth.py) who of a full budget makes room, and for whom; used where ``sleep_policy`` is ``worth``.

One deployment at a time makes room:

    for one that waits for room (a new one, or one whose conversation goes on), the one that is worth least
    otherwise for the one that sleeps and is worth clearly more, its waking counted

For one that waits, a developer who has more than an equal share of the budget makes room first. No developer loses the last engine to one who has more than
an equal share then (budget.py).

It takes no new conversations while another has room (routing/service.py), and sleeps when it was quiet for ``preempt_quiet_s``, which
counts as part of the change's cost. A server stays at least as long as its last waking took, and as HEARD ratings take, an hour at most.

The time that a rating takes of a server is measured for each submission (rating_costs.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from guanaco_server.deployments.engines.assignment import by_engine
from guanaco_server.deployments.engines.swaps import IdleServer
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime import threads
from guanaco_server.runtime.clock import Clock
from guanaco_server.scaling.budget import Budget, BudgetShares, Room, shares_of
from guanaco_server.scaling.duel_worth import worths_by_duels
from guanaco_server.scaling.rating_costs import RatingPace, RatingTokens
from guanaco_server.scaling.usage import DeploymentUsage
from guanaco_server.scaling.worth import HEARD, NOTHING, Contender, Race, Worth, best_change, worths

ReadRaces = Callable[[], Awaitable[Sequence[Race]]]

USUAL_WAKE_S = 60.0
LONGEST_STAY_S = 3_600.0


@dataclass(frozen=True)
class WorthPlan:
    """``yields`` says for whom each deployment makes room: one engine's at most. ``why`` says it in a sentence.

    ``wanted`` sleep, and are worth free room.
    """

    worth: Mapping[str, Worth] = field(default_factory=dict)
    yields: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    wanted: frozenset[str] = frozenset()

    def rate(self, submission_id: str) -> float:
        """Return what a second of a GPU is worth with this deployment; 0 where nothing is known of it."""
        return self.worth.get(submission_id, NOTHING).rate

    def rank(self, server: IdleServer) -> tuple[float, ...]:
        """Rank servers that nobody uses: by the best worth of their deployments, then by their last use. The lowest goes first."""
        best = max((self.rate(user.submission_id) for user in server.users), default=0.0)
        return best, server.used_at


@dataclass(frozen=True)
class Servers:
    """The rows of all deployments, and how they are used."""

    rows: Sequence[DeploymentRow]
    usage: Mapping[str, DeploymentUsage]

    @property
    def awake(self) -> dict[str, list[DeploymentRow]]:
        """The deployments that have a server, by engine."""
        return by_engine(row for row in self.rows if row.phase.has_server)

    def is_chat(self, row: DeploymentRow) -> bool:
        known = self.usage.get(row.owner)
        return (
            known is not None
            and known.ownership.is_open
            and not known.is_reward
            and not row.is_beside
        )

    def owner_of(self, row: DeploymentRow) -> str:
        """Return the developer."""
        known = self.usage.get(row.owner)
        return known.ownership.owner if known else ""

    def shares(self, budget: Budget, claimants: Set[str]) -> BudgetShares:
        """Return what each developer has, an engine that is shared counting for the first, beside those of the claimants."""
        held = [(self.owner_of(users[0]), _room_of_all(users)) for users in self.awake.values()]
        asking = {self.owner_of(row) for row in self.rows if row.submission_id in claimants}
        return shares_of(budget, held, asking)

    def room(self) -> Room:
        return sum((_room_of_all(users) for users in self.awake.values()), Room())


class WorthPlanner:
    """Plans once every ``interval_s``. ``read_races`` gives the running competitions."""

    def __init__(
        self,
        clock: Clock,
        read_races: ReadRaces,
        budget: Budget,
        longest_sleep_s: float,
        interval_s: float,
    ) -> None:
        self._clock = clock
        self._read_races = read_races
        self._budget = budget
        self._longest_sleep = timedelta(seconds=longest_sleep_s)
        self._interval = timedelta(seconds=interval_s)
        self._pace = RatingPace()
        self._tokens = RatingTokens()
        self._planned_at: datetime | None = None
        self._worth: dict[str, Worth] = {}

    async def plan(
        self, rows: Sequence[DeploymentRow], usage: Mapping[str, DeploymentUsage]
    ) -> WorthPlan:
        """Return the worth of each, and who makes room now."""
        if not self._budget.is_limited:
            return WorthPlan()
        servers, now = Servers(rows, usage), self._clock.now()
        if self._planned_at is None or now - self._planned_at >= self._interval:
            self._planned_at = now
            await self._weigh(servers, now)
        return self._decide(servers, now)

    async def _weigh(self, servers: Servers, now: datetime) -> None:
        races = await self._read_races()
        ratings = sum(race.ratings for race in races)
        self._pace.note(now, ratings, len(servers.awake))
        self._tokens.note(_used_tokens(servers.rows), _ratings(races))
        chats = [row for row in servers.rows if servers.is_chat(row)]
        found: dict[str, Worth] = {}
        for race in races:
            contenders = [
                self._contender(row, race, now) for row in chats if row.owner in race.votes
            ]
            weighed = await threads.SCALING.run(_weighed, contenders, race)
            for name, worth in weighed.items():
                if worth.rate > found.get(name, NOTHING).rate:
                    found[name] = worth
        self._worth = found

    def _contender(self, row: DeploymentRow, race: Race, now: datetime) -> Contender:
        is_asleep = row.phase is Phase.SLEEPING
        return Contender(
            row.submission_id,
            race.votes[row.owner],
            is_awake=not is_asleep,
            wake_s=wake_s(row) + self._budget.quiet_s,
            rating_s=self._rating_s(row),
            gpus=max(1, row.gpu_count),
            is_due=is_asleep and now - row.updated_at >= self._longest_sleep,
            owner=row.owner,
        )

    def _rating_s(self, row: DeploymentRow) -> float:
        """Return how many seconds of a server a rating of this one takes, by its tokens."""
        return self._pace.rating_s * self._tokens.relative(row.owner)

    def _decide(self, servers: Servers, now: datetime) -> WorthPlan:
        movable = {
            users[0].submission_id: users
            for users in servers.awake.values()
            if all(self._may_go(row, servers, now) for row in users)
        }
        worth = {**self._worth, **{name: self._best(users) for name, users in movable.items()}}
        chosen = self._change(servers, movable, worth)
        if chosen is None:
            return WorthPlan(self._worth, wanted=self._wanted(servers, now))
        first, last = chosen
        yields = {row.submission_id: first for row in movable[last]}
        return WorthPlan(self._worth, yields, _why(worth, first, last))

    def _change(
        self,
        servers: Servers,
        movable: Mapping[str, Sequence[DeploymentRow]],
        worth: Mapping[str, Worth],
    ) -> tuple[str, str] | None:
        """Return who is to have a server, and who of least worth makes room that is enough for it. Waiting submissions come before worth."""
        by_id = {row.submission_id: row for row in servers.rows}
        waiting = self._first_waiting(servers)
        claimants = self._asleep(servers) if waiting is None else {waiting.submission_id}
        taken, shares = servers.room(), servers.shares(self._budget, claimants)

        def turn(name: str) -> tuple[bool, float, str]:
            owner, rate = servers.owner_of(by_id[name]), worth.get(name, NOTHING).rate
            return waiting is not None and not shares.exceeds(owner), rate, name

        for last in sorted(movable, key=turn):
            left, owner = taken - _room_of_all(movable[last]), servers.owner_of(by_id[last])
            fitting = {
                name
                for name in claimants
                if self._needs(by_id[name], taken, left)
                and shares.may_take(servers.owner_of(by_id[name]), _room(by_id[name]), owner)
            }
            if waiting is not None and fitting:
                return waiting.submission_id, last
            if waiting is None and (change := best_change(worth, [last], fitting)):
                return change
        return None

    def _needs(self, row: DeploymentRow, taken: Room, left: Room) -> bool:
        """Tell whether there is room for it in what is ``left``, and not before. Free room is given by admission."""
        room = _room(row)
        return not self._budget.holds(taken + room) and self._budget.holds(left + room)

    def _may_go(self, row: DeploymentRow, servers: Servers, now: datetime) -> bool:
        stay_s = max(wake_s(row), min(HEARD * self._rating_s(row), LONGEST_STAY_S))
        is_settled = row.phase is Phase.READY and now - row.updated_at >= timedelta(seconds=stay_s)
        return is_settled and servers.is_chat(row)

    def _best(self, users: Sequence[DeploymentRow]) -> Worth:
        """Return the worth of an engine: that of the best one on it."""
        known = (self._worth.get(row.submission_id, NOTHING) for row in users)
        return max(known, key=lambda worth: worth.rate)

    def _wanted(self, servers: Servers, now: datetime) -> frozenset[str]:
        """Return those that sleep and are worth something, while users talk: else nobody would rate them."""
        since = now - timedelta(seconds=self._budget.quiet_s)
        chats = (row for users in servers.awake.values() for row in users if servers.is_chat(row))
        if not any(row.last_traffic_at and row.last_traffic_at > since for row in chats):
            return frozenset()
        return frozenset(
            name for name in self._asleep(servers) if self._worth.get(name, NOTHING).rate > 0
        )

    def _first_waiting(self, servers: Servers) -> DeploymentRow | None:
        awake = servers.awake
        asking = (Phase.WAITING, Phase.WAKING)
        return min(
            (
                row
                for row in servers.rows
                if row.phase in asking
                and row.server_key not in awake
                and self._budget.holds(_room(row))
            ),
            key=lambda row: (row.updated_at, row.submission_id),
            default=None,
        )

    def _asleep(self, servers: Servers) -> Set[str]:
        awake = servers.awake
        return {
            row.submission_id
            for row in servers.rows
            if row.phase is Phase.SLEEPING and servers.is_chat(row) and row.server_key not in awake
        }


def wake_s(row: DeploymentRow) -> float:
    """Return how long waking it takes: as its last start or swap took."""
    known = row.wake_s if row.wake_s is not None else row.start_s
    return USUAL_WAKE_S if known is None else known


def _room(row: DeploymentRow) -> Room:
    return Room(row.gpu_count * row.wanted_replicas, row.wanted_replicas)


def _room_of_all(users: Sequence[DeploymentRow]) -> Room:
    """Return the room of an engine."""
    return _room(max(users, key=lambda row: row.gpu_count))


def _used_tokens(rows: Sequence[DeploymentRow]) -> dict[str, float]:
    """Return the tokens that each submission has used, a version beside it included."""
    found = defaultdict[str, float](float)
    for row in rows:
        found[row.owner] += row.used_tokens or 0.0
    return found


def _ratings(races: Sequence[Race]) -> Counter[str]:
    """Return how many ratings, or duels, each submission has in all races."""
    found = Counter[str]()
    for race in races:
        found.update(race.heard())
    return found


def _weighed(contenders: Sequence[Contender], race: Race) -> dict[str, Worth]:
    if race.duels is not None:
        return worths_by_duels(contenders, race.duels, race.margin)
    return worths(contenders, race.margin, members=race.members)


def _why(worth: Mapping[str, Worth], first: str, last: str) -> str:
    ours, theirs = worth.get(first, NOTHING), worth.get(last, NOTHING)
    if ours.rate <= theirs.rate:
        return f"{last} makes room for {first}, which waits for it: it is worth least"
    return (
        f"{last} makes room for {first}: an hour of it is worth {theirs.rate * 3600:.2f} for the verdict, "
        f"and one of {first} {ours.rate * 3600:.2f} with {ours.ratings} ratings, its waking counted"
    )
