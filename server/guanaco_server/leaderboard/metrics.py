"""From a submission's tally to its metrics. docs/scores.md has each definition in words."""

from __future__ import annotations

from guanaco.leaderboard import Estimate, SubmissionMetrics
from guanaco_server.leaderboard import estimates
from guanaco_server.leaderboard.measures import PPM
from guanaco_server.leaderboard.tally import Tally


def metrics_of(submission_id: str, tally: Tally, today: int) -> SubmissionMetrics:
    """``today`` is a day's ordinal: those who came yesterday may still come back."""
    up, down = tally["up"], tally["down"]
    ratio = estimates.proportion(up, up + down)
    length = estimates.mean(tally["rated"], tally["length.sum"], tally["length.sq"])
    return SubmissionMetrics(
        submission_id=submission_id,
        thumbs_up=up,
        thumbs_down=down,
        feedback_count=tally["rated"],
        thumbs_up_ratio=ratio.value if ratio else None,
        interval_low=ratio.low if ratio else None,
        interval_high=ratio.high if ratio else None,
        conversation_count=tally["conversations"],
        mean_conversation_length=length.value if length else None,
        conversation_length=length,
        median_conversation_length=_median_length(tally),
        ttft_ms_median=_time(tally, "ttft", 0.5),
        ttft_ms_p95=_time(tally, "ttft", 0.95),
        reply_ms_median=_time(tally, "reply", 0.5),
        reply_ms_p95=_time(tally, "reply", 0.95),
        retention=_retention(tally, today),
        repetition=estimates.mean(
            tally["repetition.n"], tally["repetition.sum"], tally["repetition.sq"], 1 / PPM
        ),
        writing_speed=_writing_speed(tally),
        regenerate_rate=_regenerate_rate(tally),
    )


def _median_length(tally: Tally) -> Estimate | None:
    found = estimates.quantile(tally.histogram("length"), 0.5)
    if found is None:
        return None
    value, low, high = found
    return Estimate(value=value, low=low, high=high, n=tally["rated"])


def _time(tally: Tally, name: str, share: float) -> Estimate | None:
    counts = tally.histogram(name)
    found = estimates.quantile(counts, share)
    if found is None:
        return None
    value, low, high = found
    return Estimate(
        value=estimates.middle_of(value),
        low=None if low is None else estimates.middle_of(low),
        high=None if high is None else estimates.middle_of(high),
        n=sum(counts.values()),
    )


def _retention(tally: Tally, today: int) -> Estimate | None:
    """Only of users whose next day is over."""
    came = {day: count for day, count in tally.histogram("came").items() if day + 1 < today}
    returned = sum(tally[f"returned:{day}"] for day in came)
    return estimates.proportion(returned, sum(came.values()))


def _writing_speed(tally: Tally) -> Estimate | None:
    x, y, t, xx, xy, yy, xt, yt, tt = (
        tally[f"writing.{name}"] for name in ("x", "y", "t", "xx", "xy", "yy", "xt", "yt", "tt")
    )
    return estimates.slope_speed(tally["writing.n"], (x, y, t), (xx, xy, yy, xt, yt, tt))


def _regenerate_rate(tally: Tally) -> Estimate | None:
    n, y, x, yy, xy, xx = (
        tally[f"regenerate.{name}"] for name in ("n", "y", "x", "yy", "xy", "xx")
    )
    return estimates.ratio(n, (y, x), (yy, xy, xx))
