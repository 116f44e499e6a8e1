"""Verdicts in words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from guanaco.competitions import RankingRule
from guanaco.leaderboard import (
    AskedVerdict,
    LeaderboardRow,
    LeaderboardVerdict,
    VerdictPair,
    VerdictState,
)
from guanaco.verdicts import asked_words, chance_words, headline, pair_words, uncounted_words


def verdict(*pairs: VerdictPair, **fields: Any) -> LeaderboardVerdict:
    return LeaderboardVerdict(
        at=datetime(2026, 11, 23, tzinfo=UTC),
        competition="autumn",
        ranking=RankingRule.THUMBS_UP,
        within=0.05,
        leader=fields.pop("leader", "a_v1"),
        is_decided=bool(pairs)
        and all(pair.state is not VerdictState.OPEN for pair in pairs if not pair.is_withdrawn),
        pairs=list(pairs),
        **fields,
    )


BETTER = VerdictPair(submission_id="b_v1", state=VerdictState.BETTER)
WITHIN = VerdictPair(submission_id="c_v1", state=VerdictState.WITHIN)
OPEN = VerdictPair(submission_id="d_v1", state=VerdictState.OPEN, votes=417)
GONE = VerdictPair(submission_id="f_v1", state=VerdictState.OPEN, votes=9, is_withdrawn=True)
RANGE = VerdictPair(
    submission_id="g_v1", state=VerdictState.OPEN, votes=700, votes_low=401, votes_high=1_487
)
FAR = VerdictPair(submission_id="h_v1", state=VerdictState.OPEN, votes=4_000, votes_low=1_120)
UNKNOWN = VerdictPair(submission_id="e_v1", state=VerdictState.OPEN)


def test_ratings_that_none_of_count_are_told() -> None:
    def row(feedback_count: int, thumbs_up: int = 0) -> LeaderboardRow:
        return LeaderboardRow.model_construct(
            feedback_count=feedback_count, thumbs_up=thumbs_up, thumbs_down=0, duels=0
        )

    assert uncounted_words([row(0)]) is None
    assert uncounted_words([row(9, thumbs_up=1), row(4)]) is None
    said = uncounted_words([row(0), row(1_500)])
    assert said is not None
    assert said.startswith("1,500 ratings were given, and none counts: rules leave out bursts,")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (verdict(leader=None), "No submission has a score in this competition yet."),
        (verdict(), "a_v1 is the only one with a score."),
        (verdict(BETTER), "Settled: a_v1 is the best."),
        (verdict(BETTER, WITHIN), "Settled: a_v1 is within 5 points of the best."),
        (
            verdict(BETTER, WITHIN, OPEN),
            "Not settled: a_v1 leads, but 1 of 3 others may be more than 5 points better. The hardest to tell needs about 420 more votes.",
        ),
        (
            verdict(BETTER, WITHIN, GONE),
            "Settled: a_v1 is within 5 points of the best of those that take part.",
        ),
        (
            verdict(OPEN, settled_at=datetime(2026, 11, 3, tzinfo=UTC), settled_leader="z_v1"),
            "Not settled: a_v1 leads, but any of the others may be more than 5 points better. The hardest to tell needs about 420 more votes."
            " It was settled on 3 November 2026 that z_v1 was within 5 points of the best of those that took part.",
        ),
        (verdict(BETTER, is_by_duels=True), "Settled by duels: a_v1 is the best."),
        (
            verdict(BETTER, OPEN, is_by_duels=True),
            "Not settled by duels: a_v1 leads, but 1 of 2 others may be more than 5 points better. The hardest to tell needs about 420 more duels.",
        ),
        (
            verdict(OPEN, UNKNOWN),
            "Not settled: a_v1 leads, but any of the others may be more than 5 points better.",
        ),
    ],
)
def test_the_headline_says_whether_the_best_is_known(found: LeaderboardVerdict, said: str) -> None:
    assert headline(found) == said


def test_each_pair_is_said_in_a_few_words() -> None:
    found = verdict(BETTER, WITHIN, OPEN, UNKNOWN, RANGE, FAR)
    assert [pair_words(pair, found) for pair in found.pairs] == [
        "the leader is better: settled",
        "the leader is at most 5 points worse: settled",
        "not yet: about 420 more votes",
        "not yet",
        "not yet: about 400 to 1,500 more votes",
        "not yet: 1,100 more votes or many more",
    ]


def test_a_probability_names_its_prior() -> None:
    assert chance_words(verdict(OPEN)) is None
    assert "with a flat prior, a_v1" in (chance_words(verdict(OPEN, chance=0.5)) or "")
    said = chance_words(verdict(OPEN, chance=0.999, prior_submissions=40)) or ""
    assert "from 40 submissions of past seasons" in said
    assert said.endswith("over 99%.")


def asked(*pairs: VerdictPair, **fields: Any) -> LeaderboardVerdict:
    is_decided = bool(pairs) and all(pair.state is not VerdictState.OPEN for pair in pairs)
    known = {"waiting": 0, "leader": "a_v1", "is_decided": is_decided, "worth": None, "rows": []}
    return verdict(asked=AskedVerdict.model_validate(known | {"pairs": pairs} | fields))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (verdict(), None),
        (
            asked(leader=None, waiting=1_204),
            "Nobody of all who could be asked for a rating has answered yet. The time to answer is not over for 1,204.",
        ),
        (
            asked(),
            "Among all who could be asked for a rating: a_v1 is the only one with an answer.",
        ),
        (asked(BETTER), "Among all who could be asked for a rating: a_v1 is the best: settled."),
        (
            asked(BETTER, WITHIN, worth=1_250),
            "Among all who could be asked for a rating: a_v1 is within 5 points of the best: settled. With the signals of all conversations, 1,000 answers do as much as 1,250 alone.",
        ),
        (
            asked(BETTER, OPEN),
            "Among all who could be asked for a rating: a_v1 leads, but 1 other may be more than 5 points better.",
        ),
    ],
)
def test_askable_conversations_have_a_sentence_of_their_own(
    found: LeaderboardVerdict, said: str | None
) -> None:
    assert asked_words(found) == said
