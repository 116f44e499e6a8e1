"""Attacks on a verdict by duels: what the rules leave out, and what is left of them. Figures of docs/benchmarks.md.

    make bench-fraud ARGS='--duels --seasons=20'

A season: 20 submissions and 3,000 honest duels of users with five each, on the pairs that the platform chooses. The attacker owns the one in the middle and
adds duels, 1 to 5 % of the honest ones. An attacker knows their own model's words, so every vote goes as they like. Places are by the strengths of
statistics/duel_strengths.py, with every duel and with those that count. *Settled wrongly* are seasons whose leader is called within the margin of
the best by the duels that count, and is not; *led* are those in which the attacker's leads.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from benchmarks.settling_duels import SUBMISSIONS, World
from guanaco_server.duels.records import RecordedDuel
from guanaco_server.leaderboard.counting.votes import VotingWindow
from guanaco_server.leaderboard.flags.rules import Owner
from guanaco_server.leaderboard.ranking.duels.duel_table import DuelTable, DuelVotes
from guanaco_server.simulation.duels import DuelPlan, PlainDuelCounter, Users, duel_season
from guanaco_server.statistics.duel_decisions import DuelCount, compare_duels
from guanaco_server.statistics.duel_strengths import (
    NO_DUEL,
    PairCounts,
    duels_between,
    leader_of,
    members_of,
    results_of,
    strengths_of,
)

HONEST = 3_000
WITHIN = 0.05
SHARES = (0.01, 0.02, 0.05)
START = datetime(2026, 1, 1, tzinfo=UTC)
USERS = Users(duels=5)
NEVER = (
    1e-290  # an error for which nothing is ever shown, so that a season is as long as it is to be
)
OWNERS = {f"submission-{n:02}": Owner(f"dev-{n}", f"dev-{n}") for n in range(SUBMISSIONS)}

Given = tuple[str, str, str, float]  # user, first, second, worth for the first


@dataclass(frozen=True)
class Season:
    """``order`` has the submissions by their honest strengths, the best first; ``likes`` is the truth."""

    duels: list[Given]
    order: list[str]
    likes: dict[str, float]

    @property
    def target(self) -> str:
        return self.order[SUBMISSIONS // 2]


class Recorder(PlainDuelCounter):
    def __init__(self) -> None:
        super().__init__()
        self.duels: list[Given] = []

    def add(self, user: int, first: str, second: str, worth: float) -> None:
        super().add(user, first, second, worth)
        self.duels.append((f"u{user}", first, second, worth))


def recorded(seed: int, users: Users, duels: int) -> tuple[dict[str, float], list[Given]]:
    """Simulate a season of this number of duels, whatever they show; return how much each submission is liked, and the duels."""
    recorder = Recorder()
    likes: list[float] = []

    def drawn(chance: random.Random) -> list[float]:
        likes.extend(World(users).likes(chance))
        return likes

    plan = DuelPlan(SUBMISSIONS, WITHIN, 0.1, 50, duels, users, drawn, NEVER)
    duel_season(plan, seed, lambda: recorder)
    return dict(zip(OWNERS, likes, strict=True)), recorder.duels


def honest_season(seed: int) -> Season:
    likes, duels = recorded(seed, USERS, HONEST)
    strengths = strengths_of(results_of(list(OWNERS), every(duels)))
    order = sorted(OWNERS, key=lambda name: -strengths[name])
    return Season(duels, order, likes)


def one_id(season: Season, votes: int) -> Iterator[Given]:
    """One user prefers the attacker's to the leader, as often as it takes."""
    for _ in range(votes):
        yield "x", season.target, season.order[0], 1.0


def ids_of_twenty(season: Season, votes: int) -> Iterator[Given]:
    """Each user prefers the attacker's to four others, five times each."""
    for n in range(votes):
        yield f"x{n // 20}", season.target, season.order[n % 4], 1.0


def ids_of_nineteen(season: Season, votes: int) -> Iterator[Given]:
    """The same, and no user gives twenty."""
    for n in range(votes):
        yield f"x{n // 19}", season.target, season.order[n % 19 % 4], 1.0


