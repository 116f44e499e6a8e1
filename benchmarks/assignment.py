"""The assignment policies over synthetic seasons, and what one assignment costs: figures of docs/benchmarks.md.

    make bench-assignment ARGS='--seasons=10'

A season: submissions arrive one after another, each with a true thumbs-up ratio; every conversation is rated, and the
policy sees the ratings every hundred. Its best one is known once a posterior probability of being the best is 95 %.
Prints two tables, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from guanaco.accounts import Role
from guanaco.competitions import (
    OPEN,
    AssignmentKind,
    AssignmentRule,
    Competition,
    CompetitionRequest,
)
from guanaco.prompts import PromptFormatter
from guanaco.submissions import GenerationParams, Status
from guanaco_server.competitions.service import OPEN_COMPETITION
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.routing.policies.policies import Entry
from guanaco_server.routing.policies.posterior import Posterior
from guanaco_server.routing.snapshot import Pool, Snapshot, policy_of
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.world import World

PRIOR = 12.0, 8.0  # of true ratios: mean 60 %, two thirds within 49 and 71 %
EVERY = 100  # ratings between two snapshots
ARRIVAL = 100  # ratings between two arrivals
MIDDLE = 5_000  # ratings after which winners and fairness are compared
KNOWN = 0.95
LIVE = 1_000
KINDS = tuple(AssignmentKind)


@dataclass(frozen=True)
class Season:
    """``known_after`` is None where the ratings did not do; ``counts`` are each one's ratings at MIDDLE, best one first."""

    known_after: int | None
    is_right: bool
    is_right_at_middle: bool
    counts: tuple[int, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seasons", type=int, default=24)
    parser.add_argument("--submissions", type=int, default=20)
    parser.add_argument("--ratings", type=int, default=20_000, help="after which a season ends")
    parser.add_argument("--only", choices=["policies", "assignment"], help="measure this alone")
    options = parser.parse_args()
    figures: dict[str, Any] = {
        "policies": {
            kind.value: seasons_of(kind, options.seasons, options.submissions, options.ratings)
            for kind in KINDS
            if options.only != "assignment"
        },
        "assignment": {
            kind.value: asyncio.run(cost_of(kind)) for kind in KINDS if options.only != "policies"
        },
        "seasons": options.seasons,
        "submissions": options.submissions,
        "ratings": options.ratings,
        "live": LIVE,
        "cores": os.cpu_count(),
    }
    show(figures)
    print(json.dumps(figures))


def seasons_of(
    kind: AssignmentKind, seasons: int, submissions: int, ratings: int
) -> dict[str, Any]:
    print(f"{seasons} seasons of {kind}", file=sys.stderr)
    run = partial(season, kind, submissions, ratings)
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(run, range(seasons)))
    known = [one for one in found if one.known_after is not None]
    rests = [one.counts[1:] for one in found]
    return {
        "ratings_until_known": statistics.median(
            one.known_after or float(ratings) for one in found
        ),
        "known_share": len(known) / seasons,
        "right_when_known": sum(one.is_right for one in known) / max(1, len(known)),
        "right_at_5000": sum(one.is_right_at_middle for one in found) / seasons,
        "rest_least_ratings": statistics.median(min(rest) for rest in rests),
        "rest_median_ratings": statistics.median(statistics.median(rest) for rest in rests),
        "rest_jain": round(statistics.fmean(map(jain, rests)), 3),
    }


def season(kind: AssignmentKind, submissions: int, ratings: int, seed: int) -> Season:
    """The same true ratios for every policy."""
    return asyncio.run(_season(kind, submissions, ratings, seed))


