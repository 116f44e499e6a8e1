"""Attacks on a board: what the rules find, and by how many places they move a submission. Figures of docs/benchmarks.md.

    make bench-fraud ARGS='--seasons=5'
    make bench-fraud ARGS='--duels'  (duel_fraud.py)

A season: 20 submissions of as many developers with true ratios from Beta(12, 8), and 10,000 honest votes in 14 days from users
who rate about four submissions each. The attacker owns the submission in the middle of the board and adds votes, 0.1 to 5 % of
the honest ones. Places are those of the thumbs-up ratios, ranks those of the board. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from benchmarks import duel_fraud
from guanaco.competitions import Competition, RankingRule
from guanaco_server.competitions.service import OPEN_COMPETITION
from guanaco_server.feedback.records import RecordedRating
from guanaco_server.leaderboard.flags.patterns import VoteBreadth, contrasts
from guanaco_server.leaderboard.flags.rules import Owner
from guanaco_server.leaderboard.ranking.rules import standings
from guanaco_server.leaderboard.seasons.document import counted_votes
from guanaco_server.statistics.votes import VoteCount

SUBMISSIONS = 20
HONEST = 10_000
DAYS = 14
RATES = 4  # submissions that an honest user rates, in the mean
PRIOR = 12.0, 8.0
SHARES = (0.0, 0.001, 0.005, 0.01, 0.02, 0.05)
START = datetime(2026, 1, 1, tzinfo=UTC)
SITTING = timedelta(minutes=10)

Vote = tuple[str, str, bool]  # user, submission, thumbs up


@dataclass(frozen=True)
class Season:
    """``order`` has the submissions by their honest ratios, the best first."""

    ratings: list[RecordedRating]
    order: list[str]
    chance: random.Random

    @property
    def target(self) -> str:
        return self.order[SUBMISSIONS // 2]

    @property
    def rival(self) -> str:
        return self.order[SUBMISSIONS // 2 - 1]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one attack.

    Attributes:
        left_out: The share of the attack's ratings that today's rules leave out.
        innocent: The honest ratings that they leave out.
        places: By how many places the target moved without any rule, with today's rules, and without the narrow votes
            of those that the pattern names as well.
        ranks: By how many ranks it moved with today's rules.
        is_found: Whether the pattern names the submission that was attacked.
        false_names: How many others it names.
    """

    left_out: float
    innocent: int
    places: tuple[int, int, int]
    ranks: int
    is_found: bool
    false_names: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seasons", type=int, default=20)
    parser.add_argument("--duels", action="store_true", help="attack the verdict by duels")
    options = parser.parse_args()
    if options.duels:
        found = duel_fraud.figures(options.seasons)
        duel_fraud.show(found)
        print(json.dumps({"seasons": options.seasons, "figures": found}))
        return
    seasons = list(range(options.seasons))
    with ProcessPoolExecutor() as pool:
        found_of = list(pool.map(outcomes, seasons))
    figures = [
        {"attack": name, "share": share, **summary([found[place] for found in found_of])}
        for place, (name, share) in enumerate(CASES)
    ]
    print(
        f"{'attack':16}{'share':>7}  left out  found  places: no rule, today, with pattern   ranks"
    )
    for one in figures:
        print(
            f"{one['attack']:16}{one['share']:7.1%}{one['left_out']:9.0%}{one['found']:8.0%}"
            f"{one['places_none']:12.1f}{one['places_today']:10.1f}{one['places_pattern']:10.1f}{one['ranks']:18.1f}"
        )
    print(json.dumps({"seasons": options.seasons, "figures": figures}))


def outcomes(seed: int) -> list[Outcome]:
    """Return the outcome of each case, all in the same season."""
    season = honest_season(seed)
    before = votes_by_rules(season.ratings)
    state = season.chance.getstate()
    found = []
    for attack, share in CASES:
        season.chance.setstate(state)
        found.append(outcome(attack, share, season, before))
    return found


def summary(found: Sequence[Outcome]) -> dict[str, float]:
    """Return the means over seasons, and the standard error of the places that the rules leave."""
    mean = statistics.fmean
    places = [one.places[1] for one in found]
    spread = statistics.stdev(places) if len(places) > 1 else 0.0
    return {
        "places_error": spread / math.sqrt(len(places)),
        "left_out": mean(one.left_out for one in found),
        "innocent": mean(one.innocent for one in found),
        "found": mean(one.is_found for one in found),
        "false_names": mean(one.false_names for one in found),
        "places_none": mean(one.places[0] for one in found),
        "places_today": mean(one.places[1] for one in found),
        "places_pattern": mean(one.places[2] for one in found),
        "ranks": mean(one.ranks for one in found),
    }


def outcome(attack: str, share: float, season: Season, before: list[Vote]) -> Outcome:
    """Return the outcome of one attack; ``before`` are the votes that count without it."""
    added = [
        RecordedRating(
            f"attack-{n}", f"c-attack-{n}", name, "open", user, "app", thumbs_up, START + at
        )
        for n, (user, name, thumbs_up, at) in enumerate(
            ATTACKS[attack](season, round(share * HONEST))
        )
    ]
    ratings = season.ratings + added
    today = votes_by_rules(ratings)
    counted = {(user, name) for user, name, _ in today}
    by_user = {(rating.user_key, rating.submission_id) for rating in added}
    honest = {(rating.user_key, rating.submission_id) for rating in season.ratings}
    suspected = suspects(today)
    attacked = season.rival if attack == "down_votes" else season.target
    cleaned = without_narrow(today, suspected)
    return Outcome(
        left_out=len(by_user - counted) / len(by_user) if by_user else 0.0,
        innocent=len(honest - by_user - counted),
        places=(
            place(before, season.target) - place(latest(ratings), season.target),
            place(before, season.target) - place(today, season.target),
            place(before, season.target) - place(cleaned, season.target),
        ),
        ranks=rank(before, season.target) - rank(today, season.target),
        is_found=attacked in suspected,
        false_names=len(suspected - {attacked}),
    )


