"""Measures how far the leaderboard's intervals can be trusted by those who look all day: figures of docs/benchmarks.md.

    make bench-evidence ARGS='--seasons=100'
    make bench-evidence ARGS='--only=decide,settle --worlds="by 0.25,not at all"'

Thirteen kinds of seasons, all from one seed, the first three looked at every 500 ratings:
equal      20 submissions of the same ratio: how often was one ever shown above another?
differ     ratios from Beta(12, 8), users who differ by their own taste and by the day, and Thompson sampling, which follows what is
           shown: how often was a submission's interval ever beside the mean chance of those who rated it?
again      one submission, 400 users without a preference who come one after the other, and then rate again up to 30 times each: how often did a sequence at 5 %
           ever miss the ratio, by each user's first vote, as the product counts, and by the latest one?
duels      10,000 duels of users with tastes of their own: how often was a strength's interval ever beside what fits all users?
signals    one submission, a fifth of the conversations rated, and a signal of all of them as a control variate: what it gains, and when it misleads.
asked      a random fifth is asked for a rating, with signals of all as control variates: is the estimate right, what do they gain, and what do they cost?
decide     ratios from Beta(12, 8), a look every 100 ratings: after how many ratings is the leader known to be within 5 points of the best, and is it?
           By `decide` with the always-valid test and with Bayes' rule under priors that are given or fitted to past seasons, for users who rate once or
           five times, and by the other policies.
claim      the duels of settle until Bayes' rule says so with 95 %, under the right prior, one fitted to past seasons and two wrong ones, each of which the season's
           own duels correct, and each taken as known.
change     seasons whose best one changes half way, at once, slowly or by a newcomer: what do intervals and claims say then, of those who rated and of now?
forecast   two submissions after 100 duels: how often does a verdict take fewer or more than foretold, where a user gives one, two or five of these?
settle     the same by duels: the pairs that `decide` chooses and the test of their duels, for users who differ more or less, a look every 50 duels.
Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks import (
    asked_seasons,
    changing_seasons,
    control_variates,
    decisions,
    duel_claims,
    duel_seasons,
    forecasts,
    settling_duels,
)
from guanaco.competitions import AssignmentKind, AssignmentRule, RankingRule
from guanaco.simulations import SimulationRequest
from guanaco_server.simulation.seasons import SeasonPlan, season
from guanaco_server.statistics.confidence_sequences import (
    GROWTH,
    LOG_WEIGHT,
    proportion_sequence,
    shared_alpha,
)
from guanaco_server.statistics.intervals import Z_95, wilson_interval

Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]

SUBMISSIONS = 20
PRIOR = 12.0, 8.0
EVERY = 500
RATINGS = 20_000
WITHIN = 0.05
TASTE = 0.8  # standard deviation of a user's log odds
DAY = 0.5  # and of a day's; a look is a day
HALVINGS = 22
PLANNED_FEWER = 10  # times fewer seasons, since each takes a third of a second
SIGNAL_TIMES = 8  # times as many seasons: with 1,000 the gain is known to 3 % only


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seasons", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="KIND,…", help=", ".join(KINDS))
    parser.add_argument(
        "--worlds", metavar="NAME,…", help="of settle: " + "; ".join(settling_duels.WORLDS)
    )
    options = parser.parse_args()
    require_same_intervals()
    kinds = chosen(options.only, KINDS)
    worlds = chosen(options.worlds, settling_duels.WORLDS)
    figures: dict[str, Any] = {"seasons": options.seasons, "seed": options.seed, "seconds": {}}
    for kind in kinds:
        began = time.perf_counter()
        figures[kind] = KINDS[kind](options.seed, options.seasons, worlds)
        figures["seconds"][kind] = round(time.perf_counter() - began, 1)
        print(f"{kind}: {figures['seconds'][kind]} s", file=sys.stderr, flush=True)
    show(figures)
    print(json.dumps(figures))


def chosen(names: str | None, of: Iterable[str]) -> list[str]:
    """Return the names that were given with commas between them, which may be in names too, or all of them."""
    known = sorted(of, key=len, reverse=True)
    found, left = [], names or ""
    while left:
        one = next((name for name in known if f"{left},".startswith(f"{name},")), None)
        if one is None:
            raise SystemExit(f"{left!r} begins with none of: {'; '.join(of)}")
        found.append(one)
        left = left[len(one) + 1 :]
    return found or list(of)


def equal_seasons(chance: np.random.Generator, seasons: int) -> dict[str, float]:
    up, total = _zeros(seasons), _zeros(seasons)
    false_once = {"one look": np.zeros(seasons, bool), "every look": np.zeros(seasons, bool)}
    for _ in range(RATINGS // EVERY):
        new = chance.multinomial(EVERY, [1 / SUBMISSIONS] * SUBMISSIONS, size=seasons)
        total += new
        up += chance.binomial(new, 0.6)
        for kind, (low, high) in (
            ("one look", wilson(up, total)),
            ("every look", sequence(up, total)),
        ):
            false_once[kind] |= low.max(axis=1) > high.min(axis=1)
    return {kind: float(found.mean()) for kind, found in false_once.items()}


def differing_seasons(chance: np.random.Generator, seasons: int) -> dict[str, float]:
    """Return the share of seasons in which no interval of any submission ever missed."""
    odds = _log_odds(chance.beta(*PRIOR, size=(seasons, SUBMISSIONS)))
    up, total = _zeros(seasons), _zeros(seasons)
    expected = np.zeros(up.shape)
    held = {kind: np.ones(up.shape, bool) for kind in ("one look", "every look")}
    rows = np.arange(seasons)
    for _ in range(RATINGS // EVERY):
        day = chance.normal(0, DAY, size=seasons)
        # Within a look the posterior stays, as within a snapshot of the product; each user has a taste of their own.
        drawn = chance.beta(
            1 + up[:, :, None], 1 + total[:, :, None] - up[:, :, None], (*up.shape, EVERY)
        )
        chosen = drawn.argmax(axis=1)
        taste = chance.normal(0, TASTE, size=chosen.shape)
        chances = 1 / (1 + np.exp(-(odds[rows[:, None], chosen] + day[:, None] + taste)))
        votes = chance.random(chosen.shape) < chances
        place = (rows[:, None] * SUBMISSIONS + chosen).ravel()
        size = up.size
        total += np.bincount(place, minlength=size).reshape(up.shape)
        up += np.bincount(place, votes.ravel(), size).reshape(up.shape).astype(np.int64)
        expected += np.bincount(place, chances.ravel(), size).reshape(up.shape)
        rated = total > 0
        mean = np.where(rated, expected / np.maximum(total, 1), 0.5)
        low, high = wilson(up, total)
        held["one look"] &= ~rated | ((low <= mean) & (mean <= high))
        held["every look"] &= log_evidence(mean, up, total) < _threshold()
    return {
        "one look, each submission": float(held["one look"].mean()),
        "one look, all": float(held["one look"].all(axis=1).mean()),
        "every look, each submission": float(held["every look"].mean()),
        "every look, all": float(held["every look"].all(axis=1).mean()),
    }


def rerated_seasons(
    chance: np.random.Generator, seasons: int, users: int = 400, rounds: int = 30
) -> dict[str, float]:
    """Return the share of seasons in which a sequence at 5 % ever missed, looked at after each newcomer and after a quarter of each round."""
    ratio, threshold = 0.6, -math.log(0.05)
    votes = chance.random((seasons, users)) < ratio
    up = np.cumsum(votes, axis=1, dtype=np.int64)
    total = np.broadcast_to(np.arange(1, users + 1), up.shape)
    missed = (log_evidence(np.full(up.shape, ratio), up, total) >= threshold).any(axis=1)
    latest = missed.copy()
    quarter = users // 4
    for turn in range(4 * rounds):
        who = slice(turn % 4 * quarter, (turn % 4 + 1) * quarter)
        votes[:, who] = chance.random((seasons, quarter)) < ratio
        now = votes.sum(axis=1, dtype=np.int64)
        latest |= log_evidence(np.full(seasons, ratio), now, np.full(seasons, users)) >= threshold
    return {"first votes": float(missed.mean()), "latest votes": float(latest.mean())}


def duelled_seasons(seed: int, seasons: int) -> dict[str, float]:
    """Return the share of seasons in which no strength's interval ever missed, by the product's ranking of duels."""
    return _held(duel_seasons.seasons(seed, seasons))


def planned_seasons(seed: int, seasons: int) -> dict[str, float]:
    """Return the same for the pairs that `decide` chooses, and the weights of the product."""
    return _held(duel_seasons.planned_seasons(seed, seasons))


def _held(found: list[duel_seasons.Held]) -> dict[str, float]:
    return {
        "one look, each submission": float(np.mean([one.one_look for one in found])),
        "every look, each submission": float(np.mean([one.every_look for one in found])),
        "every look, all": float(np.mean([one.is_each for one in found])),
    }


def decided_seasons(seed: int, seasons: int) -> dict[str, Any]:
    """Return when each claim was made, by `decide`, and when the always-valid one was by the other policies."""
    claims: dict[str, dict[str, float]] = {}
    for world, users in decisions.WORLDS.items():
        found = decisions.seasons(seed, seasons, WITHIN, users)
        claims |= {
            name + world: _summary(
                [one[name].after for one in found], [one[name].is_wrong for one in found]
            )
            for name in found[0]
        }
    request = SimulationRequest(
        submissions=SUBMISSIONS, seasons=seasons, seed=seed, most_ratings=decisions.MOST_RATINGS
    )
    for kind in (AssignmentKind.UNIFORM, AssignmentKind.ADAPTIVE):
        rule = AssignmentRule(kind=kind, within=WITHIN)
        plan = SeasonPlan(request, rule, RankingRule.THUMBS_UP)
        with ProcessPoolExecutor(decisions.WORKERS) as pool:
            ended = list(pool.map(partial(season, plan), range(seed, seed + seasons), chunksize=4))
        claims[f"always valid, {kind}"] = _summary(
            [one.after for one in ended], [one.is_wrong for one in ended]
        )
    return claims


def settled_seasons(seed: int, seasons: int, worlds: Sequence[str]) -> dict[str, Any]:
    """Return when duels showed that their leader is within the margin of the best, for each kind of users."""
    found = {}
    for name in worlds:
        ended = settling_duels.seasons(seed, seasons, WITHIN, settling_duels.WORLDS[name])
        found[name] = _summary(
            [one.after for one in ended],
            [one.is_wrong for one in ended],
            settling_duels.MOST_DUELS,
        )
    return found


def claimed_seasons(seed: int, seasons: int) -> dict[str, Any]:
    """Return when Bayes' rule said the same with 95 %, by each prior, and how often wrongly."""
    claims: dict[str, dict[str, float]] = {}
    for world, users in duel_claims.WORLDS.items():
        found = duel_claims.seasons(seed, seasons, WITHIN, users)
        claims |= {
            name + world: _summary(
                [one[name].after for one in found],
                [one[name].is_wrong for one in found],
                settling_duels.MOST_DUELS,
            )
            for name in found[0]
        }
    return claims


