"""The connections that wait for a request, by the address that has them: where the door is full, these make room.

    idle    nothing of a request has come
    begun   a header has begun to come, and is not complete

Each change takes the same time however many connections there are: addresses are kept in a list by how many waiting
connections they have. A connection whose request is worked on is in neither group, and is never closed for another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

LOOKED_AT = (
    8  # of an address's idle connections; one whose client has not read its answer yet stays
)


class Connection(Protocol):
    """A connection as the door sees it. ``deadline`` is on the loop's clock."""

    deadline: float

    @property
    def is_idle(self) -> bool: ...

    def time_out(self) -> None: ...

    def hang_up(self) -> None: ...


@dataclass(eq=False)
class Holder:
    """One address; ``network`` is None for all trusted proxies together. Each group is in the order of its beginning."""

    network: str | None
    connections: int = 0
    idle: dict[Connection, None] = field(default_factory=dict)
    begun: dict[Connection, None] = field(default_factory=dict)
    counted: int = 0  # in the list of WaitingConnections

    def choose(self) -> Connection | None:
        """Return the connection that has been idle longest, or else the one whose header began first."""
        for _ in range(min(LOOKED_AT, len(self.idle))):
            oldest = next(iter(self.idle))
            if oldest.is_idle:
                return oldest
            del self.idle[oldest]
            self.idle[oldest] = None
        return next(iter(self.begun), None)


class WaitingConnections:
    def __init__(self) -> None:
        self._holders: dict[str | None, Holder] = {}
        self._by_count: list[dict[Holder, None]] = [{}]
        self._most = 0

    def enter(self, network: str | None) -> Holder:
        """Count one more connection of the address; it is idle once `note_idle` says so."""
        holder = self._holders.get(network)
        if holder is None:
            holder = self._holders[network] = Holder(network)
        holder.connections += 1
        return holder

    def leave(self, holder: Holder, connection: Connection) -> None:
        self.note_busy(holder, connection)
        holder.connections -= 1
        if not holder.connections:
            del self._holders[holder.network]

    def note_idle(self, holder: Holder, connection: Connection) -> None:
        holder.begun.pop(connection, None)
        holder.idle[connection] = None
        self._count(holder)

    def note_begun(self, holder: Holder, connection: Connection) -> None:
        holder.idle.pop(connection, None)
        holder.begun[connection] = None
        self._count(holder)

    def note_busy(self, holder: Holder, connection: Connection) -> None:
        holder.idle.pop(connection, None)
        holder.begun.pop(connection, None)
        self._count(holder)

    def choose(self) -> tuple[Holder, Connection] | None:
        """Return a connection of the address that has most waiting ones; one of a trusted proxy only where there is no other."""
        holder = next(iter(self._by_count[self._most]), None) or self._holders.get(None)
        chosen = holder.choose() if holder else None
        return (holder, chosen) if holder and chosen else None

    def choose_of(self, network: str) -> tuple[Holder, Connection] | None:
        holder = self._holders.get(network)
        chosen = holder.choose() if holder else None
        return (holder, chosen) if holder and chosen else None

    def _count(self, holder: Holder) -> None:
        count = len(holder.idle) + len(holder.begun)
        if count == holder.counted or holder.network is None:
            return
        if holder.counted:
            del self._by_count[holder.counted][holder]
        holder.counted = count
        if count:
            while len(self._by_count) <= count:
                self._by_count.append({})
            self._by_count[count][holder] = None
        self._most = max(self._most, count)
        while self._most and not self._by_count[self._most]:
            self._most -= 1
