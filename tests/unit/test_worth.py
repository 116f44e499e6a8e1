"""Tests what next ratings are worth, and which changes are worth their cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guanaco_server.scaling.duel_worth import worths_by_duels
from guanaco_server.scaling.rating_costs import SURE, USUAL_RATING_S, RatingPace, RatingTokens
from guanaco_server.scaling.worth import NOTHING, Contender, Race, Worth, best_change, worths
from guanaco_server.statistics.decisions import evidence
from guanaco_server.statistics.duel_decisions import DuelCount
from guanaco_server.statistics.votes import VoteCount

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MARGIN = 0.05


def contender(name: str, up: int, down: int, **what: object) -> Contender:
    usual = {"is_awake": False, "wake_s": 10.0, "rating_s": 10.0}
    return Contender(name, VoteCount(up, down), **{**usual, **what})  # type: ignore[arg-type]


LEADER = contender("leader", 300, 100)
NEAR = contender("near", 70, 30)
FAR = contender("far", 5, 95)
NEW = contender("new", 3, 2)


def test_settled_submissions_are_worth_nothing_and_open_ones_something() -> None:
    found = worths([LEADER, NEAR, FAR], MARGIN)
    assert found["far"] == NOTHING
    assert found["near"].rate > 0
    assert found["leader"].rate > 0


def test_newcomer_is_worth_most_until_it_has_its_ratings() -> None:
    found = worths([LEADER, NEAR, FAR, NEW], MARGIN)
    assert max(found, key=lambda name: found[name].rate) == "new"
    assert found["new"].ratings == 15


def test_with_nobody_heard_all_are_worth_the_same() -> None:
    found = worths([contender("a", 0, 0), contender("b", 0, 0)], MARGIN)
    assert found["a"] == found["b"] != NOTHING


DUELS = {
    ("far", "leader"): DuelCount(5, 0, 195),
    ("leader", "near"): DuelCount(60, 10, 50),
    ("leader", "new"): DuelCount(2, 0, 1),
}


def duelling(**what: object) -> dict[str, Worth]:
    names = ("leader", "near", "far", "new")
    return worths_by_duels([contender(name, 0, 0, **what) for name in names], DUELS, MARGIN)


def test_both_of_an_open_pair_are_worth_equally_by_duels() -> None:
    found = duelling()
    assert found["far"] == NOTHING
    assert found["leader"] == found["near"] != NOTHING
    assert (found["new"].ratings, max(found, key=lambda name: found[name].rate)) == (7, "new")
    assert (
        duelling(wake_s=100.0)["near"].rate
        < found["near"].rate
        < duelling(is_awake=True)["near"].rate
    )


def test_thumbs_are_worth_nothing_where_duels_settle_who_is_best() -> None:
    rated = [LEADER, NEAR]
    found = worths_by_duels(rated, {("leader", "near"): DuelCount(500, 0, 100)}, MARGIN)
    assert found == {"leader": NOTHING, "near": NOTHING}
    assert worths_by_duels(rated, {}, MARGIN)["leader"] != NOTHING


def test_one_alone_is_worth_nothing() -> None:
    assert worths([LEADER], MARGIN) == {"leader": NOTHING}


@pytest.mark.parametrize(
    "dearer", [{"wake_s": 100.0}, {"rating_s": 20.0}, {"gpus": 2}], ids=["wake", "rating", "gpus"]
)
def test_what_costs_more_is_worth_less(dearer: dict[str, float]) -> None:
    usual = worths([LEADER, NEAR], MARGIN)["near"]
    assert worths([LEADER, replace(NEAR, **dearer)], MARGIN)["near"].rate < usual.rate  # type: ignore[arg-type]


def test_a_longer_waking_asks_for_a_longer_stay() -> None:
    stays = [
        worths([LEADER, replace(NEAR, wake_s=wake_s)], MARGIN)["near"].ratings
        for wake_s in (0.6, 30.0, 600.0)
    ]
    assert stays == sorted(stays)
    assert stays[0] < stays[-1]


def test_who_is_awake_pays_nothing_to_stay() -> None:
    awake = replace(NEAR, is_awake=True)
    assert (
        worths([LEADER, awake], MARGIN)["near"].rate > worths([LEADER, NEAR], MARGIN)["near"].rate
    )


def test_long_swap_is_not_made_for_a_few_ratings() -> None:
    # The twin lacks more by a little, and some ten ratings settle it.
    leader, one = contender("leader", 750, 250), contender("one", 75, 45, is_awake=True)
    for wake_s, changes in ((120.0, False), (0.0, True)):
        twin = contender("twin", 72, 43, wake_s=wake_s)
        found = worths([leader, one, twin], MARGIN)
        assert evidence(leader.votes, twin.votes, MARGIN) > 0
        assert (best_change(found, ["one"], ["twin"]) is not None) is changes


def test_the_least_worth_makes_room_for_the_most_worth() -> None:
    worth = {"a": Worth(3.0, 8), "b": Worth(1.0, 8), "c": Worth(2.0, 8), "d": Worth(5.0, 8)}
    assert best_change(worth, ["a", "b"], ["c", "d"]) == ("d", "b")
    assert best_change(worth, ["a", "d"], ["b", "c"]) is None
    assert best_change(worth, [], ["c"]) is None
    assert best_change({}, ["a"], ["b"]) is None, "nothing is known of either"


def test_due_submission_is_heard_again_although_settled() -> None:
    found = worths([LEADER, FAR, replace(FAR, submission_id="due", is_due=True)], MARGIN)
    assert found["due"].ratings == 20
    assert found["due"].rate > found["far"].rate == 0


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 3_000)), min_size=2, max_size=8))
def test_worth_is_never_below_nothing(votes: list[tuple[int, int]]) -> None:
    found = worths([contender(str(number), *each) for number, each in enumerate(votes)], MARGIN)
    assert len(found) == len(votes)
    assert all(0 <= worth.rate < float("inf") for worth in found.values())


def test_pace_is_server_time_by_ratings_received() -> None:
    pace = RatingPace()
    assert pace.rating_s == USUAL_RATING_S
    for minute in range(0, 120, 10):  # two servers, 30 ratings each minute in all
        pace.note(NOW + timedelta(minutes=minute), 1_000 + 30 * minute, 2)
    assert pace.rating_s == pytest.approx((7_200 + SURE * USUAL_RATING_S) / (1_800 + SURE))


def test_the_pace_begins_again_where_ratings_are_gone() -> None:
    pace = RatingPace()
    pace.note(NOW, 1_000, 2)
    pace.note(NOW + timedelta(minutes=10), 400, 2)
    assert pace.rating_s == USUAL_RATING_S


def test_a_rating_that_takes_more_tokens_costs_more() -> None:
    """100 ratings of a at 300 tokens each, 100 of b at 100: a usual one takes 200."""
    tokens = RatingTokens()
    assert tokens.relative("a") == 1
    tokens.note({"a": 5_000.0}, {"a": 40, "b": 7, "new": 0})
    tokens.note({"a": 35_000.0, "b": 10_000.0}, {"a": 140, "b": 107, "new": 0})
    assert tokens.relative("a") == pytest.approx((30_000 + SURE * 200) / (100 + SURE) / 200)
    assert tokens.relative("b") == pytest.approx((10_000 + SURE * 200) / (100 + SURE) / 200)
    assert tokens.relative("new") == tokens.relative("unknown") == 1


def test_tokens_without_ratings_make_the_next_one_dear() -> None:
    tokens = RatingTokens()
    tokens.note({}, {"a": 0, "silent": 0})
    tokens.note({"a": 1_000.0, "silent": 1_000.0}, {"a": 10, "silent": 0})
    assert tokens.relative("silent") == pytest.approx((1_000 + SURE * 200) / SURE / 200)


def test_a_count_that_fell_is_measured_from_the_beginning() -> None:
    tokens = RatingTokens()
    for used, rated in ((0.0, 0), (1_000.0, 10), (100.0, 10)):
        tokens.note({"a": used, "b": used * 3 if used else 0.0}, {"a": rated, "b": rated})
    assert tokens.relative("a") == 1


def test_recent_ratings_count_more_than_earlier_ones() -> None:
    tokens = RatingTokens()
    tokens.note({}, {"a": 0, "b": 0})
    tokens.note({"a": 1_000.0, "b": 1_000.0}, {"a": 200, "b": 200})
    early = tokens.relative("a")
    tokens.note({"a": 3_000.0, "b": 2_000.0}, {"a": 400, "b": 400})
    assert early == 1
    usual = (1_500 + 1_000) / 400
    assert tokens.relative("a") == pytest.approx((1_500 + SURE * usual) / (200 + SURE) / usual)


def test_a_duel_counts_as_heard_for_both() -> None:
    race = Race(MARGIN, {"far": VoteCount(1, 0), "near": VoteCount(0, 0)}, DUELS)
    assert race.heard() == {"far": 200, "near": 120}
    assert Race(MARGIN, {"far": VoteCount(1, 2)}).heard() == {"far": 3}
