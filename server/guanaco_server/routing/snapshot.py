"""What a choice depends on, beside chance: a competition's rule, and its entries with their ratings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from guanaco.competitions import AssignmentKind, AssignmentRule
from guanaco.contract import without_unknown_fields
from guanaco_server.routing.draws import draws
from guanaco_server.routing.policies.adaptive import adaptive
from guanaco_server.routing.policies.newest import NewestFirst
from guanaco_server.routing.policies.posterior import Posterior
from guanaco_server.routing.policies.uniform import uniform
from guanaco_server.routing.policy import AssignmentPolicy, Entry
from guanaco_server.submissions.service import ServingSubmission


class Votes(Protocol):
    @property
    def up(self) -> int: ...

    @property
    def down(self) -> int: ...


class Snapshot(BaseModel):
    """``entries`` are newest first: id, time in seconds, thumbs up, thumbs down, weight."""

    model_config = ConfigDict(frozen=True)

    rule: AssignmentRule
    entries: tuple[Entry, ...]

    @cached_property
    def ids(self) -> frozenset[str]:
        return frozenset(entry.id for entry in self.entries)

    @cached_property
    def digest(self) -> str:
        """What it is recorded under."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def take(
    rule: AssignmentRule, submissions: Sequence[ServingSubmission], votes: Mapping[str, Votes]
) -> Snapshot:
    """Without the submissions of no weight."""
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
    return Snapshot.model_construct(rule=without_unknown_fields(rule), entries=tuple(entries))


async def policy_of(snapshot: Snapshot, posterior: Posterior) -> AssignmentPolicy:
    """How the snapshot's rule chooses; uniformly where this version does not know the rule."""
    rule, entries = snapshot.rule, snapshot.entries
    match rule.kind:
        case AssignmentKind.NEWEST:
            return NewestFirst(entries, rule.newest_until)
        case AssignmentKind.UNIFORM:
            return uniform(entries)
        case AssignmentKind.ADAPTIVE if entries:
            return await adaptive(entries, posterior, rule.recency_floor, rule.newest_until)
        case AssignmentKind.ADAPTIVE:
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
        """One that is neither seen nor barred; if there is none, of the seen ones that are not barred the first.

        ``seen`` is least recent first. None when all are barred. The same arguments give the same choice.
        """
        chosen = self.policy.choose(draws(seed, key), {*barred, *seen} if seen else barred)
        if chosen is None:
            ids = self.snapshot.ids
            return next((name for name in seen if name in ids and name not in barred), None)
        return chosen
