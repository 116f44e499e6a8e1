"""Every metric there is, in a registry of its own that the composition root makes and passes on.

Labels have few values: no user, no path of a request. A submission is one only in by_submission.py, where their number
is bounded. docs/metrics.md lists them; a test holds the two together.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from guanaco_server.observability.by_submission import MetricDescription, MetricsBySubmission
from guanaco_server.observability.tally import ServiceTally

STAGE_BUCKETS_S = (0.5, 1, 2, 5, 10, 20, 40, 60, 120, 300, 600, 1_800, 3_600)
REPLY_BUCKETS_S = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120)
REWARD_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5)
HTTP_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


@dataclass(frozen=True)
class IdGauges:
    """Gauges that say how far PostgreSQL is from running out of ids (database/postgresql/transaction_ids.py). ``ages`` and ``vacuum_at`` are by kind of id."""

    ages: Mapping[str, int]
    vacuum_at: Mapping[str, int]
    days_left: float | None
    per_thousand_turns: float | None


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.described: list[MetricDescription] = []
        self._children: dict[tuple[Any, ...], Any] = {}
        self._stage = self._histogram(
            "guanaco_stage_duration_seconds",
            "Duration of a stage of the pipeline, retries included.",
            ("stage", "outcome"),
            STAGE_BUCKETS_S,
        )
        self._submissions = self._gauge(
            "guanaco_submissions", "Submissions by status; `queued` is the queue.", ("status",)
        )
        self._oldest = self._gauge(
            "guanaco_queue_oldest_seconds", "Age of the oldest submission in the queue."
        )
        self._deployments = self._gauge(
            "guanaco_deployments", "Model servers that should run, by phase.", ("phase",)
        )
        self._unserved = self._gauge(
            "guanaco_deployments_unserved",
            "Published deployments for which no model server answers, by what keeps it.",
            ("trouble",),
        )
        self._workers = self._gauge(
            "guanaco_workers", "Workers that were heard of lately; a plain `guanaco up` is one."
        )
        self._serialized = self._counter(
            "guanaco_serialized_bytes_total", "Bytes of tensors in artifacts that were made."
        )
        self._requests = self._counter(
            "guanaco_gateway_requests_total",
            "Replies by how they ended: `ok`, `abandoned` by the client, or the code of the error.",
            ("outcome",),
        )
        self.turns_in_flight = 0
        self._longest_steps: dict[str, float] = {}
        self._longest_step = self._gauge(
            "guanaco_http_longest_step_seconds",
            "Longest time that one step of a request has computed on the event loop since the start, in processor time.",
            ("route",),
        )
        self._requests_waiting = self._gauge(
            "guanaco_http_requests_waiting",
            "Requests other than chats that wait until others have been worked on.",
        )
        self._in_flight = self._gauge(
            "guanaco_gateway_in_flight_requests",
            "Replies that are being generated, or wait for a place at their model.",
        )
        self._turns_waiting = self._gauge(
            "guanaco_turns_waiting", "Turns that wait for a place at a model that is at capacity."
        )
        self._turn_wait = self._histogram(
            "guanaco_turn_wait_seconds",
            "Time that a turn waited for its place at its model, if it got one.",
            (),
            REPLY_BUCKETS_S,
        )
        self._first_token = self._histogram(
            "guanaco_gateway_first_token_seconds",
            "Time from a request to the first token of its reply.",
            (),
            REPLY_BUCKETS_S,
        )
        self._reply = self._histogram(
            "guanaco_gateway_reply_seconds",
            "Time from a request to the end of its reply.",
            (),
            REPLY_BUCKETS_S,
        )
        self._tokens = self._counter(
            "guanaco_gateway_tokens_total",
            "Tokens of whole replies, by direction: `prompt` or `completion`.",
            ("direction",),
        )
        self._choices = self._counter(
            "guanaco_best_of_choices_total",
            "Replies chosen among candidates, by what chose: the `reward` model; `logprob` where there is none; or why log-probability stood in for it (`timeout`, `fault`, `not_a_number`, `not_running`, `resting`).",
            ("by",),
        )
        self._summaries = self._counter(
            "guanaco_summaries_total",
            "Summaries of long conversations, by who wrote them: a `model`, or the `rule` where none could be asked or used.",
            ("by",),
        )
        self._reward = self._histogram(
            "guanaco_reward_seconds",
            "Time that a reply waited for its reward model's scores.",
            (),
            REWARD_BUCKETS_S,
        )
        self._votes = self._counter("guanaco_votes_total", "Thumbs, `up` or `down`.", ("thumb",))
        self._feedback_lag = self._gauge(
            "guanaco_feedback_lag_seconds",
            "Age of the oldest rating that is not anonymized yet, so that no developer can read it.",
        )
        self._http = self._histogram(
            "guanaco_http_request_duration_seconds",
            "HTTP requests by route template; of a stream, to its end.",
            ("method", "route", "status"),
            HTTP_BUCKETS_S,
        )
        self._connections = self._gauge(
            "guanaco_http_connections", "Open connections of clients, idle ones too."
        )
        self._connections_ended = self._counter(
            "guanaco_http_connections_ended_total",
            "Connections that were refused or ended: the server was `full`, the `address` had too many or opened them too fast (`rate`), `header_bytes` were over the limit, requests that were still arriving filled the `memory` for them, or nothing came or was read in time while the connection was `idle` or in its `header`, `body`, `working`, `draining` or `closing`.",
            ("reason",),
        )
        self._gauges_read_at = self._gauge(
            "guanaco_census_timestamp_seconds",
            "When the gauges of submissions, deployments and workers were last read from the database.",
        )
        self._gpus_wanted = self._gauge(
            "guanaco_gpus_wanted",
            "GPUs that model servers should have, by type; those that sleep want none.",
            ("gpu_type",),
        )
        self._pool_waiting = self._gauge(
            "guanaco_pool_waiting",
            "Pods of a Kubernetes pool that are ready to be claimed by a model server.",
            ("pool",),
        )
        self._idle_servers = self._gauge(
            "guanaco_idle_model_servers",
            "Model servers that run and that nobody uses: of submissions that are `sleeping`, a `spare` for the next one of its shape, or a spare that is `starting` ahead of demand.",
            ("kind",),
        )
        self._gpus_held = self._gauge(
            "guanaco_gpus_held",
            "GPUs of model servers that have become ready, by type: these cost.",
            ("gpu_type",),
        )
        self._cost_per_hour = self._gauge(
            "guanaco_cost_per_hour",
            "Cost of the GPUs that are held, for an hour, by type, in the platform's currency.",
            ("gpu_type",),
        )
        self._id_age = self._gauge(
            "guanaco_database_oldest_id_age",
            "Age of PostgreSQL's oldest `transaction` or `multixact` id, in ids; at 2.1 billion it refuses to write. Absent on SQLite.",
            ("kind",),
        )
        self._id_vacuum_age = self._gauge(
            "guanaco_database_id_vacuum_age",
            "The age from which autovacuum freezes old rows by itself: PostgreSQL's `autovacuum_freeze_max_age`, or that of multixacts.",
            ("kind",),
        )
        self._id_days = self._gauge(
            "guanaco_database_id_days_left",
            "Days until PostgreSQL refuses to write, if nothing is frozen and ids are used as in the last hour.",
            ("kind",),
        )
        self._ids_per_turns = self._gauge(
            "guanaco_database_ids_per_thousand_turns",
            "Ids that the whole PostgreSQL server used in the last hour for each thousand turns stored.",
            ("kind",),
        )
        self.submissions = MetricsBySubmission(self.registry, self.described)
        self.tally = ServiceTally()

    def note_stage(self, stage: str, outcome: str, seconds: float) -> None:
        self._stage.labels(stage, outcome).observe(seconds)

    def note_serialized(self, size_bytes: int) -> None:
        self._serialized.inc(size_bytes)

    def note_choice(self, by: str, reward_s: float | None = None) -> None:
        """``reward_s`` where a reward model's scores were waited for and came."""
        self._choices.labels(by).inc()
        if reward_s is not None:
            self._reward.observe(reward_s)

    def note_summary(self, by: str) -> None:
        self._child(self._summaries, by).inc()

    def note_vote(self, is_up: bool) -> None:
        self._votes.labels("up" if is_up else "down").inc()
        self.tally.note_rating()

    def note_feedback_lag(self, seconds: float) -> None:
        self._feedback_lag.set(seconds)

    def note_http(self, method: str, route: str, status: int, seconds: float) -> None:
        self._child(self._http, method, route, str(status)).observe(seconds)

    def note_connections(self, count: int) -> None:
        self._connections.set(count)

    def note_connection_ended(self, reason: str) -> None:
        self._child(self._connections_ended, reason).inc()

    def note_database_gauges(
        self,
        submissions: Mapping[str, int],
        oldest_queued_s: float,
        deployments: Mapping[str, int],
        unserved: Mapping[str, int],
        workers: int,
        at: float,
    ) -> None:
        for status, count in submissions.items():
            self._submissions.labels(status).set(count)
        for phase, count in deployments.items():
            self._deployments.labels(phase).set(count)
        for trouble, count in unserved.items():
            self._unserved.labels(trouble).set(count)
        self._oldest.set(oldest_queued_s)
        self._workers.set(workers)
        self._gauges_read_at.set(at)

    def note_gpus_wanted(self, by_type: Mapping[str, int]) -> None:
        _set_all(self._gpus_wanted, by_type)

    def note_pools(self, waiting: Mapping[str, int]) -> None:
        _set_all(self._pool_waiting, waiting)

    def note_idle_servers(self, by_kind: Mapping[str, int]) -> None:
        _set_all(self._idle_servers, by_kind)

    def note_gpus_held(self, by_type: Mapping[str, int], per_hour: Mapping[str, float]) -> None:
        _set_all(self._gpus_held, by_type)
        _set_all(self._cost_per_hour, per_hour)

    def note_transaction_ids(self, found: IdGauges) -> None:
        _set_all(self._id_age, found.ages)
        _set_all(self._id_vacuum_age, found.vacuum_at)
        _set_all(self._id_days, _known(found.days_left))
        _set_all(self._ids_per_turns, _known(found.per_thousand_turns))

    def reply(self, submission_id: str, asked_at: float | None = None) -> ReplyTimer:
        """Around one reply: counts it, however it ends. Its times are from ``asked_at`` on the performance counter, or from now."""
        return ReplyTimer(self, submission_id, asked_at)

    def note_first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)
        self.tally.note_first_token(seconds)

    def note_turns_waiting(self, submission_id: str, change: int) -> None:
        self._turns_waiting.inc(change)
        self.submissions.note_waiting(submission_id, change)

    def note_turn_wait(self, seconds: float) -> None:
        self._turn_wait.observe(seconds)

    def note_requests_waiting(self, change: int) -> None:
        self._requests_waiting.inc(change)

    def note_step(self, route: str, seconds: float) -> None:
        """Note for how long one step of a request to a route has computed on the event loop."""
        if seconds > self._longest_steps.get(route, 0.0):
            self._longest_steps[route] = seconds
            self._longest_step.labels(route).set(seconds)

    def note_reply_begun(self) -> None:
        self.turns_in_flight += 1
        self._in_flight.inc()

    def note_reply_ended(self, outcome: str) -> None:
        self.turns_in_flight -= 1
        self._in_flight.dec()
        self._child(self._requests, outcome).inc()
        self.tally.note_turn(outcome)

    def note_whole_reply(self, seconds: float, prompt_tokens: int, completion_tokens: int) -> None:
        self._reply.observe(seconds)
        self._child(self._tokens, "prompt").inc(prompt_tokens)
        self._child(self._tokens, "completion").inc(completion_tokens)

    def _child(self, metric: Any, *values: str) -> Any:
        """Find a labelled metric's child in a dictionary, for ``labels`` costs more than counting."""
        key = (metric, *values)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*values)
        return child

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        self.described.append(MetricDescription(name, "counter", labels, text))
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        self.described.append(MetricDescription(name, "gauge", labels, text))
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> Histogram:
        self.described.append(MetricDescription(name, "histogram", labels, text))
        return Histogram(name, text, labels, registry=self.registry, buckets=buckets)


