"""The verdict on all who could be asked compares the same field as the others do."""

from __future__ import annotations

import numpy as np

from guanaco.leaderboard import AskedVerdict
from guanaco_server.leaderboard.asked import _verdict
from guanaco_server.leaderboard.field import NO_VOTES, Field
from guanaco_server.statistics.answer_lines import AskedConversations

NAMES = ("good", "bad", "third")


def verdict(live: str, third: float | None = None) -> AskedVerdict:
    """Ask half of 3,000 conversations of two submissions, and of the third one, which is liked so often; without that it has no answer yet."""
    rng = np.random.default_rng(0)
    heard = 3_000
    late = 60 if third is None else 800
    of = np.r_[rng.integers(0, 2, heard), np.full(late, 2)]
    asked = (rng.random(len(of)) < 0.5).astype(float)
    if third is None:
        asked[heard:] = 0
    answered = asked * (rng.random(len(of)) < 0.8)
    likes = np.choose(of, [0.8, 0.3, third or 0.0])
    up = answered * (rng.random(len(of)) < likes)
    signals = np.full((len(of), 6), np.nan)
    columns = AskedConversations(of, np.full(len(of), 0.5), asked, answered, up, signals)
    field = Field(dict.fromkeys((*NAMES, *live.split()), NO_VOTES), frozenset(live.split()))
    return _verdict(NAMES, columns, 0.05, field)


def states(found: AskedVerdict) -> dict[str, str]:
    return {pair.submission_id: pair.state.value for pair in found.pairs}


def test_one_that_nobody_answered_for_is_open() -> None:
    found = verdict("good bad third")
    assert (found.leader, found.is_decided) == ("good", False)
    assert states(found) == {"bad": "better", "third": "open"}


def test_one_that_was_never_asked_for_is_open() -> None:
    found = verdict("good bad new", third=0.5)
    assert not found.is_decided
    assert states(found)["new"] == "open"


def test_a_withdrawn_one_neither_leads_nor_holds_up() -> None:
    found = verdict("good bad", third=0.9)
    assert (found.leader, found.is_decided) == ("good", True)
    assert [(one.submission_id, one.is_withdrawn) for one in found.pairs] == [
        ("third", True),
        ("bad", False),
    ]
    assert verdict("", third=0.9).leader == "third", "nobody else is left"
