"""A submission's metrics, each with its plain name, its unit and how sure it is. docs/scores.md defines them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from guanaco.estimates import Estimate
from guanaco.leaderboard import SubmissionMetrics
from guanaco_server.leaderboard.ranking.metrics import MetricValues
from guanaco_server.web.words import count, decimal, milliseconds, percent

MEANING_PATH = "/docs/scores"


@dataclass(frozen=True)
class Metric:
    """``counted`` is what its observations are, one and many; ``is_share`` that it cannot exceed 1.

    ``past`` reads it from what is kept of earlier days, ``band`` its interval where that is kept too.
    """

    key: str
    name: str
    meaning: str
    counted: tuple[str, str]
    show: Callable[[float], str]
    read: Callable[[SubmissionMetrics], Estimate | None]
    past: Callable[[MetricValues], float | None]
    is_share: bool = False
    band: Callable[[MetricValues], tuple[float | None, float | None]] | None = None

    @property
    def title(self) -> str:
        return f"{self.name}, with its 95 % interval" if self.band else self.name


@dataclass(frozen=True)
class Tile:
    """``value`` is None where there is not enough to say."""

    name: str
    href: str
    value: str | None
    certainty: str


def tiles_of(figures: SubmissionMetrics, metrics: Sequence[Metric]) -> list[Tile]:
    return [_tile(metric, metric.read(figures)) for metric in metrics]


def _tile(metric: Metric, found: Estimate | None) -> Tile:
    href = f"{MEANING_PATH}#{metric.key}"
    if found is None:
        return Tile(metric.name, href, None, "")
    return Tile(metric.name, href, metric.show(found.value), _certainty(metric, found))


def _certainty(metric: Metric, found: Estimate) -> str:
    """``3.9 to 5.1, from 40 conversations``; without an interval only what it is from."""
    one, many = metric.counted
    source = f"from {count(found.n)} {one if found.n == 1 else many}"
    low, high = (_format_end(metric, end) for end in (found.low, found.high))
    if low and high:
        return f"{low} to {high}, {source}"
    if low or high:
        return f"{f'at least {low}' if low else f'at most {high}'}, {source}"
    return source


def _format_end(metric: Metric, end: float | None) -> str:
    """A mean's interval is symmetric, and may reach where no value can lie."""
    if end is None:
        return ""
    return metric.show(min(1.0, max(0.0, end)) if metric.is_share else max(0.0, end))


def _thumbs_up(metrics: SubmissionMetrics) -> Estimate | None:
    if metrics.thumbs_up_ratio is None:
        return None
    return Estimate(
        value=metrics.thumbs_up_ratio,
        low=metrics.interval_low,
        high=metrics.interval_high,
        n=metrics.thumbs_up + metrics.thumbs_down,
    )


def _fine_percent(share: float) -> str:
    return percent(share, 1)


USERS = ("user", "users")
CONVERSATIONS = ("conversation", "conversations")
REPLIES = ("reply", "replies")
MESSAGES = ("message", "messages")

METRICS = (
    Metric(
        "thumbs-up",
        "thumbs up",
        "Users whose vote is up, of all who voted. A user has one vote: their latest rating.",
        USERS,
        percent,
        _thumbs_up,
        lambda figures: figures.thumbs_up_ratio,
        is_share=True,
        band=lambda figures: (figures.interval_low, figures.interval_high),
    ),
    Metric(
        "length-mean",
        "messages in a conversation, mean",
        "Messages of both sides in rated conversations; replies that were regenerated do not count.",
        CONVERSATIONS,
        decimal,
        lambda metrics: metrics.conversation_length,
        lambda figures: figures.conversation_length,
    ),
    Metric(
        "length-median",
        "messages in a conversation, median",
        "Half of the rated conversations are this long or shorter.",
        CONVERSATIONS,
        decimal,
        lambda metrics: metrics.median_conversation_length,
        lambda figures: figures.median_conversation_length,
    ),
    Metric(
        "retention",
        "users back the next day",
        "The share of users who wrote to it for the first time on one day (UTC) and wrote again on the day after.",
        USERS,
        percent,
        lambda metrics: metrics.retention,
        lambda figures: figures.retention,
        is_share=True,
    ),
    Metric(
        "regenerate-rate",
        "replies regenerated",
        "Replies that a user replaced by another, of all replies. Less is better.",
        CONVERSATIONS,
        _fine_percent,
        lambda metrics: metrics.regenerate_rate,
        lambda figures: figures.regenerate_rate,
        is_share=True,
    ),
    Metric(
        "repetition",
        "words repeated from reply to reply",
        "The share of the different words in two consecutive messages of the bot that are in both (Jaccard similarity); "
        "the mean of each conversation, then of all. Less is better.",
        CONVERSATIONS,
        _fine_percent,
        lambda metrics: metrics.repetition,
        lambda figures: figures.repetition,
        is_share=True,
    ),
    Metric(
        "writing-speed",
        "characters a second, users writing",
        "The speed at which users write to it, estimated from the time between its message and the next one of the user, "
        "less the time that reading takes.",
        MESSAGES,
        decimal,
        lambda metrics: metrics.writing_speed,
        lambda figures: figures.writing_speed,
    ),
    Metric(
        "ttft-median",
        "to the first token, median",
        "From the user's message at the gateway to the first token of the reply, for half of the replies.",
        REPLIES,
        milliseconds,
        lambda metrics: metrics.ttft_ms_median,
        lambda figures: figures.ttft_ms_median,
    ),
    Metric(
        "ttft-p95",
        "to the first token, 95th percentile",
        "The same for 95 of 100 replies: what the slowest twentieth exceeds.",
        REPLIES,
        milliseconds,
        lambda metrics: metrics.ttft_ms_p95,
        lambda figures: figures.ttft_ms_p95,
    ),
    Metric(
        "reply-median",
        "to the whole reply, median",
        "From the user's message at the gateway to the last token of the reply, for half of the replies.",
        REPLIES,
        milliseconds,
        lambda metrics: metrics.reply_ms_median,
        lambda figures: figures.reply_ms_median,
    ),
    Metric(
        "reply-p95",
        "to the whole reply, 95th percentile",
        "The same for 95 of 100 replies: what the slowest twentieth exceeds.",
        REPLIES,
        milliseconds,
        lambda metrics: metrics.reply_ms_p95,
        lambda figures: figures.reply_ms_p95,
    ),
)
LEAD_METRICS, OTHER_METRICS = METRICS[:1], METRICS[1:]
