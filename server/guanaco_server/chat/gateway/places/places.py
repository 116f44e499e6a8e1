"""An engine's places: how many sequences its servers generate at once, and who waits for one.

    measured      what the stress checks showed of a replica, times the replicas: shared by all gateway processes
    not measured  ``max_streams`` a replica, in this process alone

Submissions that share an engine share its places: each has its part, and what it does not use the others may. Each version of
a submission that serves has an engine of its own, so the places of a canary are added.
A turn takes as many places as its reply has candidates (one, unless it is the best of several) before a model server is asked,
and gives them back when its reply has ended, however it ends. With more candidates than there are places it takes all of them, and
where several gateways want more than there is, at most the part of its own: so it can always run. Until enough are free
it waits in a fair queue (turn_queue.py), for ``wait_s`` at most. No more wait than can be answered within
that time, as far as the last turns tell; beyond, whoever has the most waiting is refused.

The gateways share in the database (place_shares.py): each holds places until HELD_S from now, and renews them each
BEAT_S. What a gateway held that was killed is free again when that time is over. One that needs more asks at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Self

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import Overloaded
from guanaco_server.chat import queries
from guanaco_server.chat.gateway.places.place_shares import (
    ANY_APP,
    Demand,
    PlaceClaim,
    part_of,
    parts_here,
    places_for,
)
from guanaco_server.chat.gateway.places.turn_queue import Asker, Ticket, TurnQueue
from guanaco_server.chat.tables import GatewayPlacesRow
from guanaco_server.costs.meter import weighted
from guanaco_server.database.commit_order import in_commit_order
from guanaco_server.database.database import Database
from guanaco_server.deployments.versions import submission_of
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock

BEAT_S = 1.0
SHORT_S = 0.2  # between two looks at what the others hold, while turns wait
HELD_S = 5.0
USE_S = 15.0  # between two times that it is written down who used an engine
IDLE_S = 60.0  # an engine that was not used for so long has no places here
ROTATION_S = 2.0  # gateways that are equal otherwise take turns at being first
SMOOTHING = 0.1
MOST_WAITING = 4_096
WAITING_A_PLACE = 16  # while it is not known how long turns take
LONGEST_RETRY_S = 60.0

RecordUse = Callable[[Mapping[str, float], Mapping[str, float]], Awaitable[None]]

CHECKS = Asker("guanaco:checks", "")

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Engine:
    """``granted`` places are this process's until ``granted_until``; with ``has_more`` it would get more if it asked.

    ``is_busy`` says that all gateways together want half of the places, or more.
    """

    key: str
    asked: str  # the deployment that was asked last
    queue: TurnQueue = field(default_factory=TurnQueue)
    turns: dict[Ticket, asyncio.Future[None]] = field(default_factory=dict)
    granted: int = 0
    granted_until: float = float("-inf")
    part: int | None = None  # of the places, for this process; None for all of them
    has_more: bool = True
    is_busy: bool = False
    used_at: float = 0.0
    busy_since: float | None = None  # a turn is under way
    busy_s: float = 0.0  # since that was last written down
    turn_s: float = 0.0  # what turns took lately

    @property
    def wanted(self) -> int:
        return self.queue.in_flight + self.queue.waiting

    def note_busy(self) -> None:
        """Count the time since the last call if a turn was under way then."""
        now = time.monotonic()
        if self.busy_since is not None:
            self.busy_s += now - self.busy_since
        self.busy_since = now if self.queue.in_flight else None


@dataclass(frozen=True)
class _Share:
    """A gateway's part of an engine: ``granted`` places; it ``has_more`` if it would get more, were more wanted."""

    key: str
    mine: PlaceClaim
    granted: int
    part: int | None
    parts: Mapping[tuple[str, ...], float]
    has_more: bool
    is_busy: bool
    has_others: bool

    @classmethod
    def of(cls, key: str, mine: PlaceClaim, others: Sequence[PlaceClaim], capacity: int) -> Self:
        granted = places_for(mine, others, capacity)
        wanted = mine.wanted + sum(claim.wanted for claim in others)
        free = capacity - sum(claim.held for claim in others)
        return cls(
            key=key,
            mine=mine,
            granted=granted,
            part=part_of(mine, others, capacity) if wanted > capacity else None,
            parts=parts_here(mine, others, capacity) if others else {},
            has_more=max(mine.held, granted) < free and wanted <= capacity,  # else it has its part
            is_busy=2 * wanted >= capacity,
            has_others=bool(others),
        )


