"""Who gets a model's next free place: fair by app first, then by the app's users, then by time.

    a place is free   to the app that has the fewest turns under way, of those with equally few to the one whose turn it
                      is; within the app to its users by the same rule; a user's own turns in their order. Where several
                      gateways share the places, turns count in relation to the app's part here (place_shares.py)
    too many wait     the newest turn of the user who has the most waiting, of the app that has the most waiting, goes

So an app, or a user, who asks for more than their share waits for themselves only: the others do not notice (max-min
fairness of places). It is a data structure: it neither waits nor knows the time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Asker(NamedTuple):
    """``account_id`` is the app's; ``user_id`` is the app's own name of the user."""

    account_id: str
    user_id: str


@dataclass(eq=False, slots=True)
class Ticket:
    """One turn that waits."""

    asker: Asker
    app: _App
    user: _User


@dataclass(eq=False, slots=True)
class _User:
    in_flight: int = 0
    waiting: deque[Ticket] = field(default_factory=deque)


@dataclass(eq=False, slots=True)
class _App:
    """``queue`` are the users who wait, in the order in which their turn comes."""

    in_flight: int = 0
    waiting: int = 0
    users: dict[str, _User] = field(default_factory=dict)
    queue: OrderedDict[str, _User] = field(default_factory=OrderedDict)


class TurnQueue:
    def __init__(self) -> None:
        self.in_flight = 0
        self.waiting = 0
        self._apps: dict[str, _App] = {}
        self._queue: OrderedDict[str, _App] = OrderedDict()  # apps that wait
        self.parts: Mapping[
            str, float
        ] = {}  # of the places here, by app; one that is missing counts as 1

    def begin(self, asker: Asker) -> None:
        """A turn takes a place at once."""
        app, user = self._of(asker)
        self._count(app, user, 1)

    def end(self, asker: Asker) -> None:
        """A turn gives its place back."""
        app, user = self._of(asker)
        self._count(app, user, -1)
        self._forget_idle(asker, app, user)

    def add(self, asker: Asker) -> Ticket:
        """A turn waits."""
        app, user = self._of(asker)
        ticket = Ticket(asker, app, user)
        user.waiting.append(ticket)
        app.queue.setdefault(asker.user_id, user)
        self._queue.setdefault(asker.account_id, app)
        app.waiting += 1
        self.waiting += 1
        return ticket

    def next(self) -> Ticket | None:
        """The turn that takes the next place, and takes it; None when none waits."""
        if not self.waiting:
            return None
        account_id, app = min(self._queue.items(), key=self._part_used)
        user_id, user = _next_user(app)
        ticket = user.waiting[0]
        self._remove(ticket)
        self._count(app, user, 1)
        for queue, name in ((self._queue, account_id), (app.queue, user_id)):
            if name in queue:
                queue.move_to_end(name)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """A turn that waits gives up."""
        self._remove(ticket)
        self._forget_idle(ticket.asker, ticket.app, ticket.user)

    def crowd_out(self) -> Ticket:
        """Remove a turn of whoever has the most waiting, the newest one. At least one turn must wait."""
        app = max(reversed(self._queue.values()), key=lambda app: app.waiting)
        user = max(reversed(app.queue.values()), key=lambda user: len(user.waiting))
        ticket = user.waiting[-1]
        self.leave(ticket)
        return ticket

    def wanted(self) -> dict[str, int]:
        """Count the turns under way and waiting, by app."""
        return {name: app.in_flight + app.waiting for name, app in self._apps.items()}

    def _part_used(self, item: tuple[str, _App]) -> float:
        name, app = item
        return app.in_flight / (self.parts.get(name) or 1.0)

    def _of(self, asker: Asker) -> tuple[_App, _User]:
        app = self._apps.get(asker.account_id)
        if app is None:
            app = self._apps[asker.account_id] = _App()
        user = app.users.get(asker.user_id)
        if user is None:
            user = app.users[asker.user_id] = _User()
        return app, user

    def _count(self, app: _App, user: _User, change: int) -> None:
        self.in_flight += change
        app.in_flight += change
        user.in_flight += change

    def _remove(self, ticket: Ticket) -> None:
        app, user = ticket.app, ticket.user
        user.waiting.remove(ticket)
        if not user.waiting:
            del app.queue[ticket.asker.user_id]
        app.waiting -= 1
        self.waiting -= 1
        if not app.waiting:
            del self._queue[ticket.asker.account_id]

    def _forget_idle(self, asker: Asker, app: _App, user: _User) -> None:
        if not user.in_flight and not user.waiting:
            app.users.pop(asker.user_id, None)
        if not app.users:
            self._apps.pop(asker.account_id, None)


def _next_user(app: _App) -> tuple[str, _User]:
    """Usually the first, who has no turn under way."""
    for name, user in app.queue.items():
        if not user.in_flight:
            return name, user
    return min(app.queue.items(), key=lambda item: item[1].in_flight)