def honest_season(seed: int) -> Season:
    chance = random.Random(seed)
    names = [f"s{n}" for n in range(SUBMISSIONS)]
    truth = {name: chance.betavariate(*PRIOR) for name in names}
    ratings: list[RecordedRating] = []
    user = 0
    while len(ratings) < HONEST:
        user += 1
        rated = min(SUBMISSIONS, 1 + int(chance.expovariate(1 / (RATES - 0.5))))
        for name in chance.sample(names, rated):
            n, at = len(ratings), START + timedelta(days=chance.uniform(0, DAYS))
            is_up = chance.random() < truth[name]
            ratings.append(
                RecordedRating(f"f{n}", f"c{n}", name, "open", f"u{user}", "app", is_up, at)
            )
    ups = counts_of(latest(ratings))
    order = sorted(names, key=lambda name: -ups[name].up / ups[name].total)
    return Season(ratings, order, chance)


Attack = Iterator[tuple[str, str, bool, timedelta]]


def sybils(season: Season, votes: int) -> Attack:
    """One id a vote, all within ten minutes."""
    for n in range(votes):
        at = timedelta(days=DAYS - 1) + season.chance.random() * SITTING
        yield f"x{n}", season.target, True, at


def slow_drip(season: Season, votes: int) -> Attack:
    """One id a vote, spread over the season."""
    for n in range(votes):
        yield f"x{n}", season.target, True, timedelta(days=season.chance.uniform(0, DAYS))


def down_votes(season: Season, votes: int) -> Attack:
    """One id a vote, thumbs down for the one that stands before the attacker, spread over the season."""
    for n in range(votes):
        yield f"x{n}", season.rival, False, timedelta(days=season.chance.uniform(0, DAYS))


def collusion(season: Season, votes: int) -> Attack:
    """Three developers of the board's middle: each id votes up all three, spread over the season."""
    middle = SUBMISSIONS // 2
    ring = season.order[middle : middle + 3]
    for n in range(votes):
        at = timedelta(days=season.chance.uniform(0, DAYS))
        yield f"x{n // 3}", ring[n % 3], True, at


def disguised(season: Season, votes: int) -> Attack:
    """Each id votes up the attacker's, and then on three others at random: a vote of four helps."""
    others = [name for name in season.order if name != season.target]
    for n in range(votes // 4):
        at = timedelta(days=season.chance.uniform(0, DAYS))
        yield f"x{n}", season.target, True, at
        for name in season.chance.sample(others, 3):
            yield f"x{n}", name, season.chance.random() < 0.6, at


ATTACKS = {
    "sybils": sybils,
    "slow_drip": slow_drip,
    "down_votes": down_votes,
    "collusion": collusion,
    "disguised": disguised,
}


CASES = [(name, share) for name in ATTACKS for share in SHARES if share or name == "sybils"]


def votes_by_rules(ratings: Sequence[RecordedRating]) -> list[Vote]:
    """The votes that the platform counts: by the function that ranks a frozen season."""
    competition = Competition.model_validate(
        OPEN_COMPETITION.model_dump() | {"starts_at": START, "ends_at": None, "frozen_at": None}
    )
    owners = {f"s{n}": Owner(f"dev-{n}", f"dev-{n}") for n in range(SUBMISSIONS)}
    counted = counted_votes(competition, ratings, owners, set())
    return [(one.user, one.submission_id, one.first_up) for one in counted]


def latest(ratings: Sequence[RecordedRating]) -> list[Vote]:
    found = {
        (one.user_key, one.submission_id): one.thumbs_up
        for one in sorted(ratings, key=lambda one: one.at)
    }
    return [(user, name, is_up) for (user, name), is_up in found.items()]


def suspects(votes: Sequence[Vote]) -> set[str]:
    breadth = Counter(user for user, _, _ in votes)
    kinds: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for user, name, is_up in votes:
        kinds[name][2 * (breadth[user] > 1) + (not is_up)] += 1
    board = {
        name: VoteBreadth(VoteCount(up, down), VoteCount(wide_up, wide_down))
        for name, (up, down, wide_up, wide_down) in kinds.items()
    }
    return {name for name, one in contrasts(board).items() if one.is_suspicious}


def without_narrow(votes: Sequence[Vote], suspected: set[str]) -> list[Vote]:
    breadth = Counter(user for user, _, _ in votes)
    return [vote for vote in votes if vote[1] not in suspected or breadth[vote[0]] > 1]


def counts_of(votes: Sequence[Vote]) -> dict[str, VoteCount]:
    ups = Counter(name for _, name, is_up in votes if is_up)
    every = Counter(name for _, name, _ in votes)
    return {name: VoteCount(ups[name], total - ups[name]) for name, total in every.items()}


def place(votes: Sequence[Vote], target: str) -> int:
    ratios = {name: one.up / one.total for name, one in counts_of(votes).items()}
    return 1 + sum(ratio > ratios[target] for ratio in ratios.values())


def rank(votes: Sequence[Vote], target: str) -> int:
    found = standings(RankingRule.THUMBS_UP, counts_of(votes), (), ())
    return next(one.rank for one in found if one.submission_id == target)


if __name__ == "__main__":
    main()
