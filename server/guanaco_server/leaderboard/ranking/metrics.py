"""Computes a submission's metrics from its aggregate. docs/scores.md defines each metric in words."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from guanaco.estimates import Estimate
from guanaco.leaderboard import SubmissionMetrics
from guanaco_server.leaderboard.counting.aggregate import Aggregate
from guanaco_server.leaderboard.counting.measurement import PPM, bucket_middle, is_measured_since
from guanaco_server.leaderboard.ranking import estimators

INTRODUCED: Mapping[str, int] = {}
"""The version of the definitions that introduced a metric, for metrics that are not from version 1."""


class MetricValues(BaseModel):
    """The metrics' values without intervals, except that of the thumbs: what is stored hourly beside a score.

    A value is None where there was not enough to say.
    """

    model_config = ConfigDict(frozen=True)

    thumbs_up_ratio: float | None = None
    interval_low: float | None = None
    interval_high: float | None = None
    conversation_count: int | None = None
    conversation_length: float | None = None
    median_conversation_length: float | None = None
    ttft_ms_median: float | None = None
    ttft_ms_p95: float | None = None
    reply_ms_median: float | None = None
    reply_ms_p95: float | None = None
    retention: float | None = None
    repetition: float | None = None
    writing_speed: float | None = None
    regenerate_rate: float | None = None

    @staticmethod
    def of(metrics: SubmissionMetrics) -> MetricValues:
        found = {name: getattr(metrics, name) for name in MetricValues.model_fields}
        return MetricValues(
            **{
                name: metric.value if isinstance(metric, Estimate) else metric
                for name, metric in found.items()
            }
        )

    def to_json(self) -> str:
        return self.model_dump_json(exclude_none=True)


def metrics_of(
    submission_id: str,
    aggregate: Aggregate,
    today: int,
    introduced: Mapping[str, int] = INTRODUCED,
) -> SubmissionMetrics:
    """Compute the metrics.

    Args:
        submission_id: The submission.
        aggregate: Its aggregate, in one competition or in several.
        today: The present day (UTC, an ordinal). Users who came yesterday may still come back.
        introduced: The version that introduced a metric. It is None until all conversations were measured by it.
    """
    metrics = _metrics_of(submission_id, aggregate, today)
    hidden = [
        name for name, version in introduced.items() if not is_measured_since(aggregate, version)
    ]
    return metrics.model_copy(update=dict.fromkeys(hidden)) if hidden else metrics


def _metrics_of(submission_id: str, aggregate: Aggregate, today: int) -> SubmissionMetrics:
    up, down = aggregate["up"], aggregate["down"]
    histograms = aggregate.histograms()
    ratio = estimators.proportion(up, up + down)
    length = estimators.mean(aggregate["rated"], aggregate["length.sum"], aggregate["length.sq"])
    return SubmissionMetrics(
        submission_id=submission_id,
        thumbs_up=up,
        thumbs_down=down,
        feedback_count=aggregate["rated"],
        thumbs_up_ratio=ratio.value if ratio else None,
        interval_low=ratio.low if ratio else None,
        interval_high=ratio.high if ratio else None,
        conversation_count=aggregate["conversations"],
        mean_conversation_length=length.value if length else None,
        conversation_length=length,
        median_conversation_length=_median_length(histograms.get("length", {}), aggregate["rated"]),
        ttft_ms_median=_time(histograms.get("ttft", {}), 0.5),
        ttft_ms_p95=_time(histograms.get("ttft", {}), 0.95),
        reply_ms_median=_time(histograms.get("reply", {}), 0.5),
        reply_ms_p95=_time(histograms.get("reply", {}), 0.95),
        retention=_retention(histograms, today),
        repetition=estimators.mean(
            aggregate["repetition.n"],
            aggregate["repetition.sum"],
            aggregate["repetition.sq"],
            1 / PPM,
        ),
        writing_speed=_writing_speed(aggregate),
        regenerate_rate=_regenerate_rate(aggregate),
    )


def _median_length(counts: Mapping[int, int], rated: int) -> Estimate | None:
    found = estimators.quantile(counts, 0.5)
    if found is None:
        return None
    value, low, high = found
    return Estimate(value=value, low=low, high=high, n=rated)


def _time(counts: Mapping[int, int], share: float) -> Estimate | None:
    found = estimators.quantile(counts, share)
    if found is None:
        return None
    value, low, high = found
    return Estimate(
        value=bucket_middle(value),
        low=None if low is None else bucket_middle(low),
        high=None if high is None else bucket_middle(high),
        n=sum(counts.values()),
    )


def _retention(histograms: Mapping[str, Mapping[int, int]], today: int) -> Estimate | None:
    """Compute the share of users who returned, of those whose next day is over."""
    came = {day: n for day, n in histograms.get("came", {}).items() if day + 1 < today}
    returned = histograms.get("returned", {})
    came_back = sum(returned.get(day, 0) for day in came)
    return estimators.proportion(came_back, sum(came.values()))


def _writing_speed(aggregate: Aggregate) -> Estimate | None:
    x, y, t, xx, xy, yy, xt, yt, tt = (
        aggregate[f"writing.{name}"] for name in ("x", "y", "t", "xx", "xy", "yy", "xt", "yt", "tt")
    )
    return estimators.slope_speed(aggregate["writing.n"], (x, y, t), (xx, xy, yy, xt, yt, tt))


def _regenerate_rate(aggregate: Aggregate) -> Estimate | None:
    n, y, x, yy, xy, xx = (
        aggregate[f"regenerate.{name}"] for name in ("n", "y", "x", "yy", "xy", "xx")
    )
    return estimators.ratio(n, (y, x), (yy, xy, xx))
