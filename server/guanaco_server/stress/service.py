"""The stress check: loads as real users would make them, a verdict on one of them, and how much the server can bear.

The verdict rests on as many requests as a 95th percentile needs, at a rate of at least the one that every model server
must bear. It is asked for more if it can: the requests then take seconds instead of half a minute, and a server that
keeps to its limits at a higher rate does so at a lower one. What misses one there, even once, gets a lower rate.
Then the rate is doubled, for a second each, until the server's knee: the rate at which it misses a limit, or a reply
takes twice as long. Where others use the server, or another one of its machine, the knee is not sought, for it is found
by disturbing them: the capacity is then what the verdict's load kept under way (Little's law). It counts sequences, of which a
reply has one for each of its candidates, so that it is the engine's, whoever of those that share it was checked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from guanaco.submissions import (
    GenerationParams,
    ReusedLoad,
    StressBeside,
    StressLoad,
    StressReport,
)
from guanaco_server.deployments.model_servers.model_server import Generation, ModelServer
from guanaco_server.runtime.clock import Clock
from guanaco_server.stress.load import (
    Load,
    Measure,
    RequestResult,
    Results,
    measure_reply,
    measure_scores,
    run_in_turn,
    run_load,
)
from guanaco_server.stress.sharing import BesideLoad, CheckedServer, KnownLoad
from guanaco_server.stress.verdict import (
    KNEE,
    Thresholds,
    is_certain_to_fail,
    is_falling_behind,
    judge,
)

CANDIDATES = (" Yes.", " I do not know what to say.", " Of course, let us go!", " Why?")
SCORED_AT_ONCE = len(CANDIDATES)
FIRST_CONCURRENCY = (
    8  # as many requests as the first load would keep under way, by the time that one takes alone
)
STEP_DOWN = 4
DOUBLINGS = 3
DOUBLED_S = 1.0
OWN_REQUESTS = 4  # one of each length of conversation
SLOWER = "a reply takes more than twice as long"
BEHIND = "replies wait longer and longer"


@dataclass(frozen=True)
class LoadPlan:
    """``rate`` must be borne; ``requests`` make the verdict, in ``duration_s`` if the server bears that."""

    rate: float
    duration_s: float
    requests: int


class StressService:
    """``reward_timeout_s`` is what a reply waits for its candidates' scores, so that 95 % must come in that time."""

    def __init__(
        self,
        model_server: ModelServer,
        clock: Clock,
        plan: LoadPlan,
        thresholds: Thresholds,
        reward_timeout_s: float,
    ) -> None:
        self._model_server = model_server
        self._clock = clock
        self.plan = plan
        self._thresholds = thresholds
        self._reward_thresholds = replace(
            thresholds, max_e2e_p95_ms=reward_timeout_s * 1000, answer="scoring requests"
        )

    async def check(
        self,
        server: CheckedServer,
        model: str,
        prompts: Sequence[str],
        params: GenerationParams,
        cache_salt: str,
    ) -> StressReport:
        async def measure(prompt: str, due: float) -> RequestResult:
            generation = Generation(model, prompt, params, cache_salt=cache_salt)
            return await measure_reply(self._model_server, server.endpoint, generation, due)

        return await self._checked(server, measure, prompts, self._thresholds)

    async def check_reward(
        self, server: CheckedServer, model: str, prompts: Sequence[str], cache_salt: str
    ) -> StressReport:
        """Each request scores the candidates of one reply."""

        async def measure(prompt: str, due: float) -> RequestResult:
            texts = [prompt + candidate for candidate in CANDIDATES]
            return await measure_scores(
                self._model_server, server.endpoint, model, texts, cache_salt, due
            )

        return await self._checked(server, measure, prompts, self._reward_thresholds)

    async def _checked(
        self,
        server: CheckedServer,
        measure: Measure,
        prompts: Sequence[str],
        thresholds: Thresholds,
    ) -> StressReport:
        beside = BesideLoad(self._model_server, server)
        placed = beside.placed(measure)
        check = _Check(placed, prompts, thresholds, self._clock, server.candidates)
        async with beside.watched():
            report = await check.own_requests(server.known) if server.known else None
            if report is None:
                report = await self._loaded(check, beside)
        if beside.is_alone:
            return report
        conditions = beside.to_contract()
        reasons = [*report.reasons, _sentence(conditions)] if report.reasons else []
        return report.model_copy(update={"beside": conditions, "reasons": reasons})

    async def _loaded(self, check: _Check, beside: BesideLoad) -> StressReport:
        started = time.perf_counter()
        report = await check.verdict(self.plan)
        if report.is_passed:
            await check.find_knee(report, lambda: beside.is_alone)
        return report.model_copy(
            update={
                "duration_s": time.perf_counter() - started,
                "loads": check.loads,
                "capacity": check.capacity,
                "candidates": check.candidates,
            }
        )


