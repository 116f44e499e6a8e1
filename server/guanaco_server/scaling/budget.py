"""Shares room when there is not enough for all. It is a pure function of who has room and who asks for it.

Free room is given first to the developer who has the least, then to who asked first: filled so, drop by drop, it is
max-min fair. Where none is free, the least useful deployment is put to sleep for a new submission, or for one whose
conversation goes on:

- which may go: ready, no open stream, no traffic for ``quiet_s``, ready for as long;
- whose: the asking developer's own, or one of a developer who has at least as much as the asking one will have; never a developer's last
  one for somebody who has more than an equal share then (``BudgetShares``);
- which first: one of a developer who has more than an equal share; the one of least worth, where that is known (worth_plan.py); those that
  have their ratings; then the one whose traffic is longest ago.

A submission that was put to sleep without its ratings asks again, and gets room only when it is free and nobody else waits: the one of most worth first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Room:
    gpus: int = 0
    servers: int = 0

    def __add__(self, other: Room) -> Room:
        return Room(self.gpus + other.gpus, self.servers + other.servers)

    def __sub__(self, other: Room) -> Room:
        return Room(self.gpus - other.gpus, self.servers - other.servers)


@dataclass(frozen=True)
class Budget:
    """0 is no limit. ``quiet_s`` without traffic make a deployment one that may go."""

    max_gpus: int = 0
    max_model_servers: int = 0
    quiet_s: float = 300.0

    @property
    def is_limited(self) -> bool:
        return bool(self.max_gpus or self.max_model_servers)

    def holds(self, room: Room) -> bool:
        return not (
            (self.max_gpus and room.gpus > self.max_gpus)
            or (self.max_model_servers and room.servers > self.max_model_servers)
        )

    def size(self, room: Room) -> int:
        """Return the size that is shared fairly: GPUs if they are limited, else model servers."""
        return room.gpus if self.max_gpus else room.servers


@dataclass(frozen=True)
class BudgetShares:
    """The engines that developers have of a budget, and the equal share of each one who has or asks for some."""

    budget: Budget
    engines: Mapping[str, Sequence[Room]]
    developers: Set[str]

    @property
    def share(self) -> float:
        whole = self.budget.size(Room(self.budget.max_gpus, self.budget.max_model_servers))
        return whole / max(1, len(self.developers))

    def size(self, owner: str) -> int:
        return sum(self.budget.size(room) for room in self.engines.get(owner, ()))

    def exceeds(self, owner: str) -> bool:
        """Tell whether a developer has several engines, and more than an equal share."""
        return len(self.engines.get(owner, ())) > 1 and self.size(owner) > self.share

    def may_take(self, asking: str, room: Room, owner: str) -> bool:
        """Tell whether a developer may get this room from another one: not by taking the last engine for more than an equal share."""
        if asking == owner or not self.engines.get(asking):
            return True
        is_last = len(self.engines.get(owner, ())) == 1
        return not (is_last and self.size(asking) + self.budget.size(room) > self.share)


def shares_of(
    budget: Budget, held: Iterable[tuple[str, Room]], asking: Iterable[str]
) -> BudgetShares:
    """Return the shares of those who have engines and of those who ask for some."""
    engines = defaultdict[str, list[Room]](list)
    for owner, room in held:
        engines[owner].append(room)
    return BudgetShares(budget, dict(engines), engines.keys() | set(asking))


@dataclass(frozen=True)
class Tenant:
    """A deployment that has room. ``used_at`` is its latest traffic, or when it got ready; None while it may not go."""

    submission_id: str
    owner: str
    room: Room
    used_at: datetime | None = None
    open_streams: int = 0
    is_rated: bool = False
    worth: float = 0.0


@dataclass(frozen=True)
class Claim:
    """A deployment that asks for room; a patient one takes only what nobody else wants.

    ``held`` is the part of the leaving room that a server of its own takes, which runs still and which it would use.
    """

    submission_id: str
    owner: str
    room: Room
    since: datetime
    is_patient: bool = False
    worth: float = 0.0
    held: Room = Room()


@dataclass
class RoomPlan:
    """``victims`` are put to sleep now; who waits for their room is granted it when they have left.

    ``promised`` have their room, or get it when enough servers have stopped; ``taken`` is what they and the others with a server take.
    """

    granted: list[str] = field(default_factory=list)
    victims: list[str] = field(default_factory=list)
    waits: dict[str, str] = field(default_factory=dict)
    promised: set[str] = field(default_factory=set)
    taken: Room = Room()


def share(
    budget: Budget,
    tenants: Iterable[Tenant],
    claims: Sequence[Claim],
    leaving: Room,
    now: datetime,
) -> RoomPlan:
    """Decide who gets room. ``leaving`` is the room of model servers that are being stopped."""
    asking = frozenset(claim.owner for claim in claims)
    return _Sharing(budget, list(tenants), asking, leaving, now).share(claims)


class _Sharing:
    def __init__(
        self,
        budget: Budget,
        tenants: list[Tenant],
        asking: Set[str],
        leaving: Room,
        now: datetime,
    ) -> None:
        self._budget = budget
        self._tenants = tenants
        self._asking = asking
        self._leaving = leaving
        self._now = now
        self._plan = RoomPlan()

    def share(self, claims: Sequence[Claim]) -> RoomPlan:
        left = list(claims)
        while left:
            claim = min(left, key=self._turn)
            left.remove(claim)
            self._serve(claim)
        self._plan.taken = self._taken()
        return self._plan

    def _turn(self, claim: Claim) -> tuple[bool, float, int, datetime, str]:
        worth = claim.worth if claim.is_patient else 0.0
        return claim.is_patient, -worth, self._has(claim.owner), claim.since, claim.submission_id

    def _serve(self, claim: Claim) -> None:
        has_rivals = bool(self._plan.waits) and claim.is_patient
        if not self._budget.holds(claim.room):
            self._plan.waits[claim.submission_id] = (
                f"It needs {_text(self._budget, claim.room)}, which is more than there is."
            )
        elif self._fits(claim, self._leaving - claim.held) and not has_rivals:
            self._plan.granted.append(claim.submission_id)
            self._settle(claim)
        elif self._fits(claim, Room()) and not has_rivals:
            self._plan.waits[claim.submission_id] = "A model server is being stopped for it."
            self._settle(claim)
        elif not claim.is_patient:
            self._preempt(claim)

    def _preempt(self, claim: Claim) -> None:
        """Choose the fewest victims that make room, the least useful first. Choose none if even all of them are not enough."""
        before, victims = list(self._tenants), list[Tenant]()
        while not self._fits(claim, Room()):
            shares = self._shares()
            candidates = [t for t in self._tenants if self._may_go(t, claim, shares)]
            if not candidates:
                self._tenants = before
                self._plan.waits[claim.submission_id] = self._why(claim)
                return
            victims.append(
                min(candidates, key=lambda t: (not shares.exceeds(t.owner), _usefulness(t)))
            )
            self._tenants.remove(victims[-1])
        names = sorted(victim.submission_id for victim in victims)
        self._plan.victims.extend(names)
        self._plan.waits[claim.submission_id] = f"Stopping {', '.join(names)} for it."
        self._leaving = sum((victim.room for victim in victims), self._leaving)
        self._settle(claim)

    def _settle(self, claim: Claim) -> None:
        """Count the claim's room as taken, and protect it in this round."""
        self._tenants.append(Tenant(claim.submission_id, claim.owner, claim.room))
        self._leaving -= claim.held
        self._plan.promised.add(claim.submission_id)

    def _fits(self, claim: Claim, leaving: Room) -> bool:
        return self._budget.holds(self._taken() + leaving + claim.room)

    def _taken(self) -> Room:
        return sum((tenant.room for tenant in self._tenants), Room())

    def _has(self, owner: str) -> int:
        return sum(self._budget.size(t.room) for t in self._tenants if t.owner == owner)

    def _shares(self) -> BudgetShares:
        held = ((tenant.owner, tenant.room) for tenant in self._tenants)
        return shares_of(self._budget, held, self._asking)

    def _may_go(self, tenant: Tenant, claim: Claim, shares: BudgetShares) -> bool:
        is_fair = self._is_fair(tenant, claim)
        may_take = shares.may_take(claim.owner, claim.room, tenant.owner)
        return self._is_quiet(tenant) and is_fair and may_take

    def _is_quiet(self, tenant: Tenant) -> bool:
        quiet = timedelta(seconds=self._budget.quiet_s)
        return (
            tenant.used_at is not None
            and tenant.open_streams == 0
            and self._now - tenant.used_at >= quiet
        )

    def _is_fair(self, tenant: Tenant, claim: Claim) -> bool:
        will_have = self._has(claim.owner) + self._budget.size(claim.room)
        return tenant.owner == claim.owner or will_have <= self._has(tenant.owner)

    def _why(self, claim: Claim) -> str:
        busy = sum(not self._is_quiet(tenant) for tenant in self._tenants)
        others = len(self._tenants) - busy
        reasons = []
        if busy:
            reasons.append(f"{busy} started or had traffic within {self._budget.quiet_s:g} s")
        if others:
            reasons.append(f"{others} belong to developers who have no more than their share")
        taken = _text(self._budget, self._taken() + self._leaving)
        return f"{taken} are taken, and none can be freed: {', '.join(reasons) or 'they are being stopped'}."


def spare_replicas(budget: Budget, tenants: Iterable[Tenant], one: Room, wanted: int) -> int:
    """Return how many more replicas, up to ``wanted``, fit into the room that is free."""
    taken = sum((tenant.room for tenant in tenants), Room())
    count = 0
    while count < wanted and budget.holds(taken := taken + one):
        count += 1
    return count


def _usefulness(tenant: Tenant) -> tuple[float, bool, datetime, str]:
    assert tenant.used_at is not None, "only what is quiet is compared"
    return tenant.worth, not tenant.is_rated, tenant.used_at, tenant.submission_id


def _text(budget: Budget, room: Room) -> str:
    parts = []
    if budget.max_gpus:
        parts.append(f"{room.gpus} of {budget.max_gpus} GPUs")
    if budget.max_model_servers:
        parts.append(f"{room.servers} of {budget.max_model_servers} model servers")
    return " and ".join(parts)