def _summary(
    after: list[int | None], wrong: list[bool], most: int = decisions.MOST_RATINGS
) -> dict[str, float]:
    ratings = [most if one is None else one for one in after]
    return {
        "median ratings": float(np.median(ratings)),
        "quarter": float(np.quantile(ratings, 0.25)),
        "three quarters": float(np.quantile(ratings, 0.75)),
        "decided": float(np.mean([one is not None for one in after])),
        "wrong": float(np.mean(wrong)),
        "wrong, from": wilson_interval(sum(wrong), len(wrong))[0],
        "wrong, to": wilson_interval(sum(wrong), len(wrong))[1],
    }


def sequence(up: Counts, total: Counts) -> tuple[Floats, Floats]:
    """The product's sequence for many submissions at once."""
    ratio = up / np.maximum(total, 1)
    ends = []
    for outside in (np.zeros(up.shape), np.ones(up.shape)):
        inside = ratio.copy()
        for _ in range(HALVINGS):
            middle = (outside + inside) / 2
            is_out = log_evidence(middle, up, total) >= _threshold()
            outside, inside = np.where(is_out, middle, outside), np.where(is_out, inside, middle)
        ends.append(outside)
    return ends[0], ends[1]


def log_evidence(mean: Floats, up: Counts, total: Counts) -> Floats:
    found = np.full(mean.shape, -np.inf)
    for slope, growth in GROWTH:
        found = np.logaddexp(found, slope * up - total * np.log1p(mean * growth))
    return found + LOG_WEIGHT


