"""The leaderboard's statistics against published figures, and their intervals against simulations."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from guanaco.chat import Sender
from guanaco.competitions import RankingRule
from guanaco_server.chat.conversations.records import RecordedMessage
from guanaco_server.leaderboard.counting.aggregate import Aggregate, sum_of
from guanaco_server.leaderboard.counting.measurement import (
    measure,
    visit_of,
)
from guanaco_server.leaderboard.flags import rules as flags
from guanaco_server.leaderboard.ranking import estimators
from guanaco_server.leaderboard.ranking.metrics import metrics_of
from guanaco_server.leaderboard.ranking.rules import Score, VotesByUser, ranked, standings
from guanaco_server.leaderboard.ranking.strengths import bradley_terry
from guanaco_server.leaderboard.ranking.strengths.continued_fit import ContinuedFit
from guanaco_server.statistics.intervals import wilson_interval
from guanaco_server.statistics.votes import VoteCount

START = datetime(2026, 1, 1, tzinfo=UTC)

# Wins (row over column) of the American League East in 1987: A. Agresti, "Categorical Data Analysis" (2nd ed., 2002),
# table 10.10. The abilities against Baltimore are those that R's BradleyTerry2 prints for them.
TEAMS = ("Milwaukee", "Detroit", "Toronto", "New York", "Boston", "Cleveland", "Baltimore")
WINS = (
    (0, 7, 9, 7, 7, 9, 11),
    (6, 0, 7, 5, 11, 9, 9),
    (4, 6, 0, 7, 7, 8, 12),
    (6, 8, 6, 0, 6, 7, 10),
    (6, 2, 6, 7, 0, 7, 12),
    (4, 4, 5, 6, 6, 0, 6),
    (2, 4, 1, 3, 1, 7, 0),
)
ABILITIES = (1.5814, 1.4364, 1.2945, 1.2476, 1.1077, 0.6839, 0.0)


def test_strengths_are_those_that_were_published() -> None:
    ballots = [
        (2 * winner + 1, 2 * loser) if winner < loser else (2 * loser, 2 * winner + 1)
        for winner, row in enumerate(WINS)
        for loser, count in enumerate(row)
        for _ in range(count)
    ]
    found = bradley_terry.fit(ballots, len(TEAMS), prior=1e-9)
    against_last = [value - found.values[-1] for value in found.values]
    assert against_last == pytest.approx(ABILITIES, abs=1e-4)


def test_the_order_of_ballots_changes_no_bit_of_the_strengths() -> None:
    rng = random.Random(1)
    ballots = [_ballot(rng, [0.0] * 12, rng.randint(2, 6)) for _ in range(300)]
    first = bradley_terry.fit(ballots, 12)
    rng.shuffle(ballots)
    assert bradley_terry.fit(ballots, 12) == first


def test_continued_fit_equals_a_fresh_one_when_votes_change() -> None:
    rng = random.Random(1)
    votes = VotesByUser(())
    continued = ContinuedFit(votes)
    for size in (6, 6, 12, 12):
        for user in rng.sample(range(300), 200):
            held = rng.sample(range(size), rng.randint(0, 5))
            votes.replace(f"user-{user}", {f"model-{one}": rng.random() < 0.6 for one in held})
        found = continued(votes.comparable(), len(votes.ids))
        fresh = bradley_terry.fit(votes.comparable(), len(votes.ids))
        assert found.values == pytest.approx(fresh.values, abs=1e-9)
        assert found.errors == pytest.approx(fresh.errors, abs=1e-9)
        assert found.compared == pytest.approx(fresh.compared)


def test_votes_that_all_went_leave_a_submission_uncompared() -> None:
    votes = VotesByUser([("ada", "one", True), ("ada", "two", False), ("bob", "one", True)])
    continued = ContinuedFit(votes)
    continued(votes.comparable(), 2)
    votes.replace("ada", {})
    assert continued(votes.comparable(), 2).compared == [0, 0]


def test_unconnected_and_unbeaten_submissions_have_finite_strengths() -> None:
    found = bradley_terry.fit([(1, 2)] * 50 + [(5, 6)] * 50, 5)
    assert found.values[0] == pytest.approx(found.values[2])
    assert found.values[0] == pytest.approx(-found.values[1])
    assert 0 < found.values[0] < 10
    assert found.compared == [50, 50, 50, 50, 0]
    assert found.values[4] == pytest.approx(0)
    assert found.errors[4] > 2  # a prior of one comparison says next to nothing


def test_frequent_voter_weighs_as_much_as_one_who_compares_two() -> None:
    many = tuple(2 * index + (index == 0) for index in range(10))  # up for 0 alone
    found = bradley_terry.fit([many], 10)
    assert sum(found.compared) == pytest.approx(2)


@pytest.mark.slow
def test_sandwich_covers_the_truth_under_dependent_votes() -> None:
    rng = random.Random(7)
    truth = [-0.8, -0.3, 0.0, 0.4, 0.7]
    expected = _limit(truth)
    covered = Counter[bool]()
    for _ in range(150):
        ballots = [_ballot(rng, truth, rng.randint(2, 5)) for _ in range(150)]
        found = bradley_terry.fit(ballots, len(truth))
        for value, error, true in zip(found.values, found.errors, expected, strict=True):
            covered[abs(value - true) < 1.96 * error] += 1
    assert 0.92 < covered[True] / covered.total() < 0.98


def test_the_interval_of_a_mean_covers_it() -> None:
    rng = random.Random(3)
    covered = 0
    for _ in range(400):
        sample = [rng.randint(1, 20) for _ in range(60)]
        found = estimators.mean(60, sum(sample), sum(one * one for one in sample))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 10.5 <= found.high
    assert 0.92 < covered / 400 < 0.98


@pytest.mark.parametrize(("share", "n"), [(0.5, 6), (0.5, 9), (0.5, 30), (0.95, 80), (0.95, 200)])
def test_the_interval_of_a_quantile_covers_it(share: float, n: int) -> None:
    rng = random.Random(4)
    covered = 0
    for _ in range(1_000):
        found = estimators.quantile(Counter(rng.randrange(100_000) for _ in range(n)), share)
        assert found is not None
        _, low, high = found
        assert low is not None
        assert high is not None
        covered += low <= share * 100_000 <= high
    assert covered / 1_000 > 0.94


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_so_few_values_bound_no_quantile_from_above(n: int) -> None:
    values = Counter(range(n))
    for share in (0.5, 0.95):
        found = estimators.quantile(values, share)
        assert found is not None
        assert found[2] is None
    assert estimators.quantile(values, 0.5) == (-(-n // 2) - 1, None, None)


def test_one_reply_has_times_without_an_interval() -> None:
    metrics = metrics_of("s", Aggregate({"ttft:33": 1, "length:4": 1, "rated": 1}), 0)
    for found in (metrics.ttft_ms_median, metrics.ttft_ms_p95, metrics.median_conversation_length):
        assert found is not None
        assert (found.low, found.high, found.n) == (None, None, 1)


def test_identical_values_have_a_mean_without_interval() -> None:
    for n in (1, 2, 38):
        found = estimators.mean(n, 3 * n, 9 * n)
        assert found is not None
        assert (found.value, found.low, found.high) == (3, None, None)


@pytest.mark.parametrize("n", [1, 2, 30])
def test_none_or_all_of_the_replies_regenerated_is_no_certainty(n: int) -> None:
    none = estimators.ratio(n, (0, 3 * n), (0, 0, 9 * n))
    all_of_them = estimators.ratio(n, (3 * n, 3 * n), (9 * n, 9 * n, 9 * n))
    assert none is not None
    assert all_of_them is not None
    assert (none.value, none.low) == (0, pytest.approx(0, abs=1e-12))
    assert none.high == pytest.approx(wilson_interval(0, n)[1])
    assert (all_of_them.value, all_of_them.low) == (1, pytest.approx(1 - none.high))


def test_the_interval_of_a_mean_of_few_covers_it() -> None:
    rng = random.Random(9)
    covered = 0
    for _ in range(2_000):
        sample = [round(rng.gauss(10_000, 3_000)) for _ in range(4)]
        found = estimators.mean(4, sum(sample), sum(one * one for one in sample))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 10_000 <= found.high
    assert 0.935 < covered / 2_000 < 0.965


def test_the_interval_of_a_ratio_covers_it_when_conversations_differ() -> None:
    rng = random.Random(5)
    covered = 0
    for _ in range(400):
        pairs = []
        for _ in range(80):
            x, share = rng.randint(1, 8), rng.choice((0.0, 0.5))
            pairs.append((sum(rng.random() < share for _ in range(x)), x))
        found = estimators.ratio(
            len(pairs),
            (sum(y for y, _ in pairs), sum(x for _, x in pairs)),
            (
                sum(y * y for y, _ in pairs),
                sum(x * y for y, x in pairs),
                sum(x * x for _, x in pairs),
            ),
        )
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.25 <= found.high
    assert 0.91 < covered / 400 < 0.98


def test_the_writing_speed_is_what_the_times_were_made_of() -> None:
    rng = random.Random(6)
    messages, at = [], START
    for _ in range(400):
        read, written = "r" * rng.randint(20, 400), "w" * rng.randint(5, 200)
        messages.append(RecordedMessage(Sender.BOT, read, at, False))
        seconds = 2 + len(written) / 5 + len(read) / 25 + rng.gauss(0, 1)
        at += timedelta(seconds=max(0.1, seconds))
        messages.append(RecordedMessage(Sender.USER, written, at, False))
    found = metrics_of("s", measure(messages, is_rated=False).aggregate, 0).writing_speed
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < 5 < found.high
    assert found.high - found.low < 0.2


def test_a_conversation_is_measured_as_docs_scores_says() -> None:
    def message(
        sender: Sender, content: str, second: int, *, deleted: bool = False
    ) -> RecordedMessage:
        timings = (100.0, 1_000.0) if sender is Sender.BOT else (None, None)
        return RecordedMessage(
            sender, content, START + timedelta(seconds=second), deleted, *timings
        )

    user, bot = Sender.USER, Sender.BOT
    messages = [
        message(user, "hi", 0),
        message(bot, "an old answer", 1, deleted=True),
        message(bot, "the sea is calm", 2),
        message(user, "tell me more", 12),
        message(bot, "The sea is wild", 13),
    ]
    metrics = metrics_of("s", measure(messages, is_rated=True).aggregate, 0)
    assert metrics.mean_conversation_length == 4
    assert metrics.median_conversation_length is not None
    assert metrics.median_conversation_length.value == 4
    assert metrics.repetition is not None
    assert metrics.repetition.value == pytest.approx(3 / 5)
    assert metrics.regenerate_rate is not None
    assert metrics.regenerate_rate.value == pytest.approx(1 / 3)
    assert metrics.ttft_ms_p95 is not None
    assert metrics.ttft_ms_p95.value == pytest.approx(100, rel=0.026)
    assert metrics.reply_ms_median is not None
    assert metrics.reply_ms_median.n == 3
    unrated = metrics_of("s", measure(messages, is_rated=False).aggregate, 0)
    assert (unrated.feedback_count, unrated.mean_conversation_length) == (0, None)


def test_retention_asks_only_those_whose_next_day_is_over() -> None:
    visits = [visit_of(days) for days in ([10, 11], [10, 12], [10], [11, 12], [12], [])]
    tally = sum_of(visit.aggregate() for visit in visits if visit is not None)
    found = metrics_of("s", tally, today=12).retention
    assert found is not None
    assert (found.value, found.n) == (pytest.approx(1 / 3), 3)
    later = metrics_of("s", tally, today=14).retention
    assert later is not None
    assert (later.value, later.n) == (pytest.approx(2 / 5), 5)


def test_indistinguishable_submissions_share_a_rank() -> None:
    scores = {
        "a": Score(9, 7, 11),
        "b": Score(7, 5, 9),
        "c": Score(5, 3, 6.5),
        "d": Score(0, -1, 1),
    }
    assert [(one.submission_id, one.rank) for one in ranked(scores)] == [
        ("a", 1),
        ("b", 1),
        ("c", 2),
        ("d", 4),
    ]


def test_the_combined_score_needs_both_and_lies_between_them() -> None:
    votes = {"a": VoteCount(40, 10), "b": VoteCount(20, 30), "alone": VoteCount(9, 0)}
    ballots = [(1, 2)] * 20 + [(1, 3)] * 20
    found = {
        one.submission_id: one.score
        for one in standings(RankingRule.COMBINED, votes, ["a", "b"], ballots)
    }
    assert found.keys() == {"a", "b"}
    assert 0.6 < found["a"].value < 0.8
    assert found["a"].low < found["a"].value < found["a"].high


def test_burst_exceeds_what_the_hour_and_others_make_likely() -> None:
    quiet, busy, none = 60, 60 * 200, ()
    assert not flags.is_burst(flags.least_burst(), quiet, none)
    assert flags.is_burst(flags.least_burst() + 1, quiet, none)
    assert not flags.is_burst(250, busy, none)
    assert flags.is_burst(400, busy, none)
    assert flags.is_burst(250, quiet, (3, 1, 2))
    assert not flags.is_burst(250, quiet, (150, 120, 130))
    assert flags.is_rush_of_all(250, (150, 120, 130))
    assert not flags.is_rush_of_all(250, (3, 1, 2))


def test_hundred_ratings_in_a_minute_are_a_burst() -> None:
    assert flags.is_burst(100, hour_before=2, others=(1, 1))


def test_tallies_add_up_in_any_order_and_keep_no_zero() -> None:
    a, b = Aggregate({"x": 2, "y": 1}), Aggregate({"x": -2})
    assert a + b == b + a == Aggregate({"y": 1})
    assert not a + -a
    assert Aggregate.from_json(a.to_json()) == a


def _ballot(rng: random.Random, truth: list[float], votes: int) -> bradley_terry.Ballot:
    """A user who likes some more than others does so for all submissions, so their votes depend on each other."""
    mood = rng.gauss(0, 1)
    ids = sorted(rng.sample(range(len(truth)), votes))
    return tuple(2 * one + (truth[one] + mood + rng.gauss(0, 1) > 0) for one in ids)


def _limit(truth: list[float]) -> list[float]:
    """Return what the strengths come to with very many users: ties make it another scale than ``truth``'s."""
    rng = random.Random(8)
    ballots = [_ballot(rng, truth, rng.randint(2, 5)) for _ in range(200_000)]
    return bradley_terry.fit(ballots, len(truth)).values
