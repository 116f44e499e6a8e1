"""Makes a report from request results: percentiles, a sentence for each threshold that was missed, and how sure that is.

A 95th percentile is under its limit when at most 5 % of all requests are over it. With ``n`` requests of which ``k``
were over, the verdict is as sure as a binomial distribution says (Clopper and Pearson's exact bound): 60 requests of
which none was over make it 95 % sure, 12 would make it 46 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from guanaco.submissions import (
    HistogramBin,
    Percentiles,
    StressReport,
    StressRequest,
    StressThresholds,
)
from guanaco_server.statistics.intervals import chance_of_at_most
from guanaco_server.statistics.sequential import Proportion, is_over
from guanaco_server.stress.load import Load, Results

ERROR_SAMPLES = 3
MOST_BINS = 24
OVER_SHARE = 0.05  # of a 95th percentile
LEAST_FOR_P95 = 20  # with fewer, the 95th percentile is the slowest of all
FALSE_ALARMS = 0.05  # how many of the servers that keep to a limit are given up early at most
ENOUGH_ERRORS = 3
KNEE = 2.0
LEAST_FOR_TREND = 4


@dataclass(frozen=True)
class Thresholds:
    max_ttft_p95_ms: float
    max_tpot_p95_ms: float
    max_e2e_p95_ms: float
    max_error_rate: float = 0.0
    answer: str = "whole reply"

    def to_contract(self) -> StressThresholds:
        """Return the thresholds as the report shows them."""
        return StressThresholds(
            ttft_ms=self.max_ttft_p95_ms,
            tpot_ms=self.max_tpot_p95_ms,
            e2e_ms=self.max_e2e_p95_ms,
            error_rate=self.max_error_rate,
        )


@dataclass(frozen=True)
class _Metric:
    what: str
    values: Sequence[float]
    limit_ms: float

    @property
    def over(self) -> int:
        return sum(value > self.limit_ms for value in self.values)


def judge(
    results: Results, load: Load, thresholds: Thresholds, at: datetime, duration_s: float
) -> StressReport:
    errors = _errors(results)
    error_rate = len(errors) / len(results)
    metrics = _metrics(results, thresholds)
    reasons = [
        *_too_many_errors(errors, len(results), error_rate, thresholds.max_error_rate),
        *(reason for metric in metrics for reason in _too_slow(metric)),
    ]
    tokens = sum(result.output_tokens for result in results)
    return StressReport(
        is_passed=not reasons,
        reasons=reasons,
        confidence=_confidence(metrics, is_passed=not reasons, has_errors=bool(errors)),
        thresholds=thresholds.to_contract(),
        at=at,
        duration_s=duration_s,
        offered_rate=load.rate,
        requests=len(results),
        errors=len(errors),
        error_rate=error_rate,
        output_tokens=tokens,
        tokens_per_second=tokens / duration_s,
        ttft_ms=percentiles(result.ttft_ms for result in results),
        tpot_ms=percentiles(result.tpot_ms for result in results),
        e2e_ms=percentiles(result.e2e_ms for result in results),
        ttft_histogram=histogram(result.ttft_ms for result in results),
        tpot_histogram=histogram(result.tpot_ms for result in results),
        error_samples=list(dict.fromkeys(errors))[:ERROR_SAMPLES],
        trace=[
            StressRequest(
                due_s=result.due_s,
                ttft_ms=result.ttft_ms,
                tpot_ms=result.tpot_ms,
                e2e_ms=result.e2e_ms,
                output_tokens=result.output_tokens,
                error=result.error,
            )
            for result in results
        ],
    )


def is_certain_to_fail(results: Results, thresholds: Thresholds) -> bool:
    """Tell whether further requests would hardly change that a threshold is missed. The test may be made after every request."""
    if len(_errors(results)) >= ENOUGH_ERRORS and not thresholds.max_error_rate:
        return True
    return any(
        is_over(Proportion(metric.over, len(metric.values)), OVER_SHARE, alpha=FALSE_ALARMS)
        for metric in _metrics(results, thresholds)
    )


def is_falling_behind(results: Results) -> bool:
    """Tell whether replies took twice as long at the load's end as at its begin: the queue grows, and would go on growing."""
    waited = [result.e2e_ms for result in results if result.e2e_ms is not None]
    third = len(waited) // 3
    if third < LEAST_FOR_TREND:
        return False
    return median(waited[-third:]) > KNEE * median(waited[:third])


def percentiles(values: Iterable[float | None]) -> Percentiles | None:
    """Nearest-rank percentiles: each is a value that was measured. Return None if there are no values."""
    ranked = sorted(value for value in values if value is not None)
    if not ranked:
        return None

    def rank(percent: float) -> float:
        return ranked[max(0, math.ceil(percent / 100 * len(ranked)) - 1)]

    return Percentiles(p50=rank(50), p95=rank(95), p99=rank(99), max=ranked[-1])


def histogram(values: Iterable[float | None]) -> list[HistogramBin]:
    """Return at most 24 bins of one round width (1, 2 or 5 times a power of ten), the first of them empty; none without values."""
    found = [value for value in values if value is not None]
    if not found:
        return []
    low, high = max(0.0, min(found)), max(found)
    width = _round_width(max(high - low, high / MOST_BINS, 1e-3) / (MOST_BINS - 3))
    first, last = math.floor(low / width), math.floor(high / width)
    counts = Counter(math.floor(value / width) for value in found)
    return [
        HistogramBin(upper_ms=round((place + 1) * width, 6), count=counts[place])
        for place in range(first - 1, last + 1)
    ]


def _round_width(least: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def _errors(results: Results) -> list[str]:
    return [result.error for result in results if result.error is not None]


def _metrics(results: Results, thresholds: Thresholds) -> list[_Metric]:
    """Return the metrics that were measured; one without values is left out."""

    def metric(what: str, values: Iterable[float | None], limit_ms: float) -> _Metric:
        return _Metric(what, [value for value in values if value is not None], limit_ms)

    found = (
        metric("time to first token", (one.ttft_ms for one in results), thresholds.max_ttft_p95_ms),
        metric(
            "time per output token", (one.tpot_ms for one in results), thresholds.max_tpot_p95_ms
        ),
        metric(thresholds.answer, (one.e2e_ms for one in results), thresholds.max_e2e_p95_ms),
    )
    return [one for one in found if one.values]


def _confidence(metrics: Sequence[_Metric], *, is_passed: bool, has_errors: bool) -> float | None:
    """Return the confidence of the verdict: for a pass that of the least sure metric, for a failure that of the surest. An error is certain."""
    if has_errors and not is_passed:
        return 1.0
    if not metrics:
        return None
    if is_passed:
        return min(1 - chance_of_at_most(one.over, len(one.values), OVER_SHARE) for one in metrics)
    return max(chance_of_at_most(one.over - 1, len(one.values), OVER_SHARE) for one in metrics)


def _too_many_errors(
    errors: Sequence[str], total: int, rate: float, allowed: float
) -> Iterable[str]:
    if rate > allowed:
        yield f"{len(errors)} of {total} requests failed ({rate:.0%}; allowed {allowed:.0%}): {errors[0]}."


def _too_slow(metric: _Metric) -> Iterable[str]:
    measured = percentiles(metric.values)
    if measured is None or measured.p95 <= metric.limit_ms:
        return
    count = len(metric.values)
    some = "95 % of" if count >= LEAST_FOR_P95 else f"The slowest of {count} in"
    yield f"{some} {metric.what} took up to {measured.p95:,.0f} ms; allowed {metric.limit_ms:,.0f} ms."