def wilson(up: Counts, total: Counts) -> tuple[Floats, Floats]:
    n = np.maximum(total, 1)
    ratio, shrink = up / n, 1 + Z_95**2 / n
    centre = (ratio + Z_95**2 / (2 * n)) / shrink
    spread = Z_95 / shrink * np.sqrt(ratio * (1 - ratio) / n + Z_95**2 / (4 * n * n))
    return np.where(total > 0, centre - spread, 0), np.where(total > 0, centre + spread, 1)


def require_same_intervals() -> None:
    """Fail if the vectorised sequence is not the product's."""
    up, total = np.array([0, 3, 60, 700, 9_000]), np.array([5, 4, 100, 1_000, 20_000])
    low, high = sequence(up, total)
    for at, (successes, trials) in enumerate(zip(up, total, strict=True)):
        ours = proportion_sequence(int(successes), int(trials), shared_alpha(SUBMISSIONS))
        if not np.allclose(ours, (low[at], high[at]), atol=1e-5):
            raise SystemExit(f"the product's interval of {successes} of {trials} is {ours}")


def show(figures: dict[str, Any]) -> None:
    for kind in ("equal", "differ", "again", "duels", "planned duels"):
        for name, share in figures.get(kind, {}).items():
            print(f"{f'{kind}: {MEANT[kind]}, {name}':<72}{share:>9.1%}")
    for name, one in figures.get("signals", {}).items():
        print(f"signals, {name}:", ", ".join(f"{what} {value:.3f}" for what, value in one.items()))
    for kind in ("asked", "asked until settled"):
        for name, one in figures.get(kind, {}).items():
            said = ", ".join(f"{what} {value:,.4f}" for what, value in one.items())
            print(f"{kind}, {name}: {said}")
    for kind in ("change", "forecast"):
        for name, one in figures.get(kind, {}).items():
            for what, value in one.items():
                print(f"{f'{kind}: {name}, {what}':<100}{value:>9,.4g}")
    for kind in ("decide", "claim", "settle"):
        if kind not in figures:
            continue
        title = f"{kind}: within 5 points"
        print(f"{title:<90}{'votes':>8}{'middle half':>18}{'decided':>9}{'wrong':>7}  95 %")
        for name, one in figures[kind].items():
            half = f"{one['quarter']:,.0f} to {one['three quarters']:,.0f}"
            wrong = f"{one['wrong']:>7.1%}  {one['wrong, from']:.1%} to {one['wrong, to']:.1%}"
            print(
                f"{name:<90}{one['median ratings']:>8,.0f}{half:>18}{one['decided']:>9.1%}{wrong}"
            )