class TurnPlace:
    """The ``count`` places of one turn, until the end of the ``with`` block."""

    __slots__ = ("_asker", "_engine", "_places", "_since", "count", "waited_s")

    def __init__(
        self, places: TurnPlaces, engine: _Engine, asker: Asker, count: int, waited_s: float
    ) -> None:
        self._places = places
        self._engine = engine
        self._asker = asker
        self.count = count
        self._since = time.monotonic()
        self.waited_s = waited_s

    def __enter__(self) -> Self:
        return self

    def note_tokens(self, computed: int, generated: int) -> None:
        """Count what a reply has used, for the division of its engine's cost."""
        self._places._used[self._asker.key] += weighted(computed, generated)

    def __exit__(self, *_: object) -> None:
        took_s = time.monotonic() - self._since
        self._places._end(self._engine, self._asker, self.count, took_s)


class TurnPlaces:
    """The places of one gateway process."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        metrics: Metrics,
        *,
        engine_of: Callable[[str], str],
        capacity: Callable[[str], int | None],
        replicas: Callable[[str], Sequence[str]],
        record_use: RecordUse,
        max_streams: int,
        wait_s: float,
    ) -> None:
        """``engine_of`` a deployment is the key of its engine; ``capacity`` is what that engine's ready replicas were measured
        to answer at once, None for one that was not measured; ``replicas`` are a deployment's."""
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._engine_of = engine_of
        self._capacity = capacity
        self._replicas = replicas
        self._max_streams = max_streams
        self._wait_s = wait_s
        self._record_use = record_use
        self._used: defaultdict[str, float] = defaultdict(float)
        self._use_written_at = time.monotonic()
        self._gateway = secrets.token_hex(16)
        self._engines: dict[str, _Engine] = {}
        self._crowded: set[str] = set()
        self._lock = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self._background = Background("places")

    async def start(self) -> None:
        self._background.start(self._keep())

    async def stop(self) -> None:
        """Give all places back at once."""
        await self._background.stop()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        with suppress(DBAPIError, OSError):
            await self.write_use()
        with suppress(DBAPIError, OSError):  # then they lapse
            await self._database.write_unit(
                lambda session: queries.drop_places(session, self._gateway)
            )

    def crowded(self) -> set[str]:
        """Return the deployments for which turns wait here."""
        return self._crowded

    def waiting(self, key: str) -> int:
        """Return the places for which turns of this deployment wait here."""
        engine = self._engines.get(self._engine_of(key))
        return engine.queue.waiting_of(key) if engine is not None else 0

    def in_flight(self, key: str) -> int:
        engine = self._engines.get(self._engine_of(key))
        return engine.queue.in_flight_of(key) if engine is not None else 0

    def has_spare(self, key: str) -> bool:
        """Tell whether at most half of the places here are taken, and nobody waits for one."""
        engine = self._engines.get(self._engine_of(key))
        if engine is None:
            return True
        return not engine.queue.waiting and 2 * engine.queue.in_flight <= self._limit(engine)

    def held(self, key: str) -> int | None:
        """Return the places that this process holds at the deployment's engine; None where they are not counted, or less than half of all are wanted."""
        engine = self._engines.get(self._engine_of(key))
        if engine is None or not engine.is_busy or not self._is_measured(engine):
            return None
        return max(engine.granted, engine.queue.in_flight)

    async def take(self, key: str, asker: Asker, candidates: int = 1) -> TurnPlace:
        """Return the places for a turn of this deployment, one for each of its reply's ``candidates``, to be used ``with``. Overloaded when too many wait, or for too long."""
        name, asker = self._engine_of(key), asker._replace(key=key)
        engine = self._engines.get(name)
        if engine is None:
            engine = self._engines[name] = _Engine(name, key)
        engine.asked = key
        waited_s, count = 0.0, candidates
        if count > 1:
            count = min(count, max(1, self._all(engine)))
        if engine.queue.waiting or engine.queue.in_flight + count > self._limit(engine):
            count, waited_s = await self._wait(engine, asker, count)
        else:
            engine.queue.begin(asker, count)
        if engine.busy_since is None:
            engine.note_busy()
        self._metrics.note_turn_wait(waited_s)
        return TurnPlace(self, engine, asker, count, waited_s)

    async def share(self) -> None:
        """Agree with the other gateways on who holds which places from now on."""
        async with self._lock:
            now = time.monotonic()
            measured = [engine for engine in self._engines.values() if self._is_measured(engine)]
            used = [engine for engine in measured if engine.wanted or engine.used_at > now - IDLE_S]
            for engine in set(self._engines.values()) - set(used):
                engine.granted = 0
            self._forget_idle(now)
            if measured:
                await self._share(used)

    def _all(self, engine: _Engine) -> int:
        """Return the places that all gateways share, or those here where none was measured."""
        capacity = self._capacity(engine.key)
        return self._limit(engine) if capacity is None else capacity

    def _limit(self, engine: _Engine) -> int:
        if not self._is_measured(engine):
            return self._max_streams * max(1, len(self._replicas(engine.asked)))
        return engine.granted if time.monotonic() < engine.granted_until else 0

    def _is_measured(self, engine: _Engine) -> bool:
        return self._capacity(engine.key) is not None

    async def _wait(self, engine: _Engine, asker: Asker, places: int) -> tuple[int, float]:
        """Wait for places; return how many it has, and for how long it waited."""
        began = time.monotonic()
        ticket = engine.queue.add(asker, places)
        turn = engine.turns[ticket] = asyncio.get_running_loop().create_future()
        self._note_waiting(engine, asker.key, 1)
        if places > 1:  # its part is not known before the gateways have agreed again
            engine.part = None
        if engine.queue.waiting - (places - 1) > self._most_waiting(engine):
            self._refuse(engine, engine.queue.evict_newest())
        self._give_places(engine)
        self._ask_for_more(engine)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if engine.turns.pop(ticket, None) is not None:
                engine.queue.leave(ticket)
                self._note_waiting(engine, asker.key, -1)
                self._give_places(engine)  # those behind it may need fewer
            elif not turn.cancelled() and turn.exception() is None:  # it came at the very moment
                self._end(engine, asker, ticket.places)
            if isinstance(error, TimeoutError):
                raise self._overloaded(engine) from None
            raise
        return ticket.places, time.monotonic() - began

    def _most_waiting(self, engine: _Engine) -> int:
        """Return for how many places turns may wait: as many as get free within ``wait_s``."""
        capacity = self._capacity(engine.key) or 1
        places = max(1, self._limit(engine) or capacity)
        if not engine.turn_s:
            return min(MOST_WAITING, WAITING_A_PLACE * places)
        return min(MOST_WAITING, max(places, int(places * self._wait_s / engine.turn_s)))

    def _refuse(self, engine: _Engine, ticket: Ticket) -> None:
        turn = engine.turns.pop(ticket)
        self._note_waiting(engine, ticket.asker.key, -1)
        if not turn.done():
            turn.set_exception(self._overloaded(engine))

    def _overloaded(self, engine: _Engine) -> Overloaded:
        """Try again when the turns that wait now have been answered."""
        places = max(1, self._limit(engine))
        answered_s = engine.queue.waiting * engine.turn_s / places
        return Overloaded(
            f"More messages wait for this model than it can answer within {self._wait_s:g} s.",
            retry_after_s=min(LONGEST_RETRY_S, max(Overloaded.retry_after_s, answered_s)),
        )

    def _end(self, engine: _Engine, asker: Asker, places: int, took_s: float | None = None) -> None:
        engine.queue.end(asker, places)
        if not engine.queue.in_flight:
            engine.note_busy()
        engine.used_at = time.monotonic()
        if took_s is not None:
            engine.turn_s += (took_s - engine.turn_s) * (SMOOTHING if engine.turn_s else 1.0)
        self._give_places(engine)

    def _give_places(self, engine: _Engine) -> None:
        """Give the free places to those who wait."""
        queue = engine.queue
        while queue.waiting:
            most = self._all(engine) if engine.part is None else engine.part
            ticket = queue.next(self._limit(engine) - queue.in_flight, most)
            if ticket is None:
                break
            turn = engine.turns.pop(ticket)
            self._note_waiting(engine, ticket.asker.key, -1)
            if turn.done():  # its client has left at this very moment
                queue.end(ticket.asker, ticket.places)
            else:
                turn.set_result(None)
        if engine.queue.waiting and time.monotonic() >= engine.granted_until:
            self._ask_for_more(engine)

    def _note_waiting(self, engine: _Engine, key: str, change: int) -> None:
        self._metrics.note_turns_waiting(submission_of(key), change)
        if engine.queue.waiting_of(key):
            self._crowded.add(key)
        else:
            self._crowded.discard(key)

    def _ask_for_more(self, engine: _Engine) -> None:
        """Ask the other gateways for places where that can help. Otherwise the next beat comes soon enough."""
        if not self._is_measured(engine):
            return
        is_lapsed = time.monotonic() >= engine.granted_until
        is_asking = self._asking is not None and not self._asking.done()
        if (is_lapsed or engine.has_more) and not is_asking:
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        is_short = True
        while is_short:
            await self._share_if_possible()
            is_short = any(
                engine.queue.waiting and engine.has_more and self._is_measured(engine)
                for engine in self._engines.values()
            )

    async def write_use(self) -> None:
        """Write down what was used since the last call; what cannot be written stays for the next one."""
        self._use_written_at = time.monotonic()
        for engine in self._engines.values():
            engine.note_busy()
        busy = {engine.key: engine.busy_s for engine in self._engines.values() if engine.busy_s}
        used = dict(self._used)
        if not busy:
            return
        await self._record_use(used, busy)
        for key, tokens in used.items():
            self._used[key] -= tokens
            if self._used[key] <= 0:
                del self._used[key]
        for name, seconds in busy.items():
            if name in self._engines:
                self._engines[name].busy_s -= seconds

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(SHORT_S if self._crowded else BEAT_S)
            await self._share_if_possible()
            if time.monotonic() > self._use_written_at + USE_S:
                await self._write_use_if_possible()

    async def _write_use_if_possible(self) -> None:
        try:
            await self.write_use()
        except (DBAPIError, OSError) as error:
            logger.warning("the use of engines is not written down, trying again: %s", error)

    async def _share_if_possible(self) -> None:
        try:
            await self.share()
        except (DBAPIError, OSError) as error:
            logger.warning("places cannot be shared, trying again: %s", error)
            await asyncio.sleep(SHORT_S)

    async def _share(self, used: Sequence[_Engine]) -> None:
        """Share, and tell the others of what is given up, once no turn here can take it any more."""
        if await self._agree(used):
            await self._agree(used)

    async def _agree(self, used: Sequence[_Engine]) -> bool:
        """Return whether this gateway is to hold fewer places than it has told the others, of whom there are some."""
        now = self._clock.now()
        granted_until = time.monotonic() + HELD_S
        claims = {engine.key: self._claim(engine) for engine in used}
        takeable = {
            engine.key: self._limit(engine) for engine in used
        }  # also by turns that begin now

        async def agree(session: AsyncSession) -> list[_Share]:
            await in_commit_order(session, GatewayPlacesRow.__tablename__)
            held = await queries.places_of_others(session, self._gateway, now)
            shares = [
                _Share.of(name, mine, self._claims_of_others(held, name), self._capacity(name) or 0)
                for name, mine in claims.items()
            ]
            rows = [
                GatewayPlacesRow(
                    submission_id=share.key,
                    gateway=self._gateway,
                    held=max(share.mine.held, share.granted, takeable[share.key]),
                    wanted=share.mine.wanted,
                    apps=_by_app(share.mine.demands),
                    submissions=_by_submission(share.mine.demands),
                    held_until=now + timedelta(seconds=HELD_S),
                )
                for share in shares
            ]
            await queries.hold_places(session, self._gateway, rows, now)
            return shares

        shares = await self._database.write_unit(agree, is_urgent=True, is_durable=False)
        for engine, share in zip(used, shares, strict=True):
            engine.granted, engine.granted_until = share.granted, granted_until
            engine.has_more, engine.is_busy = share.has_more, share.is_busy
            engine.part = share.part
            engine.queue.parts = share.parts
            self._give_places(engine)
        return any(share.has_others and share.granted < takeable[share.key] for share in shares)

    def _claim(self, engine: _Engine) -> PlaceClaim:
        order = self._order(self._gateway, engine.key)
        return PlaceClaim(engine.queue.in_flight, engine.queue.wanted(), order)

    def _claims_of_others(self, held: Sequence[GatewayPlacesRow], name: str) -> list[PlaceClaim]:
        return [
            PlaceClaim(sum(row.held for row in rows), _demands_of(rows), self._order(gateway, name))
            for gateway, rows in self._by_gateway(held, name).items()
        ]

    def _by_gateway(
        self, rows: Iterable[GatewayPlacesRow], engine: str
    ) -> Mapping[str, list[GatewayPlacesRow]]:
        """Group what is held at an engine. A gateway of the version before holds places for each submission by itself."""
        found: defaultdict[str, list[GatewayPlacesRow]] = defaultdict(list)
        for row in rows:
            is_old = row.submissions is None
            if (self._engine_of(row.submission_id) if is_old else row.submission_id) == engine:
                found[row.gateway].append(row)
        return found

    def _order(self, gateway: str, engine: str) -> bytes:
        """Changes with time, so that nobody is the last for ever."""
        rotation = int(self._clock.now().timestamp() / ROTATION_S)
        return blake2b(f"{rotation} {gateway} {engine}".encode(), digest_size=8).digest()

    def _forget_idle(self, now: float) -> None:
        for name, engine in list(self._engines.items()):
            if not engine.wanted and engine.used_at <= now - IDLE_S:
                del self._engines[name]


