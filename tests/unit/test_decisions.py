"""Tests of a leader and another submission, proved by counting every path, and the policy that aims at them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache

import pytest

from guanaco.competitions import AssignmentKind, AssignmentRule
from guanaco_server.routing.policies.deciding import HEARD, decisive, played
from guanaco_server.routing.policies.policies import Entry
from guanaco_server.routing.policies.posterior import Posterior
from guanaco_server.routing.snapshot import Snapshot, policy_of
from guanaco_server.statistics.beta_prior import BetaPrior, chance_within, fit_prior
from guanaco_server.statistics.confidence_sequences import proportion_sequence, shared_alpha
from guanaco_server.statistics.decisions import compare, evidence
from guanaco_server.statistics.votes import VoteCount

MARGIN = 0.05

Arms = tuple[int, int, int, int]
"""Thumbs up and votes of the leader, then of the other one."""


@cache
def is_claimed(arms: Arms, alpha: float) -> bool:
    """Most of the test's time; whatever the true ratios and whoever gets the votes, the counts that they lead to are the same."""
    up, total, other_up, other_total = arms
    ours, theirs = VoteCount(up, total - up), VoteCount(other_up, other_total - other_up)
    return evidence(ours, theirs, MARGIN) >= -math.log(alpha)


def chance_of_ever_claiming(
    leader: float, other: float, votes: int, alpha: float, takes_leader: Callable[[Arms], bool]
) -> float:
    """Look after every vote, whoever gets the next; return the exact chance that the claim is ever made."""
    still: dict[Arms, float] = {(0, 0, 0, 0): 1.0}
    claimed = 0.0
    for _ in range(votes):
        following: dict[Arms, float] = {}
        for (up, total, other_up, other_total), weight in still.items():
            is_leaders = takes_leader((up, total, other_up, other_total))
            chance = leader if is_leaders else other
            for vote, share in ((1, chance), (0, 1 - chance)):
                arms = (
                    (up + vote, total + 1, other_up, other_total)
                    if is_leaders
                    else (up, total, other_up + vote, other_total + 1)
                )
                following[arms] = following.get(arms, 0.0) + weight * share
        still = {}
        for arms, weight in following.items():
            if is_claimed(arms, alpha):
                claimed += weight
            else:
                still[arms] = weight
    return claimed


def in_turns(arms: Arms) -> bool:
    return arms[1] <= arms[3]


def to_the_better_ratio(arms: Arms) -> bool:
    """Follow what is shown, as adaptive assignment does."""
    up, total, other_up, other_total = arms
    return (up + 1) / (total + 2) >= (other_up + 1) / (other_total + 2)


@pytest.mark.slow
def test_looking_after_every_vote_keeps_the_error_of_a_claim() -> None:
    for takes_leader in (in_turns, to_the_better_ratio):
        for leader, other in ((0.5, 0.55), (0.1, 0.15), (0.9, 0.95)):
            chance = chance_of_ever_claiming(leader, other, 28, 0.3, takes_leader)
            assert 0 < chance <= 0.3, (leader, other, takes_leader)


def test_claim_needs_fewer_votes_than_disjoint_intervals() -> None:
    alpha = shared_alpha(20)

    def are_apart(times: int) -> bool:
        low, _ = proportion_sequence(8 * times, 10 * times, alpha)
        return low > proportion_sequence(7 * times, 10 * times, alpha)[1]

    def is_claimed(times: int) -> bool:
        ours, theirs = VoteCount(8 * times, 2 * times), VoteCount(7 * times, 3 * times)
        return compare(ours, theirs, margin=MARGIN, members=20, foretells=False).is_better

    apart = next(times for times in range(1, 2_000) if are_apart(times))
    claimed = next(times for times in range(1, 2_000) if is_claimed(times))
    assert claimed < 0.7 * apart


