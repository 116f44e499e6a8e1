"""Simulates seasons whose submissions share a few model servers, and counts the GPU hours until the verdict under each sleep policy.

Every server is always in use: users give it a rating every ``rating_s`` seconds, except in the ``swap_s`` seconds in which it changes its
submission. So the GPU hours are the time of all servers until the verdict. The platform's own functions choose the submissions that are awake:

    worth          the submissions whose next ratings tell most about the verdict for each second of a GPU (scaling/worth.py)
    least_useful   a submission that has its ratings makes room for one that lacks them, the longest waiting first (scaling/budget.py);
                   when all have theirs, each is to get as many again. Users never pause, so a submission that lacks ratings is never idle

Each season begins with no submission awake, and counts the start of the first ones too.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median

from guanaco.simulations import SharedServers, SharedVerdict, SimulationRequest, SleepPolicy
from guanaco_server.scaling.budget import Budget, Claim, Room, Tenant, share
from guanaco_server.scaling.worth import HEARD, Contender, best_change, worths
from guanaco_server.simulation.seasons import FIRST_LOOK, GROWTH, settled_leader, true_ratios
from guanaco_server.statistics.votes import VoteCount

TURN = 50  # ratings after which `least_useful` lets a submission sleep, like `newest_until`
AT_ONCE = 0.03  # the share of all ratings so far that a server collects between two decisions
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ONE = Room(1, 1)


@dataclass(frozen=True)
class SharedPlan:
    """A planned competition on a few servers under one sleep policy."""

    request: SimulationRequest
    servers: SharedServers
    within: float
    policy: SleepPolicy


@dataclass(frozen=True)
class SharedSeason:
    """One season's seconds, ratings and swaps until its verdict. ``is_decided`` is False if the ratings ran out before it."""

    seconds: float
    ratings: int
    changes: int
    is_decided: bool
    is_wrong: bool = False


def simulate_shared(
    plan: SharedPlan,
    run: Callable[[SharedPlan, Sequence[int]], Iterator[SharedSeason]] | None = None,
) -> SharedVerdict:
    """Simulate all seasons of a plan. ``run`` may distribute them over processes."""
    request = plan.request
    seeds = range(request.seed, request.seed + request.seasons)
    found = list((run or _run_in_sequence)(plan, seeds))
    gpus = plan.servers.engines * request.gpus_per_submission
    hours = sorted(one.seconds * gpus / 3600 for one in found)
    return SharedVerdict(
        policy=plan.policy,
        gpu_hours=median(hours),
        quarter=hours[len(hours) // 4],
        three_quarters=hours[-1 - len(hours) // 4],
        days=median(one.seconds for one in found) / 86_400,
        ratings=median(one.ratings for one in found),
        changes=median(one.changes for one in found),
        decided=sum(one.is_decided for one in found) / len(found),
        wrong=sum(one.is_wrong for one in found) / len(found),
    )


def _run_in_sequence(plan: SharedPlan, seeds: Sequence[int]) -> Iterator[SharedSeason]:
    return (shared_season(plan, seed) for seed in seeds)


def shared_season(plan: SharedPlan, seed: int) -> SharedSeason:
    """Simulate one season until its verdict, or until its ratings are used up. The same seed gives the same true ratios under each policy."""
    return _ServedSeason(plan, seed).follow()


class _ServedSeason:
    def __init__(self, plan: SharedPlan, seed: int) -> None:
        self._plan = plan
        self._chance = random.Random(seed)  # noqa: S311 - it simulates
        self._truth = dict(enumerate(true_ratios(plan.request, self._chance)))
        self._up, self._total = dict.fromkeys(self._truth, 0), dict.fromkeys(self._truth, 0)
        self._slept_at = dict.fromkeys(self._truth, 0.0)
        self._awake = list(self._truth)[: plan.servers.engines]  # by server
        self._target = TURN
        self._changes = len(self._awake)
        self._choose = {
            SleepPolicy.WORTH: self._by_worth,
            SleepPolicy.LEAST_USEFUL: self._by_use,
        }[plan.policy]

    def follow(self) -> SharedSeason:
        servers, most = self._plan.servers, self._plan.request.most_ratings
        events = [(servers.swap_s, server) for server in range(len(self._awake))]
        done, next_look, now = 0, FIRST_LOOK, 0.0
        while done < most:
            now, server = heapq.heappop(events)
            count = min(self._ratings_until_decision(server, done), most - done)
            now += count * servers.rating_s
            self._rate(self._awake[server], count)
            done += count
            if done >= next_look:
                if (leader := self._settled_leader()) is not None:
                    behind = max(self._truth.values()) - self._truth[leader]
                    is_wrong = behind > self._plan.within
                    return SharedSeason(now, done, self._changes, True, is_wrong)
                next_look = max(next_look + FIRST_LOOK, int(next_look * GROWTH))
            now += self._change(server, now)
            heapq.heappush(events, (now, server))
        return SharedSeason(now, done, self._changes, is_decided=False)

    def _ratings_until_decision(self, server: int, done: int) -> int:
        """Return how many ratings the server collects until the next decision on it."""
        until = max(HEARD, int(AT_ONCE * done))
        if self._plan.policy is SleepPolicy.LEAST_USEFUL:
            until = min(until, max(1, self._target - self._total[self._awake[server]]))
        return until

    def _rate(self, place: int, count: int) -> None:
        self._up[place] += sum(self._chance.random() < self._truth[place] for _ in range(count))
        self._total[place] += count

    def _change(self, server: int, now: float) -> float:
        """Let the policy choose the server's submission. Return the seconds that the swap takes, 0 without one."""
        chosen = self._choose(self._awake[server], now)
        if chosen is None:
            return 0.0
        self._slept_at[self._awake[server]] = now
        self._awake[server] = chosen
        self._changes += 1
        return self._plan.servers.swap_s

    def _by_worth(self, current: int, _now: float) -> int | None:
        servers = self._plan.servers
        contenders = [
            Contender(
                str(place),
                self._votes(place),
                place in self._awake,
                servers.swap_s,
                servers.rating_s,
            )
            for place in self._truth
        ]
        found = worths(contenders, self._plan.within, self._alpha)
        asleep = [one.submission_id for one in contenders if not one.is_awake]
        change = best_change(found, [str(current)], asleep)
        return int(change[0]) if change else None

    def _by_use(self, current: int, now: float) -> int | None:
        if all(total >= self._target for total in self._total.values()):
            self._target += TURN
        asleep = [place for place in self._truth if place not in self._awake]
        claims = [
            Claim(str(place), str(place), ONE, self._moment(self._slept_at[place]))
            for place in asleep
            if self._total[place] < self._target
        ]
        is_rated = self._total[current] >= self._target
        used_at = self._moment(now) if is_rated else None
        tenant = Tenant(str(current), str(current), ONE, used_at, is_rated=is_rated)
        plan = share(
            Budget(max_model_servers=1, quiet_s=0), [tenant], claims, Room(), self._moment(now)
        )
        stopped = f"Stopping {current} for it."
        return next((int(name) for name, why in plan.waits.items() if why == stopped), None)

    def _settled_leader(self) -> int | None:
        counts = {str(place): self._votes(place) for place in self._truth}
        leader = settled_leader(counts, self._plan.within, self._alpha)
        return None if leader is None else int(leader)

    def _votes(self, place: int) -> VoteCount:
        return VoteCount(self._up[place], self._total[place] - self._up[place])

    def _moment(self, seconds: float) -> datetime:
        return BEGIN + timedelta(seconds=seconds)

    @property
    def _alpha(self) -> float:
        return 1 - self._plan.request.certainty
