"""Measures each submission's replies, with a bound on how many series there are.

At most MOST submissions have series of their own; all others are counted together, as OTHER. A submission gets its series
with its first reply while there is room. At each review the MOST submissions with the most replies since the last review
have them, where one that has them already counts double, so that two of equal traffic do not change places each time.
One that is not served any more and was not asked since the last review loses them.

A counter is never moved: when a submission gets series of its own, they begin at 0, and OTHER keeps what it has counted.

Prometheus' own labelled metrics would take a lock for each observation, and 60 objects for each submission's histograms.
Here an observation is a binary search and two additions, all on the event loop; a scrape in another thread reads numbers
that are at most one observation apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

MOST = 100  # submissions: 4,000 lines and 350 KB a scrape, 190 KB of memory
OTHER = "other"  # an id of a submission has a version, as in org-model_v1
TTFT_BOUNDS_S = (0.1, 0.25, 0.5, 1, 2, 5, 10)
TOKEN_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25)
REPLY_BOUNDS_S = (0.5, 1, 2, 5, 10, 30)


@dataclass(frozen=True)
class MetricDescription:
    """A metric as it is scraped, for people."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


class Buckets:
    """A histogram. ``bounds`` are inclusive upper ones."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        names = (*(str(float(bound)) for bound in self.bounds), "+Inf")
        return list(zip(names, accumulate(self.counts), strict=True))


class SubmissionSeries:
    """The counts of one submission, or of all others."""

    __slots__ = ("cached", "completion", "first_token", "outcomes", "prompt", "recent", "reply", "token")  # fmt: skip

    def __init__(self) -> None:
        self.first_token = Buckets(TTFT_BOUNDS_S)
        self.token = Buckets(TOKEN_BOUNDS_S)
        self.reply = Buckets(REPLY_BOUNDS_S)
        self.prompt = self.cached = self.completion = 0
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.recent = 0  # replies since the last review

    def note_end(
        self, first_token_s: float, total_s: float, prompt: int, cached: int, completion: int
    ) -> None:
        self.reply.observe(total_s)
        if completion > 1:
            self.token.observe((total_s - first_token_s) / (completion - 1))
        self.prompt += prompt
        self.cached += cached
        self.completion += completion


@dataclass(frozen=True)
class ServerStatistics:
    """The load that a submission's model servers report, summed over its replicas; ``kv_cache_usage`` is the highest, from 0 to 1."""

    running: int
    waiting: int
    kv_cache_usage: float


@dataclass(frozen=True)
class Spend:
    """The money that a submission's GPUs cost now, and have cost since the month began."""

    per_hour: float
    this_month: float


HISTOGRAMS: tuple[tuple[str, str, Callable[[SubmissionSeries], Buckets]], ...] = (
    (
        "guanaco_submission_first_token_seconds",
        "Time from a request to the first token of its reply.",
        lambda series: series.first_token,
    ),
    (
        "guanaco_submission_token_seconds",
        "From one token of a reply to the next, as the mean of each reply.",
        lambda series: series.token,
    ),
    (
        "guanaco_submission_reply_seconds",
        "Time from a request to the end of its reply.",
        lambda series: series.reply,
    ),
)
REQUESTS = "guanaco_submission_requests_total"
TOKENS = "guanaco_submission_tokens_total"
COUNTERS = {
    REQUESTS: (
        "Replies by how they ended: `ok`, `abandoned` by the client, or the code of the error.",
        "outcome",
    ),
    TOKENS: (
        "Tokens of whole replies, by kind: `prompt`, `cached` (those of the prompt that its server's prefix cache had) or `completion`.",
        "kind",
    ),
}
IN_FLIGHT = "guanaco_submission_in_flight_requests"
WAITING = "guanaco_submission_turns_waiting"
SERVER_RUNNING = "guanaco_server_running_requests"
SERVER_WAITING = "guanaco_server_waiting_requests"
SERVER_KV_CACHE = "guanaco_server_kv_cache_usage_ratio"
COST_PER_HOUR = "guanaco_submission_cost_per_hour"
COST_THIS_MONTH = "guanaco_submission_cost_this_month"
GAUGES = {
    IN_FLIGHT: "Replies that are being generated, or wait for a place at their model.",
    WAITING: "Turns that wait for a place at their model, which is at capacity.",
    SERVER_RUNNING: "Requests that the submission's model servers work on, as they say.",
    SERVER_WAITING: "Requests that wait within the submission's model servers, as they say.",
    SERVER_KV_CACHE: "The share of its KV cache that the submission's fullest model server uses.",
    COST_PER_HOUR: "Cost of the GPUs that the submission holds now, for an hour, in the platform's currency.",
    COST_THIS_MONTH: "Cost of the submission's GPUs since the month began (UTC), in the platform's currency.",
}


