"""Makes a report from request results: percentiles, and a sentence for each threshold that was missed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from guanaco.submissions import HistogramBin, Percentiles, StressReport, StressThresholds
from guanaco_server.stress.load import LoadProfile, RequestResult

ERROR_SAMPLES = 3
MOST_BINS = 24


@dataclass(frozen=True)
class Thresholds:
    max_ttft_p95_ms: float
    max_tpot_p95_ms: float
    max_e2e_p95_ms: float
    max_error_rate: float = 0.0
    answer: str = "whole reply"

    def told(self) -> StressThresholds:
        """Return the thresholds as the report shows them."""
        return StressThresholds(
            ttft_ms=self.max_ttft_p95_ms,
            tpot_ms=self.max_tpot_p95_ms,
            e2e_ms=self.max_e2e_p95_ms,
            error_rate=self.max_error_rate,
        )


def judge(
    samples: Sequence[RequestResult],
    profile: LoadProfile,
    thresholds: Thresholds,
    at: datetime,
    duration_s: float,
) -> StressReport:
    errors = [sample.error for sample in samples if sample.error is not None]
    error_rate = len(errors) / len(samples)
    ttft = percentiles(sample.ttft_ms for sample in samples)
    tpot = percentiles(sample.tpot_ms for sample in samples)
    e2e = percentiles(sample.e2e_ms for sample in samples)
    reasons = [
        *_too_many_errors(errors, len(samples), error_rate, thresholds.max_error_rate),
        *_too_slow("time to first token", ttft, thresholds.max_ttft_p95_ms),
        *_too_slow("time per output token", tpot, thresholds.max_tpot_p95_ms),
        *_too_slow(thresholds.answer, e2e, thresholds.max_e2e_p95_ms),
    ]
    tokens = sum(sample.output_tokens for sample in samples)
    return StressReport(
        is_passed=not reasons,
        reasons=reasons,
        thresholds=thresholds.told(),
        at=at,
        duration_s=duration_s,
        offered_rate=profile.rate,
        requests=len(samples),
        errors=len(errors),
        error_rate=error_rate,
        output_tokens=tokens,
        tokens_per_second=tokens / duration_s,
        ttft_ms=ttft,
        tpot_ms=tpot,
        e2e_ms=e2e,
        ttft_histogram=histogram(sample.ttft_ms for sample in samples),
        tpot_histogram=histogram(sample.tpot_ms for sample in samples),
        error_samples=list(dict.fromkeys(errors))[:ERROR_SAMPLES],
    )


def percentiles(values: Iterable[float | None]) -> Percentiles | None:
    """Nearest-rank percentiles: each is a value that was measured. None without values."""
    ranked = sorted(value for value in values if value is not None)
    if not ranked:
        return None

    def rank(percent: float) -> float:
        return ranked[max(0, math.ceil(percent / 100 * len(ranked)) - 1)]

    return Percentiles(p50=rank(50), p95=rank(95), p99=rank(99), max=ranked[-1])


def histogram(values: Iterable[float | None]) -> list[HistogramBin]:
    """At most 24 bins of one round width (1, 2 or 5 times a power of ten), the first of them empty; none without values."""
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


def _too_many_errors(
    errors: Sequence[str], total: int, rate: float, allowed: float
) -> Iterable[str]:
    if rate > allowed:
        yield f"{len(errors)} of {total} requests failed ({rate:.0%}; allowed {allowed:.0%}): {errors[0]}."


def _too_slow(what: str, measured: Percentiles | None, limit_ms: float) -> Iterable[str]:
    if measured is not None and measured.p95 > limit_ms:
        yield f"95 % of {what} took up to {measured.p95:,.0f} ms; allowed {limit_ms:,.0f} ms."
