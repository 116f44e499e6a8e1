"""Simulates seasons of a planned competition with the product's own policies, rules and tests.

Needs nothing that a light installation lacks; strengths are fitted by numpy, so the rules by strengths need that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from guanaco.competitions import AssignmentKind, AssignmentRule, RankingRule
from guanaco.simulations import SimulatedVerdict, SimulationRequest
from guanaco_server.leaderboard.ranking.rules import (
    Standing,
    VotesByUser,
    compares_users,
    margin_of,
    standings,
)
from guanaco_server.leaderboard.ranking.strengths.continued_fit import ContinuedFit
from guanaco_server.routing.policies.policies import Entry
from guanaco_server.routing.policies.posterior import Posterior
from guanaco_server.routing.snapshot import Snapshot, policy_of
from guanaco_server.simulation.duels import NORMAL, DuelPlan, Users, duel_season
from guanaco_server.simulation.outcomes import SeasonOutcome
from guanaco_server.statistics.decisions import compare
from guanaco_server.statistics.votes import VoteCount

FIRST_LOOK = 100
LEAST = 1e-6  # a true ratio of 0 has no normal deviate
GROWTH = 1.05  # from one look to the next
NEWEST_STEP = 10  # `newest` sends all to one submission, so its snapshots have to follow closely
OPPONENTS_WEIGHT = {
    # A difference of ratios, in the score's own scale: of two votes, the chance to be preferred differs by half as much.
    RankingRule.THUMBS_UP: 1.0,
    RankingRule.BRADLEY_TERRY: 0.5,
    RankingRule.COMBINED: 0.75,
}


@dataclass(frozen=True)
class SeasonPlan:
    """One policy and one rule of a planned competition; ``is_by_duels`` where duels settle who is best."""

    request: SimulationRequest
    assignment: AssignmentRule
    rule: RankingRule
    is_by_duels: bool = False


def simulate(
    plan: SeasonPlan,
    run: Callable[[SeasonPlan, Sequence[int]], Iterator[SeasonOutcome]] | None = None,
) -> SimulatedVerdict:
    """Simulate all seasons of a plan; ``run`` may spread them over processes."""
    request = plan.request
    seeds = range(request.seed, request.seed + request.seasons)
    found = list((run or _run_in_sequence)(plan, seeds))
    ratings = sorted(
        request.most_ratings if one.after is None else float(one.after) for one in found
    )
    needed = median(ratings)
    days = needed / request.ratings_per_day
    return SimulatedVerdict(
        policy=plan.assignment.kind,
        rule=plan.rule,
        is_by_duels=plan.is_by_duels,
        ratings=needed,
        quarter=ratings[len(ratings) // 4],
        three_quarters=ratings[-1 - len(ratings) // 4],
        users=needed / _ratings_of_a_user(plan),
        days=days,
        gpu_hours=days * 24 * request.submissions * request.gpus_per_submission,
        decided=sum(one.after is not None for one in found) / len(found),
        wrong=sum(one.is_wrong for one in found) / len(found),
        decided_after=[one.after for one in found],
    )


def _ratings_of_a_user(plan: SeasonPlan) -> int:
    """Return how many ratings a user gives. By thumbs, no more than one of each submission."""
    most = plan.request.ratings_per_user
    return most if plan.is_by_duels else min(most, plan.request.submissions)


def _run_in_sequence(plan: SeasonPlan, seeds: Sequence[int]) -> Iterator[SeasonOutcome]:
    return (season(plan, seed) for seed in seeds)


def season(plan: SeasonPlan, seed: int) -> SeasonOutcome:
    """Follow one season until the verdict, or until its ratings are used up. The same seed gives the same season."""
    if plan.is_by_duels:
        return duel_season(_duel_plan(plan), seed)
    return asyncio.run(_PlayedSeason(plan, seed).follow())


def _duel_plan(plan: SeasonPlan) -> DuelPlan:
    request, assignment = plan.request, plan.assignment

    def likes(chance: random.Random) -> list[float]:
        return [
            NORMAL.inv_cdf(min(max(one, LEAST), 1 - LEAST)) for one in true_ratios(request, chance)
        ]

    return DuelPlan(
        submissions=request.submissions,
        within=assignment.within,
        floor=assignment.recency_floor,
        new_until=assignment.newest_until,
        most_duels=request.most_ratings,
        users=Users(request.correlation, request.ties, duels=request.ratings_per_user),
        likes=likes,
        alpha=1 - request.certainty,
    )


class _PlayedSeason:
    def __init__(self, plan: SeasonPlan, seed: int) -> None:
        self._plan = plan
        self._chance = random.Random(seed)  # noqa: S311 - it simulates
        size = plan.request.submissions
        self._truth = true_ratios(plan.request, self._chance)
        self._up, self._total = [0] * size, [0] * size
        self._names = [f"submission-{place}" for place in range(size)]
        self._places = {name: place for place, name in enumerate(self._names)}
        self._posterior = Posterior()
        self._votes = VotesByUser(())
        self._users = 0
        self._user: dict[str, bool] = {}
        self._fit = ContinuedFit(self._votes)

    async def follow(self) -> SeasonOutcome:
        most, look = self._plan.request.most_ratings, FIRST_LOOK
        done = 0
        while done < most:
            target = min(look, most)
            while done < target:
                step = target - done
                if self._plan.assignment.kind is AssignmentKind.NEWEST:
                    step = min(step, NEWEST_STEP)
                await self._rate(step)
                done += step
            if (leader := self._known()) is not None:
                scale = OPPONENTS_WEIGHT[self._plan.rule]
                behind = scale * (max(self._truth) - self._truth[leader])
                return SeasonOutcome(done, behind > self._plan.assignment.within)
            look = max(look + FIRST_LOOK, int(look * GROWTH))
        return SeasonOutcome(None)

    async def _rate(self, ratings: int) -> None:
        """Send users by one snapshot; each rates some submissions, no one twice."""
        entries = tuple(
            Entry(name, -float(place), self._up[place], self._total[place] - self._up[place], 1.0)
            for place, name in enumerate(self._names)
        )
        snapshot = Snapshot.model_construct(rule=self._plan.assignment, entries=entries)
        policy = await policy_of(snapshot, self._posterior)
        draws = iter(self._chance.random, None)
        for _ in range(ratings):
            name = policy.choose(draws, self._user.keys())
            if name is None or len(self._user) >= self._plan.request.ratings_per_user:
                self._next_user()
                name = policy.choose(draws, frozenset())
                assert name is not None, "somebody takes part"
            place = self._places[name]
            thumbs_up = self._chance.random() < self._truth[place]
            self._total[place] += 1
            self._up[place] += thumbs_up
            self._user[name] = thumbs_up

    def _next_user(self) -> None:
        if compares_users(self._plan.rule) and self._user:
            self._votes.replace(str(self._users), self._user)
        self._users += 1
        self._user = {}

    def _known(self) -> int | None:
        """Return the leader if the verdict is there."""
        rule, request = self._plan.rule, self._plan.request
        counts = {
            name: VoteCount(self._up[place], self._total[place] - self._up[place])
            for place, name in enumerate(self._names)
        }
        alpha = 1 - request.certainty
        board = standings(
            rule, counts, self._votes.ids, self._votes.comparable(), fit=self._fit, alpha=alpha
        )
        if len(board) < len(self._names):
            return None
        is_known = self._is_shown(board, counts, alpha)
        return self._places[board[0].submission_id] if is_known else None

    def _is_shown(
        self, board: Sequence[Standing], counts: dict[str, VoteCount], alpha: float
    ) -> bool:
        within = self._plan.assignment.within
        if self._plan.rule is RankingRule.THUMBS_UP:
            return _is_settled(board, counts, within, alpha)
        margin = margin_of(self._plan.rule, within)
        return all(board[0].score.low - other.score.high >= -margin for other in board[1:])


def true_ratios(request: SimulationRequest, chance: random.Random) -> list[float]:
    """Draw the true ratio of each submission."""
    strength = request.mean * (1 - request.mean) / request.spread**2 - 1
    up, down = (max(share * strength, 0.05) for share in (request.mean, 1 - request.mean))
    return [chance.betavariate(up, down) for _ in range(request.submissions)]


def settled_leader(counts: Mapping[str, VoteCount], within: float, alpha: float) -> str | None:
    """Return the leader by thumbs if it is known to be within the margin of the best."""
    board = standings(RankingRule.THUMBS_UP, counts, (), (), alpha=alpha)
    is_known = len(board) == len(counts) and _is_settled(board, counts, within, alpha)
    return board[0].submission_id if is_known else None


def _is_settled(
    board: Sequence[Standing], counts: Mapping[str, VoteCount], within: float, alpha: float
) -> bool:
    leader, others = board[0], board[1:]
    return all(
        compare(
            counts[leader.submission_id],
            counts[other.submission_id],
            margin=within,
            members=len(board),
            alpha=alpha,
            foretells=False,
        ).is_within
        for other in others
    )