class MetricsBySubmission(Collector):
    """The series of one process. Everything but ``collect`` runs on the event loop."""

    def __init__(self, registry: CollectorRegistry, described: list[MetricDescription]) -> None:
        self._series: dict[str, SubmissionSeries] = {}
        self._other = SubmissionSeries()
        self._unnamed: Counter[str] = Counter()  # replies of others, since the last review
        self._in_flight: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._servers: Mapping[str, ServerStatistics] = {}
        self._spending: Mapping[str, Spend] = {}
        described += [
            *(MetricDescription(name, "histogram", ("submission",), text) for name, text, _ in HISTOGRAMS),
            *(MetricDescription(name, "counter", ("submission", label), text) for name, (text, label) in COUNTERS.items()),
            *(MetricDescription(name, "gauge", ("submission",), text) for name, text in GAUGES.items()),
        ]  # fmt: skip
        registry.register(self)

    def begin(self, submission_id: str) -> SubmissionSeries:
        """A reply begins; where what is seen of it is counted."""
        _add(self._in_flight, submission_id, 1)
        series = self._series.get(submission_id)
        if series is None:
            if len(self._series) >= MOST:
                self._unnamed[submission_id] += 1
                return self._other
            series = self._series[submission_id] = SubmissionSeries()
        series.recent += 1
        return series

    def end(self, submission_id: str) -> None:
        _add(self._in_flight, submission_id, -1)

    def note_waiting(self, submission_id: str, change: int) -> None:
        """Add to the turns that wait for this submission."""
        _add(self._waiting, submission_id, change)

    def note_servers(self, found: Mapping[str, ServerStatistics]) -> None:
        self._servers = found

    def note_spending(self, found: Mapping[str, Spend]) -> None:
        self._spending = found

    def review(self, served: Callable[[str], bool]) -> None:
        """Give the series to the submissions with the most traffic since the last review."""
        kept = {
            name: series for name, series in self._series.items() if series.recent or served(name)
        }
        traffic = {name: 2.0 * series.recent for name, series in kept.items()} | self._unnamed
        chosen = sorted(traffic, key=traffic.__getitem__, reverse=True)[:MOST]
        self._series = {name: kept.get(name) or SubmissionSeries() for name in chosen}
        self._unnamed = Counter()
        for series in self._series.values():
            series.recent = 0

    def collect(self) -> Iterator[Metric]:
        shown = [*self._series.items(), (OTHER, self._other)]
        for name, text, buckets in HISTOGRAMS:
            family = HistogramMetricFamily(name, text, labels=("submission",))
            for submission_id, series in shown:
                found = buckets(series)
                family.add_metric((submission_id,), found.cumulative(), found.total)
            yield family
        yield _counter(
            REQUESTS, (((name, *one), n) for name, s in shown for one, n in _outcomes(s))
        )
        yield _counter(TOKENS, (((name, *one), n) for name, s in shown for one, n in _tokens(s)))
        yield self._gauge(IN_FLIGHT, dict(self._in_flight))
        yield self._gauge(WAITING, dict(self._waiting))
        servers, spending = self._servers, self._spending
        yield self._gauge(SERVER_RUNNING, {name: one.running for name, one in servers.items()})
        yield self._gauge(SERVER_WAITING, {name: one.waiting for name, one in servers.items()})
        yield self._gauge(
            SERVER_KV_CACHE, {name: one.kv_cache_usage for name, one in servers.items()}, max
        )
        yield self._gauge(COST_PER_HOUR, {name: one.per_hour for name, one in spending.items()})
        yield self._gauge(COST_THIS_MONTH, {name: one.this_month for name, one in spending.items()})

    def _gauge(
        self,
        name: str,
        values: Mapping[str, float],
        together: Callable[[Iterable[float]], float] = sum,
    ) -> GaugeMetricFamily:
        """Return the MOST highest values by submission, those of submissions with series first, and all others ``together``."""
        family = GaugeMetricFamily(name, GAUGES[name], labels=("submission",))
        series = self._series
        ranked = sorted(values, key=lambda one: (one in series, values[one]), reverse=True)
        for submission_id in ranked[:MOST]:
            family.add_metric((submission_id,), values[submission_id])
        if rest := ranked[MOST:]:
            family.add_metric((OTHER,), together(values[one] for one in rest))
        return family


def _add(counts: dict[str, int], name: str, change: int) -> None:
    """Count, and keep no zero."""
    if now := counts.get(name, 0) + change:
        counts[name] = now
    else:
        counts.pop(name, None)


def _outcomes(series: SubmissionSeries) -> list[tuple[tuple[str], int]]:
    return [((outcome,), count) for outcome, count in list(series.outcomes.items())]


def _tokens(series: SubmissionSeries) -> list[tuple[tuple[str], int]]:
    return [
        (("prompt",), series.prompt),
        (("cached",), series.cached),
        (("completion",), series.completion),
    ]


def _counter(name: str, values: Iterable[tuple[tuple[str, ...], int]]) -> CounterMetricFamily:
    text, label = COUNTERS[name]
    family = CounterMetricFamily(name, text, labels=("submission", label))
    for labels, value in values:
        family.add_metric(labels, value)
    return family
