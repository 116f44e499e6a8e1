"""A model's places: how many turns its servers answer at once, and who waits for one.

    measured      what the stress check showed of a replica, times the replicas: shared by all gateway processes
    not measured  ``max_streams`` a replica, in this process alone

Each version of a submission that serves has places of its own, by the key of its deployment, so a canary's are added.
A turn takes a place before a model server is asked, and gives it back when its reply has ended, however it ends. Without
a free place it waits in a fair queue (turn_queue.py), for ``wait_s`` at most. No more wait than can be answered within
that time, as far as the last turns tell; beyond, whoever has the most waiting is refused.

The gateways share in the database (place_shares.py): each holds places until HELD_S from now, and renews them each
BEAT_S. What a gateway held that was killed is free again when that time is over. One that needs more asks at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import Self

from sqlalchemy.exc import DBAPIError

from guanaco.errors import Overloaded
from guanaco_server.chat import queries
from guanaco_server.chat.gateway.place_shares import ANY_APP, PlaceClaim, app_parts, places_for
from guanaco_server.chat.gateway.turn_queue import Asker, Ticket, TurnQueue
from guanaco_server.chat.tables import GatewayPlacesRow
from guanaco_server.database.commit_order import in_commit_order
from guanaco_server.database.database import Database
from guanaco_server.deployments.versions import submission_of
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock

BEAT_S = 1.0
SHORT_S = 0.2  # between two looks at what the others hold, while turns wait
HELD_S = 5.0
IDLE_S = 60.0  # a model that was not used for so long has no places here
ROTATION_S = 2.0  # gateways that are equal otherwise take turns at being first
SMOOTHING = 0.1
MOST_WAITING = 4_096
WAITING_A_PLACE = 16  # while it is not known how long turns take
LONGEST_RETRY_S = 60.0

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Model:
    """``granted`` places are this process's until ``granted_until``; with ``has_more`` it would get more if it asked.

    ``is_busy`` says that all gateways together want half of the places, or more.
    """

    submission_id: str
    queue: TurnQueue = field(default_factory=TurnQueue)
    turns: dict[Ticket, asyncio.Future[None]] = field(default_factory=dict)
    granted: int = 0
    granted_until: float = float("-inf")
    has_more: bool = True
    is_busy: bool = False
    used_at: float = 0.0
    turn_s: float = 0.0  # what turns took lately

    @property
    def wanted(self) -> int:
        return self.queue.in_flight + self.queue.waiting


class TurnPlace:
    """One turn's place, until the end of the ``with`` block."""

    __slots__ = ("_asker", "_model", "_places", "_since", "waited_s")

    def __init__(self, places: TurnPlaces, model: _Model, asker: Asker, waited_s: float) -> None:
        self._places = places
        self._model = model
        self._asker = asker
        self._since = time.monotonic()
        self.waited_s = waited_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._places._end(self._model, self._asker, time.monotonic() - self._since)


