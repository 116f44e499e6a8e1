"""Snapshots: the rule of a competition and its entries with their ratings, from which a submission is chosen.

A choice depends on the snapshot, a seed and a key only, so a recorded decision can be replayed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import count
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from pydantic import BaseModel, ConfigDict

from guanaco.competitions import AssignmentKind, AssignmentRule
from guanaco.contract import without_unknown_fields
from guanaco_server.routing.policies.deciding import decisive
from guanaco_server.routing.policies.duelling import Duelling
from guanaco_server.routing.policies.policies import (
    AssignmentPolicy,
    Entry,
    NewestFirst,
    adaptive,
    uniform,
)
from guanaco_server.routing.policies.posterior import Posterior

if TYPE_CHECKING:  # a light installation simulates with snapshots, and has no database
    from guanaco_server.submissions.catalog import ServingSubmission


class Votes(Protocol):
    @property
    def up(self) -> int: ...

    @property
    def down(self) -> int: ...


class Snapshot(BaseModel):
    """``entries`` are newest first: id, time in seconds, thumbs up, thumbs down, weight. ``duelling`` is there where duels settle who is best."""

    model_config = ConfigDict(frozen=True)

    rule: AssignmentRule
    entries: tuple[Entry, ...]
    duelling: Duelling | None = None

    @cached_property
    def ids(self) -> frozenset[str]:
        return frozenset(entry.id for entry in self.entries)

    @cached_property
    def digest(self) -> str:
        """The key under which the snapshot is recorded."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def take(
    rule: AssignmentRule,
    submissions: Sequence[ServingSubmission],
    votes: Mapping[str, Votes],
    plan: Duelling | None = None,
) -> Snapshot:
    """Take a snapshot. Exclude submissions whose weight is 0."""
    entries = []
    for submission in submissions:
        weight = rule.weights.get(submission.id, 1.0)
        if weight > 0:
            given = votes.get(submission.id)
            up, down = (given.up, given.down) if given else (0, 0)
            entries.append(
                Entry(submission.id, submission.created_at.timestamp(), up, down, weight)
            )
    entries.sort(key=lambda entry: (-entry.created_at, entry.id))
    return Snapshot.model_construct(
        rule=without_unknown_fields(rule), entries=tuple(entries), duelling=plan
    )


async def policy_of(snapshot: Snapshot, posterior: Posterior) -> AssignmentPolicy:
    """Return how the snapshot's rule chooses; uniformly where this version does not know the rule."""
    rule, entries = snapshot.rule, snapshot.entries
    match rule.kind:
        case AssignmentKind.NEWEST:
            return NewestFirst(entries, rule.newest_until)
        case AssignmentKind.UNIFORM:
            return uniform(entries)
        case AssignmentKind.ADAPTIVE if entries:
            return await adaptive(entries, posterior, rule.recency_floor, rule.newest_until)
        case AssignmentKind.DECIDE if entries and snapshot.duelling is not None:
            return snapshot.duelling.conversations(entries)
        case AssignmentKind.DECIDE if entries:
            return decisive(entries, rule.within, rule.recency_floor, rule.newest_until)
        case AssignmentKind.ADAPTIVE | AssignmentKind.DECIDE:
            return uniform(())
        case _:  # a rule of a newer version: conversations must go somewhere while both run
            return uniform(entries)


@dataclass(frozen=True)
class Pool:
    """A snapshot, ready for choices."""

    snapshot: Snapshot
    policy: AssignmentPolicy

    def choose(
        self, seed: int, key: str, seen: Sequence[str] = (), barred: Set[str] = frozenset()
    ) -> str | None:
        """Return an entry that is neither seen nor barred; if there is none, the first of the seen ones that is not barred.

        ``seen`` is least recent first. Return None if all are barred. The same arguments give the same choice.
        """
        chosen = self.policy.choose(draws(seed, key), {*barred, *seen} if seen else barred)
        if chosen is None:
            ids = self.snapshot.ids
            return next((name for name in seen if name in ids and name not in barred), None)
        return chosen

    def chances(self, seen: Sequence[str] = (), barred: Set[str] = frozenset()) -> dict[str, float]:
        """Return the exact chance of each submission to be chosen with such ``seen`` and ``barred``, over all seeds and keys."""
        found = self.policy.chances({*barred, *seen})
        if found:
            return found
        only = self.choose(0, "", seen, barred)
        return {only: 1.0} if only is not None else {}


class DecisionRecord(BaseModel):
    """With the snapshot that ``snapshot`` names, all that the choice depended on; ``key`` is the conversation's id.

    ``seen`` by the user, least recent first; ``barred`` were full, or had no model server. Both contain entries only.
    """

    model_config = ConfigDict(frozen=True)

    snapshot: str
    seed: int
    key: str
    seen: tuple[str, ...] = ()
    barred: tuple[str, ...] = ()


class RivalRecord(DecisionRecord):
    """Record how the rival of a battle was chosen; ``key`` is the battle's id.

    ``seen`` by the user in duels with ``own``, least often first; duels with those in ``spent`` no longer count.
    """

    own: str
    spent: tuple[str, ...] = ()


def choose_rival(pool: Pool, decision: RivalRecord) -> str | None:
    """Choose who answers beside the conversation's own submission: by the plan of duels, or else by the competition's rule."""
    barred = {decision.own, *decision.barred}
    plan = pool.snapshot.duelling
    if plan is not None:
        shares = plan.rivals(decision.own, decision.spent)
        if chosen := shares.choose(draws(decision.seed, decision.key), barred):
            return chosen
    return pool.choose(decision.seed, decision.key, decision.seen, barred)


def rival_chances(pool: Pool, decision: RivalRecord) -> dict[str, float]:
    """Return the chance that each submission had to be the rival when the decision was made."""
    barred = {decision.own, *decision.barred}
    plan = pool.snapshot.duelling
    planned = plan.rivals(decision.own, decision.spent).chances(barred) if plan else {}
    return planned or pool.chances(decision.seen, barred)


async def replay(decision: DecisionRecord, snapshot: Snapshot) -> str | None:
    """Return the submission that was chosen then."""
    pool = Pool(snapshot, await policy_of(snapshot, Posterior()))
    return pool.choose(decision.seed, decision.key, decision.seen, frozenset(decision.barred))


async def chances_of(decision: DecisionRecord, snapshot: Snapshot) -> dict[str, float]:
    """Return the chance that each submission had when the decision was made."""
    pool = Pool(snapshot, await policy_of(snapshot, Posterior()))
    return pool.chances(decision.seen, frozenset(decision.barred))


WORDS = Struct("<8Q")


def draws(seed: int, key: str) -> Iterator[float]:
    """Numbers in [0, 1), uniform and without end, that depend on nothing but the seed and the key."""
    for block in count():
        digest = blake2b(f"{seed} {block} {key}".encode(), digest_size=WORDS.size).digest()
        for word in WORDS.unpack(digest):
            yield (word >> 11) * 2.0**-53