class _Check:
    """The loads of one stress check, in the order in which they are sent."""

    def __init__(
        self,
        measure: Measure,
        prompts: Sequence[str],
        thresholds: Thresholds,
        clock: Clock,
        candidates: int,
    ) -> None:
        self.candidates = candidates
        self._measure = measure
        self._prompts = prompts
        self._thresholds = thresholds
        self._clock = clock
        self.loads: list[StressLoad] = []
        self.capacity: int | None = None

    async def verdict(self, plan: LoadPlan) -> StressReport:
        """Judge the server under the highest rate that it bears, or under the one that it must."""
        rate = max(plan.rate, min(plan.requests / plan.duration_s, await self._first_rate()))
        while rate > plan.rate:
            report, behind = await self._judged(Load(rate, plan.requests))
            self._note(report, behind)
            if self.loads[-1].is_borne and not self._over(report):
                return report
            rate = max(plan.rate, rate / STEP_DOWN)
        report, _ = await self._judged(Load(rate, plan.requests))
        self._note(report)
        return report

    async def find_knee(self, base: StressReport, may_go_on: Callable[[], bool]) -> None:
        """Double the rate until the server misses a limit or its replies take twice as long, or while it may go on."""
        if base.e2e_ms is None:
            return
        rate, slowest_ms = base.offered_rate, KNEE * base.e2e_ms.p50
        for _ in range(DOUBLINGS):
            if not may_go_on():
                return
            rate *= 2
            most = min(base.requests, max(1, round(rate * DOUBLED_S)))
            report, behind = await self._judged(Load(rate, most))
            is_slow = report.e2e_ms is None or report.e2e_ms.p50 > slowest_ms
            self._note(report, SLOWER if is_slow else behind)
            if not self.loads[-1].is_borne:
                return

    async def own_requests(self, known: KnownLoad) -> StressReport | None:
        """Report a load that is known, if a few requests alone keep to every limit with these prompts and parameters; else None."""
        started, prompts = time.perf_counter(), self._prompts[:OWN_REQUESTS]
        results = await run_in_turn(self._measure, prompts)
        took_s = time.perf_counter() - started
        load = Load(known.report.offered_rate, len(prompts))
        report = judge(results, load, self._thresholds, self._clock.now(), took_s)
        if not report.is_passed or self._over(report):
            return None
        reused = ReusedLoad(
            submission_id=known.submission_id,
            at=known.report.reused.at if known.report.reused else known.report.at,
            own_requests=len(prompts),
        )
        return known.report.model_copy(
            update={"at": report.at, "duration_s": took_s, "reused": reused}
        )

    async def _first_rate(self) -> float:
        """Return the rate at which a few requests would be under way, by one that is sent alone."""
        alone = (await run_load(self._measure, self._prompts[:1], Load(1.0, 1)))[0]
        return FIRST_CONCURRENCY / (alone.e2e_ms / 1000) if alone.e2e_ms else math.inf

    async def _judged(self, load: Load) -> tuple[StressReport, str | None]:
        """The report, and why the server would not bear the load for longer."""

        def is_decided(results: Results) -> bool:
            return is_certain_to_fail(results, self._thresholds)

        at, started = self._clock.now(), time.perf_counter()
        results = await run_load(self._measure, self._prompts, load, is_decided)
        report = judge(results, load, self._thresholds, at, time.perf_counter() - started)
        return report, BEHIND if is_falling_behind(results) else None

    def _over(self, report: StressReport) -> bool:
        """Tell whether any request missed a limit, although 95 % did not."""
        limits = self._thresholds.to_contract()
        found = (
            (report.ttft_ms, limits.ttft_ms),
            (report.tpot_ms, limits.tpot_ms),
            (report.e2e_ms, limits.e2e_ms),
        )
        return any(measured is not None and measured.max > limit for measured, limit in found)

    def _note(self, report: StressReport, limit: str | None = None) -> None:
        why = " ".join(report.reasons) or limit
        if why is None and report.e2e_ms is not None:  # Little's law
            replies = report.offered_rate * report.e2e_ms.p50 / 1000
            self.capacity = math.ceil(replies * self.candidates)
        self.loads.append(
            StressLoad(
                rate=report.offered_rate,
                requests=report.requests,
                errors=report.errors,
                ttft_ms=report.ttft_ms,
                e2e_ms=report.e2e_ms,
                is_borne=why is None,
                why=why,
            )
        )


def _sentence(beside: StressBeside) -> str:
    if not beside.submissions:
        return (
            f"Meanwhile {beside.servers} other model servers of the same machine answered requests."
        )
    return f"Beside it {beside.submissions} other submissions used the model server, with {beside.mean:.1f} sequences under way on average and {beside.most} at most."
