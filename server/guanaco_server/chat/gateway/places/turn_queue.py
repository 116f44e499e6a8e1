"""Decides who gets an engine's next free place: fair by submission first, then by app, then by the app's users, then by time.

    a place is free   to the submission that holds the fewest places, of those with equally few to the one whose turn
                      it is; within it to its apps by the same rule, within the app to its users; a user's own turns in their
                      order. Where several gateways share the places, they count in relation to the part of the
                      submission, and of the app, here (place_shares.py)
    it has too few    a turn takes as many places as its reply has candidates. One that is due waits until these are free,
                      and nobody overtakes it. The next turn of w places is due once each of the others has begun as many
                      as w on average, or holds as many: so neither turns of many places nor those of one wait for ever
    too many wait     the newest turn goes of the user who would still have the most waiting, of the app that would, of the
                      submission that would

So a submission, an app or a user who asks for more than their share waits for themselves only: the others do not notice
(max-min fairness of places), and what one does not use the others may. It is a data structure: it neither waits nor knows the time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Path = tuple[str, ...]  # of a submission, or of an app of it


class Asker(NamedTuple):
    """``account_id`` is the app's; ``user_id`` is the app's own name of the user; ``key`` is that of the deployment asked."""

    account_id: str
    user_id: str
    key: str = ""

    @property
    def path(self) -> Path:
        return self.key, self.account_id, self.user_id


@dataclass(eq=False, slots=True)
class Ticket:
    """One turn that waits for ``places``; once it has them, those that it was given."""

    asker: Asker
    places: int = 1


@dataclass(eq=False, slots=True)
class _Node:
    """The engine, a submission, an app or a user. ``queue`` are the children that wait, in the order in which their turn comes;
    ``tickets`` are a user's.

    ``in_flight`` and ``waiting`` count places, ``turns`` the turns that wait. ``begun`` are the places that its children have taken
    from the queue, ``begun_before`` those that its parent's had when this one's turn came last.
    """

    in_flight: int = 0
    waiting: int = 0
    turns: int = 0
    begun: int = 0
    begun_before: int = 0
    children: dict[str, _Node] = field(default_factory=dict)
    queue: OrderedDict[str, _Node] = field(default_factory=OrderedDict)
    tickets: deque[Ticket] = field(default_factory=deque)

    @property
    def left_without_newest(self) -> float:
        """The places that would still be waited for, were the newest turn gone."""
        return self.waiting - self.waiting / self.turns


class TurnQueue:
    """All counts are of places."""

    def __init__(self) -> None:
        self._engine = _Node()
        self._due: Ticket | None = None  # it waits until enough places are free
        self.parts: Mapping[Path, float] = {}  # of the places here; one that is missing counts as 1

    @property
    def in_flight(self) -> int:
        return self._engine.in_flight

    @property
    def waiting(self) -> int:
        return self._engine.waiting

    def in_flight_of(self, key: str) -> int:
        node = self._engine.children.get(key)
        return node.in_flight if node is not None else 0

    def waiting_of(self, key: str) -> int:
        node = self._engine.children.get(key)
        return node.waiting if node is not None else 0

    def begin(self, asker: Asker, places: int = 1) -> None:
        """A turn takes its places at once."""
        self._count(asker, places)

    def end(self, asker: Asker, places: int = 1) -> None:
        """A turn gives its places back."""
        self._count(asker, -places)
        self._forget_idle(asker)

    def add(self, asker: Asker, places: int = 1) -> Ticket:
        """A turn waits."""
        ticket = Ticket(asker, places)
        node = self._engine
        node.waiting += places
        node.turns += 1
        for name in asker.path:
            child = node.children.setdefault(name, _Node())
            if name not in node.queue:
                node.queue[name] = child
                child.begun_before = node.begun
            child.waiting += places
            child.turns += 1
            node = child
        node.tickets.append(ticket)
        return ticket

    def next(self, free: int, most: int) -> Ticket | None:
        """Take the turn that has the next places, and return it; None when none waits, or too few places are ``free`` for it.

        No turn takes more than ``most``, which may ever be free here.
        """
        if not self.waiting or free < 1:
            return None
        ticket = self._due or self._first()
        places = max(1, min(ticket.places, most))
        if places > free:
            self._due = ticket
            return None
        self._remove(ticket)
        self._count(ticket.asker, places)
        ticket.places = places
        node = self._engine
        for name in ticket.asker.path:
            child = node.children[name]
            node.begun += places
            child.begun_before = node.begun
            if name in node.queue:
                node.queue.move_to_end(name)
            node = child
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """A turn that waits gives up."""
        self._remove(ticket)
        self._forget_idle(ticket.asker)

    def evict_newest(self) -> Ticket:
        """Remove the newest turn of whoever would still have the most waiting. At least one turn must wait."""
        node = self._engine
        while node.queue:
            node = max(reversed(node.queue.values()), key=lambda child: child.left_without_newest)
        ticket = node.tickets[-1]
        self.leave(ticket)
        return ticket

    def wanted(self) -> dict[tuple[str, str], int]:
        """Count the places of turns under way and waiting, by submission and app."""
        return {
            (key, account_id): app.in_flight + app.waiting
            for key, submission in self._engine.children.items()
            for account_id, app in submission.children.items()
        }

    def _first(self) -> Ticket:
        node, path = self._engine, Path()
        while node.queue:
            name = self._next_of(node, path)
            node, path = node.queue[name], (*path, name)
        return node.tickets[0]

    def _next_of(self, node: _Node, path: Path) -> str:
        """Usually the first, who has no turn under way."""
        has_larger = node.waiting > node.turns
        if not has_larger:
            for name, child in node.queue.items():
                if not child.in_flight:
                    return name

        def part_used(item: tuple[str, _Node]) -> float:
            name, child = item
            used = child.in_flight + (_surplus(node, child) if has_larger else 0.0)
            return used / (self.parts.get((*path, name)) or 1.0)

        return min(node.queue.items(), key=part_used)[0]

    def _count(self, asker: Asker, change: int) -> None:
        for node in self._nodes(asker):
            node.in_flight += change

    def _nodes(self, asker: Asker) -> Iterator[_Node]:
        node = self._engine
        yield node
        for name in asker.path:
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = _Node()
            yield child
            node = child

    def _remove(self, ticket: Ticket) -> None:
        if ticket is self._due:
            self._due = None
        nodes = list(self._nodes(ticket.asker))
        nodes[-1].tickets.remove(ticket)
        for node in nodes:
            node.waiting -= ticket.places
            node.turns -= 1
        for parent, child, name in zip(nodes, nodes[1:], ticket.asker.path, strict=False):
            if not child.turns:
                del parent.queue[name]

    def _forget_idle(self, asker: Asker) -> None:
        *parents, _ = self._nodes(asker)
        for parent, name in zip(reversed(parents), reversed(asker.path), strict=True):
            child = parent.children[name]
            if child.in_flight or child.waiting:
                return
            del parent.children[name]


def _surplus(parent: _Node, child: _Node) -> float:
    """Return the places beyond one that a turn of the child takes, less those that each of its siblings has begun meanwhile."""
    siblings = max(1, len(parent.children) - 1)
    waited_for = (parent.begun - child.begun_before) / siblings
    return max(0.0, child.waiting / child.turns - 1 - waited_for)
