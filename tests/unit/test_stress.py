"""The stress check: its arrivals, its verdict and how sure it is, and the loads by which it finds what a server bears."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import mean
from typing import Any

import pytest

from guanaco.submissions import GenerationParams, StressReport
from guanaco_server.deployments.model_servers.memory import MemoryModelServer, Script
from guanaco_server.deployments.model_servers.model_server import (
    Generation,
    ModelServerFault,
    ServerLoad,
)
from guanaco_server.runtime.clock import FixedClock
from guanaco_server.stress import service
from guanaco_server.stress.load import Load, RequestResult, arrivals, measure_reply, run_load
from guanaco_server.stress.service import BEHIND, SLOWER, LoadPlan, StressService
from guanaco_server.stress.verdict import Thresholds, is_certain_to_fail, judge, percentiles
from guanaco_server.submissions.pipeline.checks.load import on_its_machine
from tests.fixtures.checked_server import unshared

THRESHOLDS = Thresholds(100, 50, 1_000, 0.1)
GOOD = RequestResult(output_tokens=5, ttft_ms=10, tpot_ms=2, e2e_ms=20)
LATE = RequestResult(output_tokens=5, ttft_ms=10, tpot_ms=2, e2e_ms=2_000)


def test_percentiles_are_values_that_were_measured() -> None:
    found = percentiles(float(n) for n in range(1, 101))
    assert found is not None
    assert (found.p50, found.p95, found.p99, found.max) == (50, 95, 99, 100)
    assert percentiles([None]) is None


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (RequestResult(output_tokens=5, ttft_ms=101, tpot_ms=1, e2e_ms=200), "95 % of time to first token took up to 101 ms; allowed 100"),
        (RequestResult(output_tokens=5, ttft_ms=1, tpot_ms=51, e2e_ms=200), "95 % of time per output token took up to 51 ms; allowed 50"),
        (RequestResult(output_tokens=5, ttft_ms=1, tpot_ms=1, e2e_ms=1_001), "95 % of whole reply took up to 1,001 ms; allowed 1,000"),
        (RequestResult(error="refused"), "20 of 20 requests failed (100%; allowed 10%): refused"),
    ],
)  # fmt: skip
def test_each_missed_threshold_is_a_sentence_with_the_figures(
    result: RequestResult, says: str
) -> None:
    report = judged([result] * 20)
    assert not report.is_passed
    assert says in report.reasons[0]


def test_verdict_on_few_requests_claims_no_95_percent() -> None:
    report = judged([GOOD, LATE])
    assert (
        report.reasons[0]
        == "The slowest of 2 in whole reply took up to 2,000 ms; allowed 1,000 ms."
    )


def test_a_good_run_passes_with_its_figures_and_each_request() -> None:
    report = judged([GOOD] * 10)
    assert report.is_passed
    assert (report.requests, report.errors, report.tokens_per_second) == (10, 0, 10.0)
    assert [one.e2e_ms for one in report.trace] == [20] * 10


@pytest.mark.parametrize(
    ("good", "late", "is_passed", "confidence"),
    [
        (60, 0, True, 0.954),  # 1 - 0.95^60
        (12, 0, True, 0.460),
        (92, 1, True, 0.950),
        (58, 2, True, 0.583),
        (50, 10, False, 0.999),
    ],
)
def test_the_verdict_says_how_sure_it_is(
    good: int, late: int, is_passed: bool, confidence: float
) -> None:
    report = judged([GOOD] * good + [LATE] * late)
    assert report.is_passed is is_passed
    assert report.confidence == pytest.approx(confidence, abs=0.001)


def test_load_ends_early_only_where_the_server_misses_its_limit() -> None:
    def given_up(share_over: float) -> float:
        draws = random.Random(7)
        return mean(
            any(
                is_certain_to_fail(results[:n], THRESHOLDS)
                for results in [[LATE if draws.random() < share_over else GOOD for _ in range(60)]]
                for n in range(1, 61)
            )
            for _ in range(200)
        )

    assert given_up(0.05) <= 0.05
    assert given_up(0.5) == 1.0


def test_arrivals_are_those_of_independent_users() -> None:
    load = Load(10, 2_000)
    due = list(arrivals(load))
    gaps = [after - before for before, after in pairwise(due)]
    assert due == list(arrivals(load)), "every submission gets the same"
    assert mean(gaps) == pytest.approx(0.1, rel=0.1)
    assert mean(gap > 0.1 for gap in gaps) == pytest.approx(0.368, abs=0.05), "exponential gaps"


async def test_pending_requests_are_dropped_once_the_load_is_decided() -> None:
    given_up: list[str] = []

    async def measure(prompt: str, due: float) -> RequestResult:
        if prompt == "fails":
            raise ModelServerFault("it refused")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            given_up.append(prompt)
            raise
        return GOOD

    results = await run_load(
        measure, ["hangs", "fails"], Load(1_000, 2), lambda found: found[0].error is not None
    )
    assert [result.error for result in results] == ["it refused"]
    assert given_up == ["hangs"]


async def test_best_of_several_replies_is_not_streamed() -> None:
    server = MemoryModelServer(Script(pieces=("Aye", ".")))
    params = GenerationParams(best_of=2)
    result = await measure_reply(server, "memory://x", Generation("x", "Hi", params), 0.0)
    assert (result.ttft_ms, result.tpot_ms) == (None, None)
    assert result.e2e_ms is not None
    assert judged([result] * 60).e2e_ms is not None


@dataclass
class Queue:
    """Answers one request after another, each in ``service_s``; nobody really waits for it."""

    service_s: float
    free_at: float = 0.0

    def serve(self, due: float) -> RequestResult:
        self.free_at = max(self.free_at, due) + self.service_s
        waited_ms = (self.free_at - due) * 1000
        return RequestResult(output_tokens=2, ttft_ms=waited_ms, tpot_ms=0, e2e_ms=waited_ms)


async def checked(
    monkeypatch: pytest.MonkeyPatch,
    service_s: float,
    plan: LoadPlan,
    beside: Mapping[str, ServerLoad] | None = None,
    candidates: int = 1,
) -> StressReport:
    """``beside`` are the loads of other model servers of the machine; ``candidates`` are those of each reply."""
    queue = Queue(service_s)

    async def served(_server: object, _endpoint: str, _model: object, due: float) -> RequestResult:
        return queue.serve(due)

    async def run_alone(*args: Any) -> list[RequestResult]:
        queue.free_at = 0.0  # a real server drops what is given up
        return await run_load(*args)

    monkeypatch.setattr(service, "measure_reply", served)
    monkeypatch.setattr(service, "run_load", run_alone)
    thresholds = Thresholds(500, 50, 1_000)
    server, others = MemoryModelServer(), beside or {}
    server.loads |= others
    stress = StressService(server, FixedClock(), plan, thresholds, 1)
    checked_server = unshared("memory://x", *others, candidates=candidates)
    return await stress.check(checked_server, "x", ["Hi"], GenerationParams(), "salt")


@pytest.mark.slow
async def test_fast_server_is_judged_higher_and_its_knee_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = await checked(monkeypatch, 0.004, LoadPlan(2, 1, 60))
    assert report.is_passed
    assert (report.offered_rate, report.requests) == (60, 60)
    assert report.confidence == pytest.approx(0.954, abs=0.001)
    rates = [load.rate for load in report.loads]
    assert rates == [60, 120, 240, 480][: len(rates)]
    assert [load.is_borne for load in report.loads] == [True] * (len(rates) - 1) + [False]
    assert rates[-1] >= 240, "250 a second are all that it can do"
    assert report.loads[-1].why in (SLOWER, BEHIND)
    assert report.capacity in (1, 2)


@pytest.mark.parametrize("is_busy", [False, True])
async def test_no_knee_is_sought_while_others_of_the_machine_serve(
    monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    beside = {"memory://busy": ServerLoad(int(is_busy), 0), "memory://quiet": ServerLoad(0, 0)}
    report = await checked(monkeypatch, 0.004, LoadPlan(2, 0.1, 6), beside)
    assert report.is_passed
    assert (len(report.loads) == 1) is is_busy
    assert (report.beside is not None) is is_busy
    if report.beside is not None:
        assert (report.beside.servers, report.beside.submissions) == (1, 0)
        assert report.capacity == 1, "by Little's law, of the verdict's load"


async def test_capacity_counts_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {"memory://busy": ServerLoad(1, 0)}
    one = await checked(monkeypatch, 0.1, LoadPlan(10, 1, 6), busy)
    best = await checked(monkeypatch, 0.1, LoadPlan(10, 1, 6), busy, candidates=16)
    assert (one.candidates, best.candidates) == (1, 16)
    assert one.capacity is not None
    assert best.capacity is not None
    assert 16 * (one.capacity - 1) < best.capacity <= 16 * one.capacity


def test_servers_share_a_machine_where_their_addresses_are_loopback() -> None:
    here, beside, away = "http://127.0.0.1:21000", "http://127.0.0.1:21001", "http://10.0.0.7:8000"
    known = {here, beside, away, "memory://x", "http://pods.example:8000/a"}
    assert on_its_machine(here, known) == [beside]
    assert on_its_machine(away, known) == []
    assert on_its_machine("memory://x", known) == []


@pytest.mark.slow
async def test_server_passes_at_exactly_the_required_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = await checked(monkeypatch, 0.02, LoadPlan(20, 0.1, 60))
    assert report.is_passed
    tried = [load.rate for load in report.loads]
    assert tried[0] == pytest.approx(400), "eight at once, by what one takes alone"
    assert tried[1] == pytest.approx(100)
    assert 20 <= report.offered_rate < 50
    assert not report.loads[0].is_borne
    assert report.loads[0].why


async def test_server_below_the_required_rate_is_refused_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = await checked(monkeypatch, 2.0, LoadPlan(20, 60, 60))
    assert not report.is_passed
    assert report.requests < 20
    assert "allowed 500 ms" in report.reasons[0]
    assert report.confidence is not None
    assert report.confidence > 0.99


def judged(results: list[RequestResult]) -> StressReport:
    return judge(results, Load(2, len(results)), THRESHOLDS, datetime.now(UTC), 5.0)
