"""Tests what uniform assignment would have shown, where the users of two apps are assigned at other chances on other days."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest

from guanaco_server.statistics.off_policy import AssignedConversation, UniformSums, uniform_ratios

LIKES = {("a", "happy"): 0.8, ("a", "grim"): 0.4, ("b", "happy"): 0.8, ("b", "grim"): 0.4}
RATES = {"happy": 0.7, "grim": 0.4}
DAYS, A_DAY, SEASONS = 6, 120, 60
# Both submissions please alike; the happy app's users are half of all, and rate more often.
TRUTH = (0.7 * 0.8 + 0.4 * 0.4) / (0.7 + 0.4)


def season(seed: int, stratum_of: Callable[[str, int], object]) -> list[AssignedConversation]:
    """On the first days most users are happy and ``a`` is favoured; later neither."""
    chance = random.Random(seed)
    found = []
    for n in range(DAYS * A_DAY):
        day = n // A_DAY
        is_early = day < DAYS // 2
        app = "happy" if chance.random() < (0.8 if is_early else 0.2) else "grim"
        chances = {"a": 0.85, "b": 0.15} if is_early else {"a": 0.3, "b": 0.7}
        chosen = "a" if chance.random() < chances["a"] else "b"
        is_rated = chance.random() < RATES[app]
        vote = chance.random() < LIKES[chosen, app] if is_rated else None
        found.append(
            AssignedConversation(f"u{n % 500}", stratum_of(app, day), chances, chosen, vote)
        )
    return found


@pytest.mark.parametrize(
    "stratum_of",
    [lambda app, day: (app, day), lambda app, day: "all alike"],
    ids=["good model", "no model"],
)
def test_the_estimate_is_unbiased_where_the_ratio_is_not(
    stratum_of: Callable[[str, int], object],
) -> None:
    ratios: dict[str, list[float]] = {"a": [], "b": []}
    observed: dict[str, list[float]] = {"a": [], "b": []}
    misses = 0
    for seed in range(SEASONS):
        found = uniform_ratios(season(seed, stratum_of))
        for name, one in found.items():
            assert one.ratio is not None
            assert one.observed is not None
            assert one.low is not None
            assert one.high is not None
            ratios[name].append(one.ratio)
            observed[name].append(one.observed)
            misses += not one.low <= TRUTH <= one.high
    assert statistics.fmean(observed["a"]) - statistics.fmean(observed["b"]) > 0.08
    for name in ("a", "b"):
        error = statistics.stdev(ratios[name]) / SEASONS**0.5
        assert statistics.fmean(ratios[name]) == pytest.approx(TRUTH, abs=3.5 * error + 0.002)
    assert misses <= 3


def test_a_submission_counts_only_where_it_could_have_been_chosen() -> None:
    ones = [
        AssignedConversation(f"u{n}", "x", {"a": 1.0, "b": 0.0}, "a", n % 2 == 0) for n in range(50)
    ]
    found = uniform_ratios(ones)
    assert found.keys() == {"a"}
    assert found["a"].ratio == found["a"].observed == 0.5


def test_few_users_have_no_interval_and_none_no_ratio() -> None:
    (one,) = uniform_ratios([AssignedConversation("u", "x", {"a": 1.0}, "a", True)]).values()
    assert (one.conversations, one.rated, one.low) == (1, 1, None)
    (none,) = uniform_ratios([AssignedConversation("u", "x", {"a": 1.0}, "a", None)]).values()
    assert (none.observed, none.ratio) == (None, None)


@pytest.mark.parametrize(("chance", "rates"), [(0.05, 0.5), (0.2, 0.2)])
def test_first_looks_at_a_rare_submission_do_not_mislead(chance: float, rates: float) -> None:
    misses = intervals = 0
    for seed in range(10):
        draw, sums = random.Random(seed), UniformSums()
        chances = {"rare": chance, "usual": 1 - chance}
        for n in range(round(60 / (chance * rates))):
            chosen = "rare" if draw.random() < chance else "usual"
            vote = draw.random() < 0.6 if draw.random() < rates else None
            sums.add(AssignedConversation(n, "x", chances, chosen, vote))
            if chosen == "usual" or vote is None or n < 30:
                continue
            found = sums.ratios()["rare"]
            if found.low is not None and found.high is not None:
                intervals += 1
                if not found.low <= 0.6 <= found.high:
                    misses += 1
                    break
    assert (misses, intervals > 10) == (0, True)


def test_a_crowd_beside_one_heavy_vote_has_no_interval() -> None:
    ones = [AssignedConversation(n, "x", {"a": 1.0, "b": 0.0}, "a", n % 2 == 0) for n in range(100)]
    assert uniform_ratios(ones)["a"].low is not None
    heavy = AssignedConversation("u", "x", {"a": 0.005, "b": 0.995}, "a", True)
    assert uniform_ratios([*ones, heavy])["a"].low is None


def tasted(seed: int, spread: float) -> list[AssignedConversation]:
    """Two submissions that are liked alike, and sixty users whose log odds differ by ``spread``."""
    chance = random.Random(seed)
    tastes = [chance.gauss(0, spread) for _ in range(60)]
    found = []
    for _ in range(1_000):
        user, chosen = chance.randrange(60), chance.choice("ab")
        is_up = chance.random() < 1 / (1 + math.exp(-0.4 - tastes[user]))
        vote = is_up if chance.random() < 0.6 else None
        found.append(AssignedConversation(user, "x", {"a": 0.5, "b": 0.5}, chosen, vote))
    return found


@pytest.mark.parametrize(("spread", "most"), [(0.0, 1.02), (3.0, 0.9)])
def test_earlier_ratings_help_where_they_tell_and_never_harm(spread: float, most: float) -> None:
    """The same conversations, each of a user of its own without a past."""
    differences: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(SEASONS // 2):
        known = tasted(seed, spread)
        strangers = [replace(one, user=n) for n, one in enumerate(known)]
        for has_past, ones in ((True, known), (False, strangers)):
            found = uniform_ratios(ones)
            differences[has_past].append((found["a"].ratio or 0) - (found["b"].ratio or 0))
    variances = {key: statistics.pvariance(some) for key, some in differences.items()}
    assert variances[True] < most * variances[False]
    error = variances[True] ** 0.5 / (SEASONS // 2) ** 0.5
    assert abs(statistics.fmean(differences[True])) < 3.5 * error


def test_sums_go_on_where_they_were() -> None:
    ones = tasted(1, 1.0)
    sums = UniformSums()
    for at, one in enumerate(ones, start=1):
        sums.add(one)
        if at in (1, 400, 1_000):
            assert sums.ratios() == uniform_ratios(ones[:at])