def test_the_votes_that_are_foretold_settle_it() -> None:
    ours, theirs = VoteCount(160, 40), VoteCount(150, 50)
    found = compare(ours, theirs, margin=MARGIN, members=20)
    assert (found.is_within, found.is_better) == (False, False)
    assert found.foretold.votes is not None
    times = 1 + found.foretold.votes / (ours.total + theirs.total)

    def after(more: float) -> bool:
        grown = [VoteCount(round(more * one.up), round(more * one.down)) for one in (ours, theirs)]
        return compare(*grown, margin=MARGIN, members=20).is_within

    assert after(times * 1.02)
    assert not after(times * 0.9)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (VoteCount(0, 0), VoteCount(0, 0)),
        (VoteCount(5, 0), VoteCount(0, 0)),
        (VoteCount(50, 50), VoteCount(90, 10)),
    ],
)
def test_nothing_is_claimed_or_foretold_without_reason(ours: VoteCount, theirs: VoteCount) -> None:
    found = compare(ours, theirs, margin=MARGIN, members=2)
    assert (found.is_better, found.is_within, found.foretold.votes) == (False, False, None)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (VoteCount(900_000, 100_000), VoteCount(100_000, 900_000)),
        (VoteCount(10**6, 0), VoteCount(0, 10**6)),
    ],
)
def test_a_million_votes_are_compared(ours: VoteCount, theirs: VoteCount) -> None:
    assert compare(ours, theirs, margin=MARGIN, members=1_000).is_better


@pytest.mark.slow
def test_the_prior_of_past_seasons_is_found_again() -> None:
    chance = random.Random(4)
    past = []
    for _ in range(400):
        ratio = chance.betavariate(12, 8)
        up = sum(chance.random() < ratio for _ in range(200))
        past.append(VoteCount(up, 200 - up))
    found = fit_prior(past)
    assert found.submissions == 400
    assert found.up / (found.up + found.down) == pytest.approx(0.6, abs=0.02)
    assert 14 < found.up + found.down < 28


def test_few_past_submissions_leave_the_prior_flat() -> None:
    assert fit_prior([VoteCount(30, 10)] * 9 + [VoteCount(1, 1)] * 90) == BetaPrior()


def test_chance_is_half_between_equals_and_a_margin_adds() -> None:
    one = VoteCount(60, 40)
    assert chance_within(one, [one], 0.0, BetaPrior()) == pytest.approx(0.5, abs=0.03)
    assert chance_within(one, [one], 0.05, BetaPrior()) > 0.7
    assert chance_within(VoteCount(90, 10), [VoteCount(10, 90)], 0.0, BetaPrior()) > 0.999
    assert chance_within(one, [], 0.05, BetaPrior()) == pytest.approx(1.0)


def entries(*votes: tuple[int, int]) -> list[Entry]:
    return [Entry(f"s{at}", float(-at), up, down, 1.0) for at, (up, down) in enumerate(votes)]


def test_votes_go_to_the_leader_and_its_possible_rivals() -> None:
    shares = decisive(entries((80, 20), (75, 25), (20, 80)), 0.05, 0.1, 50).chances(frozenset())
    assert shares["s0"] > 0.3
    assert shares["s1"] > 0.3
    assert shares["s2"] < 0.01


def test_leader_gets_more_votes_the_more_rivals_it_has() -> None:
    many = played(entries((160, 40), *[(150, 50)] * 12), 0.05)
    assert many[0] > 2 * max(many[1:])


def test_newcomers_are_heard_first() -> None:
    young = (HEARD // 2, 0)
    assert decisive(entries(young, young, (80, 20)), 0.05, 0.1, 50).chances(frozenset()) == {
        "s0": pytest.approx(0.5),
        "s1": pytest.approx(0.5),
        "s2": 0.0,
    }
    shares = decisive(entries((1, 1), (80, 20), (70, 30)), 0.05, 0.1, 50).chances(frozenset())
    assert shares["s0"] > 0.1


def test_recency_floor_holds_for_newcomers_already_compared() -> None:
    shares = decisive(entries((5, 25), (80, 20), (79, 21)), 0.05, 0.2, 50).chances(frozenset())
    assert shares["s0"] == pytest.approx(0.2, abs=0.01)


async def test_a_recorded_choice_of_the_rule_has_its_margin() -> None:
    rule = AssignmentRule(kind=AssignmentKind.DECIDE, within=0.1)
    snapshot = Snapshot(rule=rule, entries=tuple(entries((80, 20), (75, 25))))
    again = Snapshot.model_validate_json(snapshot.model_dump_json())
    first, second = [await policy_of(one, Posterior()) for one in (snapshot, again)]
    assert first.chances(frozenset()) == second.chances(frozenset())
    assert again.digest == snapshot.digest
    assert (await policy_of(Snapshot(rule=rule, entries=()), Posterior())).chances(set()) == {}