def ids_of_one(season: Season, votes: int) -> Iterator[Given]:
    """Each user prefers the attacker's to the leader once."""
    for n in range(votes):
        yield f"x{n}", season.target, season.order[0], 1.0


def leader_down(season: Season, votes: int) -> Iterator[Given]:
    """Each user prefers another one to the leader, once."""
    for n in range(votes):
        yield f"x{n}", season.order[1 + n % (SUBMISSIONS - 1)], season.order[0], 1.0


ATTACKS: dict[str, Callable[[Season, int], Iterator[Given]]] = {
    "one id": one_id,
    "ids of twenty": ids_of_twenty,
    "ids of nineteen": ids_of_nineteen,
    "ids of one": ids_of_one,
    "leader down": leader_down,
}


def figures(seasons: int) -> list[dict[str, float | str]]:
    """Run each attack at each size on the same seasons."""
    honest = [honest_season(seed) for seed in range(seasons)]
    sizes = [("none", 0.0), *((name, share) for name in ATTACKS for share in SHARES)]
    return [{"attack": name, "share": share, **_run(honest, name, share)} for name, share in sizes]


def _run(honest: Sequence[Season], attack: str, share: float) -> dict[str, float]:
    left_out, places_all, places, led, settled, wrong = [], [], [], [], [], []
    for season in honest:
        given = list(ATTACKS[attack](season, round(share * HONEST))) if share else []
        valid = counted([*season.duels, *given])
        counts = valid.by_pair()
        before = counted(season.duels).by_pair()
        honest_held = sum(pair.total for pair in before.values())
        held = sum(pair.total for pair in counts.values())
        left_out.append(1 - (held - honest_held) / len(given) if given else 0.0)
        usual = place(before, season.target)
        places_all.append(usual - place(every([*season.duels, *given]), season.target))
        places.append(usual - place(counts, season.target))
        leader = leader_of(list(OWNERS), counts)
        assert leader is not None
        led.append(leader == season.target)
        is_settled = is_shown(counts, leader)
        gap = season.likes[leader] - max(season.likes.values())
        settled.append(is_settled)
        wrong.append(is_settled and USERS.preferred(gap) < 0.5 - WITHIN)
    mean = statistics.fmean
    return {
        "left_out": mean(left_out),
        "places_none": mean(places_all),
        "places_today": mean(places),
        "led": mean(led),
        "settled": mean(settled),
        "wrong": mean(wrong),
    }


def counted(duels: Sequence[Given]) -> DuelVotes:
    """Return the duels that the platform counts, by the table that its rankings read."""
    table = DuelTable()
    table.take(
        RecordedDuel(
            f"battle-{n:06}",
            "app",
            user,
            first,
            second,
            ((START + timedelta(seconds=n), {1.0: "a", 0.0: "b"}.get(worth, "tie")),),
        )
        for n, (user, first, second, worth) in enumerate(duels)
    )
    return table.counted(OWNERS, VotingWindow(START, None))


def every(duels: Sequence[Given]) -> PairCounts:
    """Count every duel."""
    found: dict[tuple[str, str], DuelCount] = {}
    for _, first, second, worth in duels:
        pair = (first, second) if first < second else (second, first)
        seen = worth if first < second else 1 - worth
        found[pair] = found.get(pair, NO_DUEL).plus(seen)
    return found


def place(counts: PairCounts, target: str) -> int:
    strengths = strengths_of(results_of(list(OWNERS), counts))
    return 1 + sum(one > strengths[target] for one in strengths.values())


def is_shown(counts: PairCounts, leader: str) -> bool:
    return all(
        compare_duels(
            duels_between(counts, leader, name),
            margin=WITHIN,
            members=members_of(counts),
            foretells=False,
        ).is_within
        for name in OWNERS
        if name != leader
    )


def show(found: Sequence[dict[str, float | str]]) -> None:
    print(f"{'attack':18}{'share':>7}  left out  places: every duel, today    led  settled  wrong")
    for one in found:
        print(
            f"{one['attack']:18}{one['share']:7.1%}{one['left_out']:10.0%}{one['places_none']:20.1f}"
            f"{one['places_today']:7.1f}{one['led']:7.0%}{one['settled']:9.0%}{one['wrong']:7.0%}"
        )
