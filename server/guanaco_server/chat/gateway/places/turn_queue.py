"""Decides who gets an engine's next free place: fair by submission first, then by app, then by the app's users, then by time.

    a place is free   to the submission that has the fewest turns under way, of those with equally few to the one whose turn
                      it is; within it to its apps by the same rule, within the app to its users; a user's own turns in their
                      order. Where several gateways share the places, turns count in relation to the part of the
                      submission, and of the app, here (place_shares.py)
    too many wait     the newest turn of the user who has the most waiting goes, of the app that has the most waiting, of
                      the submission that has the most waiting

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
    """One turn that waits."""

    asker: Asker


@dataclass(eq=False, slots=True)
class _Node:
    """The engine, a submission, an app or a user. ``queue`` are the children that wait, in the order in which their turn comes;
    ``tickets`` are a user's."""

    in_flight: int = 0
    waiting: int = 0
    children: dict[str, _Node] = field(default_factory=dict)
    queue: OrderedDict[str, _Node] = field(default_factory=OrderedDict)
    tickets: deque[Ticket] = field(default_factory=deque)


class TurnQueue:
    def __init__(self) -> None:
        self._engine = _Node()
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

    def begin(self, asker: Asker) -> None:
        """A turn takes a place at once."""
        self._count(asker, 1)

    def end(self, asker: Asker) -> None:
        """A turn gives its place back."""
        self._count(asker, -1)
        self._forget_idle(asker)

    def add(self, asker: Asker) -> Ticket:
        """A turn waits."""
        ticket = Ticket(asker)
        node = self._engine
        node.waiting += 1
        for name in asker.path:
            child = node.children.setdefault(name, _Node())
            node.queue.setdefault(name, child)
            child.waiting += 1
            node = child
        node.tickets.append(ticket)
        return ticket

    def next(self) -> Ticket | None:
        """Take the turn that has the next place, and return it; None when none waits."""
        if not self.waiting:
            return None
        node, path = self._engine, Path()
        passed: list[tuple[_Node, str]] = []
        while node.queue:
            name = self._next_of(node, path)
            passed.append((node, name))
            node, path = node.queue[name], (*path, name)
        ticket = node.tickets[0]
        self._remove(ticket)
        self._count(ticket.asker, 1)
        for parent, name in passed:
            if name in parent.queue:
                parent.queue.move_to_end(name)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """A turn that waits gives up."""
        self._remove(ticket)
        self._forget_idle(ticket.asker)

    def evict_newest(self) -> Ticket:
        """Remove a turn of whoever has the most waiting, the newest one. At least one turn must wait."""
        node = self._engine
        while node.queue:
            node = max(reversed(node.queue.values()), key=lambda child: child.waiting)
        ticket = node.tickets[-1]
        self.leave(ticket)
        return ticket

    def wanted(self) -> dict[tuple[str, str], int]:
        """Count the turns under way and waiting, by submission and app."""
        return {
            (key, account_id): app.in_flight + app.waiting
            for key, submission in self._engine.children.items()
            for account_id, app in submission.children.items()
        }

    def _next_of(self, node: _Node, path: Path) -> str:
        """Usually the first, who has no turn under way."""
        for name, child in node.queue.items():
            if not child.in_flight:
                return name

        def part_used(item: tuple[str, _Node]) -> float:
            name, child = item
            return child.in_flight / (self.parts.get((*path, name)) or 1.0)

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
        nodes = list(self._nodes(ticket.asker))
        nodes[-1].tickets.remove(ticket)
        for node in nodes:
            node.waiting -= 1
        for parent, child, name in zip(nodes, nodes[1:], ticket.asker.path, strict=False):
            if not child.waiting:
                del parent.queue[name]

    def _forget_idle(self, asker: Asker) -> None:
        *parents, _ = self._nodes(asker)
        for parent, name in zip(reversed(parents), reversed(asker.path), strict=True):
            child = parent.children[name]
            if child.in_flight or child.waiting:
                return
            del parent.children[name]