def _known(value: float | None) -> Mapping[str, float]:
    return {} if value is None else {"transaction": value}


def _set_all(gauge: Gauge, values: Mapping[str, float]) -> None:
    """Set these series and remove all others."""
    gauge.clear()
    for label, value in values.items():
        gauge.labels(label).set(value)


class ReplyTimer:
    """Times one reply, from ``asked_at`` on the performance counter."""

    __slots__ = ("_asked_at", "_first_token_s", "_is_whole", "_metrics", "_series", "_submission")

    def __init__(self, metrics: Metrics, submission_id: str, asked_at: float | None) -> None:
        self._asked_at = time.perf_counter() if asked_at is None else asked_at
        self._metrics = metrics
        self._submission = submission_id
        self._first_token_s: float | None = None
        self._is_whole = False

    def __enter__(self) -> Self:
        self._metrics.note_reply_begun()
        self._series = self._metrics.submissions.begin(self._submission)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        outcome = "ok" if self._is_whole else "abandoned"
        if isinstance(error, Exception):
            outcome = str(getattr(error, "code", "internal"))
        self._metrics.note_reply_ended(outcome)
        self._metrics.submissions.end(self._submission)
        self._series.outcomes[outcome] += 1

    def note_text(self) -> None:
        if self._first_token_s is None:
            self._first_token_s = time.perf_counter() - self._asked_at
            self._metrics.note_first_token(self._first_token_s)
            self._series.first_token.observe(self._first_token_s)

    def note_end(
        self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0
    ) -> tuple[float, float]:
        """The reply is whole; what its reader does from now on changes nothing. Seconds to the first token, and to now."""
        self._is_whole = True
        total_s = time.perf_counter() - self._asked_at
        first_token_s = self._first_token_s or total_s
        self._metrics.note_whole_reply(total_s, prompt_tokens, completion_tokens)
        self._metrics.tally.note_prompt(prompt_tokens, cached_tokens)
        self._series.note_end(
            first_token_s, total_s, prompt_tokens, cached_tokens, completion_tokens
        )
        return first_token_s, total_s