def _threshold() -> float:
    return -math.log(shared_alpha(SUBMISSIONS))


def _zeros(seasons: int) -> Counts:
    return np.zeros((seasons, SUBMISSIONS), np.int64)


def _log_odds(chances: Floats) -> Floats:
    found: Floats = np.log(chances / (1 - chances))
    return found


MEANT = {
    "equal": "seasons with a false order",
    "differ": "always held",
    "again": "ever missed",
    "duels": "always held",
    "planned duels": "always held",
}
KINDS: dict[str, Callable[[int, int, Sequence[str]], dict[str, Any]]] = {
    "equal": lambda seed, seasons, _: equal_seasons(np.random.default_rng(seed), seasons),
    "differ": lambda seed, seasons, _: differing_seasons(np.random.default_rng(seed), seasons),
    "again": lambda seed, seasons, _: rerated_seasons(np.random.default_rng(seed), seasons),
    "duels": lambda seed, seasons, _: duelled_seasons(seed, seasons),
    "planned duels": lambda seed, seasons, _: planned_seasons(
        seed, max(1, seasons // PLANNED_FEWER)
    ),
    "signals": lambda seed, seasons, _: control_variates.kinds(seed, SIGNAL_TIMES * seasons),
    "asked": lambda seed, seasons, _: asked_seasons.kinds(seed, seasons),
    "asked until settled": lambda seed, seasons, _: asked_seasons.settled(
        seed, max(1, seasons // 5)
    ),
    "decide": lambda seed, seasons, _: decided_seasons(seed, seasons),
    "claim": lambda seed, seasons, _: claimed_seasons(seed, seasons),
    "change": lambda seed, seasons, _: changing_seasons.kinds(seed, seasons),
    "forecast": lambda seed, seasons, _: forecasts.kinds(seed, seasons),
    "settle": settled_seasons,
}


if __name__ == "__main__":
    main()