class TurnPlaces:
    """The places of one gateway process."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        metrics: Metrics,
        *,
        capacity: Callable[[str], int | None],
        replicas: Callable[[str], Sequence[str]],
        max_streams: int,
        wait_s: float,
    ) -> None:
        """``capacity`` is what a submission's ready replicas were measured to answer at once; None for one that was not measured."""
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._capacity = capacity
        self._replicas = replicas
        self._max_streams = max_streams
        self._wait_s = wait_s
        self._gateway = secrets.token_hex(16)
        self._models: dict[str, _Model] = {}
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
        with suppress(DBAPIError, OSError):  # then they lapse
            async with self._database.write() as session:
                await queries.drop_places(session, self._gateway)

    def crowded(self) -> set[str]:
        """The submissions for which turns wait here."""
        return self._crowded

    def waiting(self, submission_id: str) -> int:
        model = self._models.get(submission_id)
        return model.queue.waiting if model is not None else 0

    def in_flight(self, submission_id: str) -> int:
        model = self._models.get(submission_id)
        return model.queue.in_flight if model is not None else 0

    def held(self, submission_id: str) -> int | None:
        """The places that this process holds; None where they are not counted, or less than half of all are wanted."""
        model = self._models.get(submission_id)
        if model is None or not model.is_busy or not self._is_measured(model):
            return None
        return max(model.granted, model.queue.in_flight)

    async def take(self, submission_id: str, asker: Asker) -> TurnPlace:
        """A place for a turn, to be used ``with``. Overloaded when too many wait, or for too long."""
        model = self._models.get(submission_id)
        if model is None:
            model = self._models[submission_id] = _Model(submission_id)
        waited_s = 0.0
        if model.queue.waiting or model.queue.in_flight >= self._limit(model):
            waited_s = await self._wait(model, asker)
        else:
            model.queue.begin(asker)
        self._metrics.note_turn_wait(waited_s)
        return TurnPlace(self, model, asker, waited_s)

    async def share(self) -> None:
        """Agree with the other gateways on who holds which places from now on."""
        async with self._lock:
            now = time.monotonic()
            measured = [model for model in self._models.values() if self._is_measured(model)]
            used = [model for model in measured if model.wanted or model.used_at > now - IDLE_S]
            for model in set(self._models.values()) - set(used):
                model.granted = 0
            self._forget_idle(now)
            if measured:
                await self._share(used)

    def _limit(self, model: _Model) -> int:
        if not self._is_measured(model):
            return self._max_streams * max(1, len(self._replicas(model.submission_id)))
        return model.granted if time.monotonic() < model.granted_until else 0

    def _is_measured(self, model: _Model) -> bool:
        return self._capacity(model.submission_id) is not None

    async def _wait(self, model: _Model, asker: Asker) -> float:
        """Wait for a place; for how long."""
        began = time.monotonic()
        ticket = model.queue.add(asker)
        turn = model.turns[ticket] = asyncio.get_running_loop().create_future()
        self._note_waiting(model, 1)
        if model.queue.waiting > self._most_waiting(model):
            self._refuse(model, model.queue.crowd_out())
        self._ask_for_more(model)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if model.turns.pop(ticket, None) is not None:
                model.queue.leave(ticket)
                self._note_waiting(model, -1)
            elif not turn.cancelled() and turn.exception() is None:  # it came at the very moment
                self._end(model, asker)
            if isinstance(error, TimeoutError):
                raise self._overloaded(model) from None
            raise
        return time.monotonic() - began

    def _most_waiting(self, model: _Model) -> int:
        """As many as can be answered within ``wait_s``."""
        capacity = self._capacity(model.submission_id) or 1
        places = max(1, self._limit(model) or capacity)
        if not model.turn_s:
            return min(MOST_WAITING, WAITING_A_PLACE * places)
        return min(MOST_WAITING, max(places, int(places * self._wait_s / model.turn_s)))

    def _refuse(self, model: _Model, ticket: Ticket) -> None:
        turn = model.turns.pop(ticket)
        self._note_waiting(model, -1)
        if not turn.done():
            turn.set_exception(self._overloaded(model))

    def _overloaded(self, model: _Model) -> Overloaded:
        """Try again when the turns that wait now have been answered."""
        places = max(1, self._limit(model))
        answered_s = model.queue.waiting * model.turn_s / places
        return Overloaded(
            f"More messages wait for this model than it can answer within {self._wait_s:g} s.",
            retry_after_s=min(LONGEST_RETRY_S, max(Overloaded.retry_after_s, answered_s)),
        )

    def _end(self, model: _Model, asker: Asker, took_s: float | None = None) -> None:
        model.queue.end(asker)
        model.used_at = time.monotonic()
        if took_s is not None:
            model.turn_s += (took_s - model.turn_s) * (SMOOTHING if model.turn_s else 1.0)
        self._give_places(model)

    def _give_places(self, model: _Model) -> None:
        """To those who wait, as far as there are any."""
        while model.queue.waiting and model.queue.in_flight < self._limit(model):
            ticket = model.queue.next()
            assert ticket is not None, "one waits"
            turn = model.turns.pop(ticket)
            self._note_waiting(model, -1)
            if turn.done():  # its client has left at this very moment
                model.queue.end(ticket.asker)
            else:
                turn.set_result(None)
        if model.queue.waiting and time.monotonic() >= model.granted_until:
            self._ask_for_more(model)

    def _note_waiting(self, model: _Model, change: int) -> None:
        self._metrics.note_turns_waiting(submission_of(model.submission_id), change)
        if model.queue.waiting:
            self._crowded.add(model.submission_id)
        else:
            self._crowded.discard(model.submission_id)

    def _ask_for_more(self, model: _Model) -> None:
        """Where asking can help; else the next beat comes soon enough."""
        if not self._is_measured(model):
            return
        is_lapsed = time.monotonic() >= model.granted_until
        is_asking = self._asking is not None and not self._asking.done()
        if (is_lapsed or model.has_more) and not is_asking:
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        is_short = True
        while is_short:
            await self._share_if_possible()
            is_short = any(
                model.queue.waiting and model.has_more and self._is_measured(model)
                for model in self._models.values()
            )

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(SHORT_S if self._crowded else BEAT_S)
            await self._share_if_possible()

    async def _share_if_possible(self) -> None:
        try:
            await self.share()
        except (DBAPIError, OSError) as error:
            logger.warning("places cannot be shared, trying again: %s", error)
            await asyncio.sleep(SHORT_S)

    async def _share(self, used: Sequence[_Model]) -> None:
        now = self._clock.now()
        until = now + timedelta(seconds=HELD_S)
        granted_until = time.monotonic() + HELD_S
        granted: dict[str, int] = {}
        async with self._database.write(is_urgent=True) as session:
            await in_commit_order(session, GatewayPlacesRow.__tablename__)
            held = await queries.places_of_others(session, self._gateway, now)
            rows = []
            for model in used:
                name = model.submission_id
                others = [
                    PlaceClaim(row.held, _apps_of(row), self._order(row.gateway, name))
                    for row in held
                    if row.submission_id == name
                ]
                mine = PlaceClaim(
                    model.queue.in_flight, model.queue.wanted(), self._order(self._gateway, name)
                )
                capacity = self._capacity(name) or 0
                granted[name] = places = places_for(mine, others, capacity)
                model.granted = min(model.granted, places)  # at once: others may take the rest
                model.queue.parts = app_parts(mine, others, capacity) if others else {}
                model.has_more = places < capacity - sum(claim.held for claim in others)
                wanted = mine.wanted + sum(claim.wanted for claim in others)
                model.is_busy = 2 * wanted >= capacity
                rows.append(
                    GatewayPlacesRow(
                        submission_id=name,
                        gateway=self._gateway,
                        held=places,
                        wanted=mine.wanted,
                        apps=dict(mine.apps),
                        held_until=until,
                    )
                )
            await queries.hold_places(session, self._gateway, rows, now)
        for model in used:
            model.granted, model.granted_until = granted[model.submission_id], granted_until
            self._give_places(model)

    def _order(self, gateway: str, submission_id: str) -> bytes:
        """Changes with time, so that nobody is the last for ever."""
        rotation = int(self._clock.now().timestamp() / ROTATION_S)
        return blake2b(f"{rotation} {gateway} {submission_id}".encode(), digest_size=8).digest()

    def _forget_idle(self, now: float) -> None:
        for name, model in list(self._models.items()):
            if not model.wanted and model.used_at <= now - IDLE_S:
                del self._models[name]


def _apps_of(row: GatewayPlacesRow) -> Mapping[str, int]:
    return {ANY_APP: row.wanted} if row.apps is None else row.apps
