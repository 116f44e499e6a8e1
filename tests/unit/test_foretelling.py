"""How many more votes a verdict is foretold to need, beside how many it then takes."""

from __future__ import annotations

import math
import random

import pytest

from guanaco_server.statistics.confidence_sequences import shared_alpha
from guanaco_server.statistics.decisions import compare, evidence
from guanaco_server.statistics.duel_decisions import (
    DuelCount,
    compare_duels,
    evidence_of_duels,
    needed_evidence,
)
from guanaco_server.statistics.foretelling import Foretold
from guanaco_server.statistics.votes import VoteCount

MARGIN, MEMBERS, VOTES = 0.05, 20, 200
NEEDED = -math.log(shared_alpha(MEMBERS))
MOST = 40 * VOTES


def drawn(chance: random.Random, ratio: float, votes: int) -> int:
    return sum(chance.random() < ratio for _ in range(votes))


def foretold_and_taken(seed: int, ratios: tuple[float, float]) -> tuple[Foretold, float] | None:
    """Foretell for whoever leads after some votes, and go on until it is settled; None if it is at once."""
    chance = random.Random(seed)
    ours, theirs = ratios
    up, other_up = drawn(chance, ours, VOTES), drawn(chance, theirs, VOTES)
    if up < other_up:
        up, other_up, ours, theirs = other_up, up, theirs, ours
    found = compare(
        VoteCount(up, VOTES - up), VoteCount(other_up, VOTES - other_up), margin=MARGIN, members=20
    )
    if found.is_within:
        return None
    each = VOTES
    while each < MOST:
        more = each // 10
        up, other_up = up + drawn(chance, ours, more), other_up + drawn(chance, theirs, more)
        each += more
        if (
            evidence(VoteCount(up, each - up), VoteCount(other_up, each - other_up), MARGIN)
            >= NEEDED
        ):
            return found.foretold, 2 * (each - VOTES)
    return found.foretold, math.inf


@pytest.mark.parametrize("ratios", [(0.6, 0.6), (0.6, 0.57), (0.65, 0.6)])
def test_few_verdicts_take_less_or_more_votes_than_foretold(ratios: tuple[float, float]) -> None:
    found = [one for seed in range(24) if (one := foretold_and_taken(seed, ratios))]
    assert len(found) > 15
    assert sum(taken < (foretold.low or 0) for foretold, taken in found) <= 0.25 * len(found)
    above = sum(taken > (foretold.high or math.inf) for foretold, taken in found)
    assert above <= 0.25 * len(found)


def test_few_duels_take_less_or_more_than_foretold() -> None:
    needed, missed = needed_evidence(MEMBERS), 0
    for seed in range(24):
        chance = random.Random(seed)

        def duel(count: DuelCount, chance: random.Random = chance) -> DuelCount:
            return count.plus(chance.choices((1.0, 0.5, 0.0), (0.42, 0.2, 0.38))[0])

        duels = DuelCount()
        while duels.total < 60:
            duels = duel(duels)
        found = compare_duels(duels, margin=MARGIN, members=MEMBERS)
        if found.is_within or found.foretold.low is None:
            continue
        while evidence_of_duels(duels, MARGIN) < needed and duels.total < 64 * 60:
            duels = duel(duels)
        taken = duels.total - 60
        missed += not found.foretold.low <= taken <= (found.foretold.high or math.inf)
    assert missed <= 6


def test_duels_that_depend_on_each_other_foretell_less() -> None:
    duels = DuelCount(44, 20, 36)
    alone = compare_duels(duels, margin=MARGIN, members=MEMBERS).foretold
    clustered = compare_duels(duels, margin=MARGIN, members=MEMBERS, dependence=3.0).foretold
    assert clustered.votes == alone.votes
    assert (clustered.low or 0) < (alone.low or 0)
    assert (clustered.high or math.inf) > (alone.high or math.inf)


def test_a_range_surrounds_its_middle_and_narrows() -> None:
    few = compare(VoteCount(140, 60), VoteCount(134, 66), margin=MARGIN, members=20).foretold
    many = compare(VoteCount(560, 240), VoteCount(536, 264), margin=MARGIN, members=20).foretold
    for low, votes, high in ((few.low, few.votes, few.high), (many.low, many.votes, many.high)):
        assert (low or 0) < (votes or 0) < (high or math.inf)
    assert (many.high or math.inf) / (many.low or 1) < (few.high or math.inf) / (few.low or 1)
