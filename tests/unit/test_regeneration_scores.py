"""Compared regenerations: what a coin between two new replies tells of two submissions, and what it does not."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from guanaco_server.duels.scores import RegenerationCount, scores_of_regenerations

A, B = "acme-tiny_v1", "bolt-tiny_v1"


def test_kept_replies_give_effect_and_lead() -> None:
    counts = {
        (A, B): RegenerationCount(own_kept=20, own_total=50, other_kept=30, other_total=50),
        (B, A): RegenerationCount(own_kept=10, own_total=50, other_kept=40, other_total=50),
    }
    (pair,) = scores_of_regenerations(counts)
    assert (pair.first, pair.second) == (A, B)
    assert pair.in_firsts.effect == pytest.approx(0.2)
    assert pair.in_seconds.effect == pytest.approx(0.6)
    assert pair.lead == pytest.approx(0.2)
    assert pair.low is not None
    assert pair.high is not None
    assert pair.low < 0.2 < pair.high


def test_one_kind_of_conversations_gives_no_lead() -> None:
    (pair,) = scores_of_regenerations({(B, A): RegenerationCount(1, 2, 1, 1)})
    assert (pair.first, pair.lead, pair.in_firsts.effect) == (A, None, None)
    assert pair.in_seconds.effect is not None


def test_dislike_of_what_was_rejected_cancels_in_the_lead() -> None:
    """Two equal submissions, of which each user likes one more: either one's second reply is kept less often than the other's."""
    rng = random.Random(1)
    counts = {(A, B): _season(rng, 4_000), (B, A): _season(rng, 4_000)}
    (pair,) = scores_of_regenerations(counts)
    assert pair.in_firsts.low is not None
    assert pair.in_firsts.low > 0, "a submission's own effect is biased"
    assert pair.low is not None
    assert pair.high is not None
    assert pair.low < 0 < pair.high


def test_an_effect_of_nothing_is_seldom_missed_at_any_look() -> None:
    rng = random.Random(2)
    missed = 0
    for _ in range(200):
        kept = Counter[tuple[bool, bool]]()
        for look in range(1, 241):
            kept[rng.random() < 0.5, rng.random() < 0.4] += 1
            if look % 20:
                continue
            (pair,) = scores_of_regenerations({(A, B): _counted(kept)})
            assert pair.in_firsts.low is not None
            assert pair.in_firsts.high is not None
            if not pair.in_firsts.low <= 0 <= pair.in_firsts.high:
                missed += 1
                break
    assert missed <= 2, "with an error of 1 in 1,280"


def _season(rng: random.Random, users: int) -> RegenerationCount:
    """Users who reject a reply of one submission, and are given its second one or another's by a coin."""
    kept = Counter[tuple[bool, bool]]()
    while kept.total() < users:
        likes_own, likes_other = rng.gauss(0, 1), rng.gauss(0, 1)
        if likes_own + rng.gauss(0, 1) > 0:
            continue
        is_others = rng.random() < 0.5
        likes = likes_other if is_others else likes_own
        kept[is_others, likes + rng.gauss(0, 1) > 0] += 1
    return _counted(kept)


def _counted(kept: Counter[tuple[bool, bool]]) -> RegenerationCount:
    return RegenerationCount(
        own_kept=kept[False, True],
        own_total=kept[False, True] + kept[False, False],
        other_kept=kept[True, True],
        other_total=kept[True, True] + kept[True, False],
    )
