"""Users who have no duels without one submission: who is counted so, and which attack shows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from guanaco_server.duels.records import RecordedDuel
from guanaco_server.leaderboard.counting.votes import VotingWindow
from guanaco_server.leaderboard.flags.patterns import VoteBreadth, contrasts
from guanaco_server.leaderboard.flags.rules import Owner
from guanaco_server.leaderboard.ranking.duels.duel_table import NO_DUELS, DuelTable
from guanaco_server.statistics.votes import VoteCount

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAMES = ("one", "two", "three", "four", "five", "six")
OWNERS = {name: Owner(f"acc-{name}", f"dev-{name}") for name in NAMES}

Given = tuple[str, str, str, str]  # user, a, b, outcome


def breadths(duels: Sequence[Given]) -> dict[tuple[str, bool], VoteCount]:
    table = DuelTable()
    table.take(
        RecordedDuel(
            f"battle-{n:05}", "app", user, a, b, ((NOON + timedelta(seconds=30 * n), outcome),)
        )
        for n, (user, a, b, outcome) in enumerate(duels)
    )
    return table.counted(OWNERS, VotingWindow(NOON, None)).by_breadth()


def test_a_users_first_duel_with_a_winner_counts_once() -> None:
    found = breadths(
        [
            ("ada", "one", "two", "tie"),
            ("ada", "one", "two", "a"),
            ("ada", "three", "one", "a"),
            ("bob", "two", "one", "both_bad"),
        ]
    )
    assert found == {
        ("one", False): VoteCount(1, 0),
        ("two", True): VoteCount(0, 1),
        ("three", True): VoteCount(1, 0),
    }
    assert NO_DUELS.by_breadth() == {}


def test_ids_that_were_made_for_one_submission_stand_out() -> None:
    rng = random.Random(5)
    honest = [duel for n in range(300) for duel in _honest(rng, f"user-{n}")]
    assert not _named(honest)
    made = [(f"made-{n}", "three", rng.choice(NAMES[:2]), "a") for n in range(60)]
    assert "three" in _named([*honest, *made])


def _honest(rng: random.Random, user: str) -> list[Given]:
    """One conversation or two, with three battles each."""
    found: list[Given] = []
    for own in rng.sample(NAMES, rng.choice((1, 2))):
        for _ in range(3):
            rival = rng.choice([name for name in NAMES if name != own])
            found.append((user, own, rival, rng.choice("ab")))
    return found


def _named(duels: Sequence[Given]) -> set[str]:
    counts, none = breadths(duels), VoteCount(0, 0)
    board = {
        name: VoteBreadth(counts.get((name, False), none), counts.get((name, True), none))
        for name in NAMES
    }
    return {name for name, one in contrasts(board).items() if one.is_suspicious}