async def _season(kind: AssignmentKind, submissions: int, ratings: int, seed: int) -> Season:
    chance = random.Random(seed)
    truth = [chance.betavariate(*PRIOR) for _ in range(submissions)]
    best = max(range(submissions), key=truth.__getitem__)
    votes = [[0, 0] for _ in truth]
    rule, posterior = AssignmentRule(kind=kind, seed=seed), Posterior()
    known_after: int | None = None
    winner, is_right_at_middle = best, False
    counts: tuple[int, ...] = ()
    for given in range(0, ratings, EVERY):
        arrived = min(submissions, 1 + given // ARRIVAL)
        pairs = [(up, down) for up, down in votes[:arrived]]
        chances = await posterior.best_probabilities(pairs)
        leader = max(range(arrived), key=chances.__getitem__)
        if arrived == submissions and known_after is None and chances[leader] >= KNOWN:
            known_after, winner = given, leader
        if given == MIDDLE:
            is_right_at_middle = leader == best
            rest = (sum(pair) for place, pair in enumerate(votes) if place != best)
            counts = (sum(votes[best]), *rest)
        if known_after is not None and given >= MIDDLE:
            return Season(known_after, winner == best, is_right_at_middle, counts)
        pool = await _pool(rule, pairs, posterior)
        for number in range(given, given + EVERY):
            place = int(pool.choose(seed, str(number)) or 0)
            votes[place][chance.random() >= truth[place]] += 1
    return Season(None, False, is_right_at_middle, counts)


async def _pool(
    rule: AssignmentRule, pairs: Sequence[tuple[int, int]], posterior: Posterior
) -> Pool:
    entries = [Entry(str(place), place, up, down, 1.0) for place, (up, down) in enumerate(pairs)]
    snapshot = Snapshot.model_construct(rule=rule, entries=tuple(reversed(entries)))
    return Pool(snapshot, await policy_of(snapshot, posterior))


def jain(counts: Sequence[int]) -> float:
    """1 where all have the same, 1/n where one has all."""
    return sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))


async def cost_of(kind: AssignmentKind) -> dict[str, float]:
    """Time one assignment among LIVE submissions, over the real service and a database with their rows."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite+aiosqlite:///{Path(folder, 'guanaco.db')}")
        await upgrade(database)
        world = await _crowded(database)
        request = CompetitionRequest(
            name="Open",
            starts_at=OPEN_COMPETITION.starts_at,
            assignment=AssignmentRule(kind=kind),
        )
        await world.competitions.put(OPEN, request)
        rules = await world.competitions.find(OPEN)
        seeded = AssignmentRule(kind=kind, seed=7)
        began = time.perf_counter()
        await world.routing.refresh()
        cold = time.perf_counter() - began
        began = time.perf_counter()
        await world.routing.refresh()
        warm = time.perf_counter() - began
        figures = {
            "fresh_us": await _timed(world, rules, 0),
            "seen_20_us": await _timed(world, rules, 20),
            "seeded_us": await _timed(world, rules.model_copy(update={"assignment": seeded}), 20),
            "first_refresh_ms": round(cold * 1e3, 1),
            "refresh_ms": round(warm * 1e3, 1),
        }
        await database.close()
        return figures


async def _crowded(database: Database) -> World:
    world, chance = World(database), random.Random(1)
    developer = await world.account(Role.DEVELOPER)
    await world.publish(developer, "first_v1")
    rows = [
        SubmissionRow(
            id=f"s{number}_v1", account_id=developer.id, developer="d", repo="acme/tiny", name="t",
            status=Status.DEPLOYED, params=GenerationParams(), formatter=PromptFormatter(), artifact_key="a" * 64,
            request_hash="", created_at=world.clock.now(), updated_at=world.clock.now(),
        )
        for number in range(1, LIVE)
    ]  # fmt: skip
    async with database.write() as session:
        session.add_all(rows)
    votes = {OPEN: {row.id: VoteCount(chance.randrange(60), chance.randrange(40)) for row in rows}}
    for row in rows:
        world.deployments.note_replicas(row.id, ("memory://",))

    async def count_votes() -> dict[str, dict[str, VoteCount]]:
        return votes

    world.routing._count_votes = count_votes
    return world


async def _timed(world: World, rules: Competition, seen: int, rounds: int = 20_000) -> float:
    """Microseconds of processor time, whatever else the machine does: the median of five times the rounds."""
    had = [f"s{number}_v1" for number in range(1, 1 + seen)]
    keys = [f"conv_{number:032x}" for number in range(rounds)]
    samples = []
    for _ in range(5):
        began = time.process_time()
        for key in keys:
            await world.routing.assign(rules, had, key)
        samples.append((time.process_time() - began) / rounds * 1e6)
    return round(statistics.median(samples), 1)


def show(figures: dict[str, Any]) -> None:
    print(f"\n{figures['seasons']} seasons, {figures['submissions']} submissions each\n")
    _table(figures["policies"])
    print(f"\nOne assignment among {LIVE:,} live submissions\n")
    _table(figures["assignment"])
    print()


def _table(columns: dict[str, dict[str, float]]) -> None:
    names = list(next(iter(columns.values()), ()))
    print(f"  {'':<24}" + "".join(f"{column:>12}" for column in columns))
    for name in names:
        print(f"  {name:<24}" + "".join(f"{values[name]:>12,.5g}" for values in columns.values()))


if __name__ == "__main__":
    main()
