"""Simulates seasons in which a random share is asked for a rating, until its verdict is there, by the platform's own estimate and sequence.

A user has one conversation with a submission that could be asked. The platform draws whom it asks, with the chance of the rule; a user who is asked
answers with the chance of the request, with thumbs up as often as the submission's true ratio says. No signal of a conversation says anything of it, so what signals
save is not in the figures. Needs numpy.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from guanaco.competitions import AskRule, AssignmentRule
from guanaco.simulations import AskedSimulation, SimulationRequest
from guanaco_server.routing.policies.policies import Entry
from guanaco_server.routing.policies.posterior import Posterior
from guanaco_server.routing.snapshot import Snapshot, policy_of
from guanaco_server.simulation.outcomes import SeasonOutcome
from guanaco_server.simulation.seasons import settled_leader, true_ratios
from guanaco_server.statistics.votes import VoteCount

if TYPE_CHECKING:
    from guanaco_server.statistics.answer_lines import AskedConversations

FIRST_LOOK = 200  # answers
GROWTH = 1.1  # from one look to the next
STEPS_A_LOOK = 4  # snapshots
LEAST_STEP = 100  # conversations


@dataclass(frozen=True)
class AskingPlan:
    """One policy of a planned competition whose rule is ``ask``."""

    request: SimulationRequest
    assignment: AssignmentRule
    ask: AskRule


def simulate_asked(
    plan: AskingPlan,
    run: Callable[[AskingPlan, Sequence[int]], Iterator[SeasonOutcome]] | None = None,
) -> AskedSimulation:
    """Simulate all seasons of a plan. ``run`` may distribute them over processes."""
    request = plan.request
    seeds = range(request.seed, request.seed + request.seasons)
    found = list(run(plan, seeds) if run else (asking_season(plan, seed) for seed in seeds))
    answers = sorted(
        request.most_ratings if one.after is None else float(one.after) for one in found
    )
    needed = median(answers)
    return AskedSimulation(
        policy=plan.assignment.kind,
        answers=needed,
        quarter=answers[len(answers) // 4],
        three_quarters=answers[-1 - len(answers) // 4],
        conversations=needed / plan.ask.share / request.answering,
        days=needed / request.ratings_per_day,
        decided=sum(one.after is not None for one in found) / len(found),
        wrong=sum(one.is_wrong for one in found) / len(found),
    )


def asking_season(plan: AskingPlan, seed: int) -> SeasonOutcome:
    """Follow one season until the verdict on all who could be asked; ``after`` counts answers. The same seed gives the same season."""
    return asyncio.run(_AskingSeason(plan, seed).follow())


class _AskingSeason:
    def __init__(self, plan: AskingPlan, seed: int) -> None:
        self._plan = plan
        self._chance = random.Random(seed)  # noqa: S311 - it simulates
        self._truth = true_ratios(plan.request, self._chance)
        size = plan.request.submissions
        self._up, self._answers = [0] * size, [0] * size
        self._posterior = Posterior()
        self._rows: list[tuple[int, bool, bool, bool]] = []

    async def follow(self) -> SeasonOutcome:
        most, look = self._plan.request.most_ratings, FIRST_LOOK
        within, answered = self._plan.assignment.within, 0
        while answered < most:
            a_step = (min(look, most) - answered) / self._rate / STEPS_A_LOOK
            while answered < min(look, most):
                await self._converse(max(LEAST_STEP, int(a_step)))
                answered = sum(self._answers)
            if (leader := self._known()) is not None:
                return SeasonOutcome(answered, max(self._truth) - self._truth[leader] > within)
            look = max(look + FIRST_LOOK, int(look * GROWTH))
        return SeasonOutcome(None)

    @property
    def _rate(self) -> float:
        return self._plan.ask.share * self._plan.request.answering

    async def _converse(self, conversations: int) -> None:
        entries = tuple(
            Entry(str(place), -float(place), up, answers - up, 1.0)
            for place, (up, answers) in enumerate(zip(self._up, self._answers, strict=True))
        )
        snapshot = Snapshot.model_construct(rule=self._plan.assignment, entries=entries)
        policy = await policy_of(snapshot, self._posterior)
        draws = iter(self._chance.random, None)
        for _ in range(conversations):
            name = policy.choose(draws, frozenset())
            assert name is not None, "somebody takes part"
            place = int(name)
            is_asked = self._chance.random() < self._plan.ask.share
            answers = is_asked and self._chance.random() < self._plan.request.answering
            is_up = answers and self._chance.random() < self._truth[place]
            self._rows.append((place, is_asked, answers, is_up))
            self._answers[place] += answers
            self._up[place] += is_up

    def _known(self) -> int | None:
        """Return the leader if it is shown to be within the margin of each other one."""
        from guanaco_server.statistics.answer_lines import predictions
        from guanaco_server.statistics.asked_ratio import asked_sequences, compare_asked, sums_of
        from guanaco_server.statistics.confidence_sequences import shared_alpha

        request = self._plan.request
        alpha, within = 1 - request.certainty, self._plan.assignment.within
        counts = {
            str(place): VoteCount(up, answers - up)
            for place, (up, answers) in enumerate(zip(self._up, self._answers, strict=True))
        }
        if settled_leader(counts, within, alpha) is None:
            return None  # the same answers tell less of everybody than of those who answered
        asked = self._columns()
        sums = sums_of(asked, predictions(asked), uses_signals=False)
        lows = [low for low, _ in asked_sequences(sums, shared_alpha(len(sums), alpha))]
        leader = max(range(len(sums)), key=lambda place: (lows[place], sums[place].ratio or 0.0))
        closest_first = sorted(range(len(sums)), key=lambda place: -(sums[place].ratio or 0.0))
        is_known = all(
            compare_asked(
                sums[leader],
                sums[place],
                margin=within,
                members=len(sums),
                alpha=alpha,
                foretells=False,
            ).is_within
            for place in closest_first
            if place != leader
        )
        return leader if is_known else None

    def _columns(self) -> AskedConversations:
        import numpy as np

        from guanaco_server.statistics.answer_lines import AskedConversations

        rows = np.asarray(self._rows, dtype=np.int64)
        asked, answered, up = (rows[:, column].astype(np.float64) for column in (1, 2, 3))
        chances, no_signals = np.full(len(rows), self._plan.ask.share), np.zeros((len(rows), 1))
        return AskedConversations(rows[:, 0], chances, asked, answered, up, no_signals)