class CheckPlaces:
    """Places for the checks of a submission, within its fair share of its engine. Also for processes that have no gateway."""

    def __init__(
        self, places: TurnPlaces, read_capacities: Callable[[], Awaitable[object]]
    ) -> None:
        self._places = places
        self._read_capacities = read_capacities
        self._read_at = float("-inf")

    async def take(self, key: str, candidates: int = 1) -> TurnPlace:
        if time.monotonic() > self._read_at + BEAT_S:
            self._read_at = time.monotonic()
            await self._read_capacities()
        return await self._places.take(key, CHECKS, candidates)


async def has_older_gateway(session: AsyncSession, now: datetime) -> bool:
    """Return whether a gateway of the version before was asked for a reply lately. It asks a model server for a submission by the submission's own name."""
    return await queries.has_older_gateway(session, now)


def _demands_of(rows: Iterable[GatewayPlacesRow]) -> Mapping[Demand, int]:
    """The version before says for one submission which app wants how many, the one before that only how many."""
    found = Counter[Demand]()
    for row in rows:
        apps = {ANY_APP: row.wanted} if row.apps is None else row.apps
        for key, wanted in (row.submissions or {row.submission_id: apps}).items():
            found.update({(key, app): count for app, count in wanted.items()})
    return found


def _by_app(demands: Mapping[Demand, int]) -> dict[str, int]:
    found = Counter[str]()
    for (_, app), count in demands.items():
        found[app] += count
    return dict(found)


def _by_submission(demands: Mapping[Demand, int]) -> dict[str, dict[str, int]]:
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (key, app), count in demands.items():
        found[key][app] = count
    return dict(found)
