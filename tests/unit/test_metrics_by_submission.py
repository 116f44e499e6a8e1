"""Each submission's figures are told apart, and their series stay few, whoever many submissions there are."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from guanaco.errors import ModelUnavailable
from guanaco_server.observability.by_submission import (
    IN_FLIGHT,
    MOST,
    OTHER,
    ServerStatistics,
    Spend,
)
from guanaco_server.observability.exposition import scrape
from guanaco_server.observability.metrics import Metrics

MOST_BYTES = 600_000  # of a scrape with all series
LABELLED = "guanaco_submission_requests_total"


def reply(metrics: Metrics, submission_id: str, cached: int = 0) -> None:
    with metrics.reply(submission_id) as measured:
        measured.note_text()
        measured.note_end(100, 11, cached)


Series = dict[tuple[str, ...], float]


def every_series(metrics: Metrics) -> dict[str, Series]:
    """The samples of each metric by the values of their labels, the submission's first."""
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(scrape(metrics).decode()):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items(), reverse=True))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def series(metrics: Metrics, name: str) -> Series:
    return every_series(metrics).get(name, {})


def submissions(metrics: Metrics, name: str = LABELLED) -> set[str]:
    return {labels[0] for labels in series(metrics, name)}


def test_replies_are_counted_by_submission_kind_and_outcome() -> None:
    metrics = Metrics()
    reply(metrics, "acme-tiny_v1", cached=40)
    with pytest.raises(ModelUnavailable), metrics.reply("acme-tiny_v1"):
        raise ModelUnavailable("acme-tiny_v1")
    reply(metrics, "acme-big_v1")
    assert series(metrics, LABELLED) == {
        ("acme-tiny_v1", "ok"): 1,
        ("acme-tiny_v1", "model_unavailable"): 1,
        ("acme-big_v1", "ok"): 1,
    }
    tokens = series(metrics, "guanaco_submission_tokens_total")
    assert [tokens["acme-tiny_v1", kind] for kind in ("prompt", "cached", "completion")] == [
        100,
        40,
        11,
    ]
    for name in ("first_token", "token", "reply"):
        counts = series(metrics, f"guanaco_submission_{name}_seconds_count")
        assert counts == {("acme-tiny_v1",): 1, ("acme-big_v1",): 1, (OTHER,): 0}


def test_a_histogram_is_what_prometheus_own_is() -> None:
    metrics = Metrics()
    begun = metrics.submissions.begin("acme-tiny_v1")
    for seconds in (0.1, 0.1001, 7, 99):
        metrics.note_first_token(seconds)
        begun.first_token.observe(seconds)
    ours = series(metrics, "guanaco_submission_first_token_seconds_bucket")
    theirs = series(metrics, "guanaco_gateway_first_token_seconds_bucket")
    for bound in ("0.1", "0.5", "1.0", "5.0", "10.0", "+Inf"):
        assert ours["acme-tiny_v1", bound] == theirs[(bound,)]


def test_of_a_thousand_submissions_a_bounded_number_has_series() -> None:
    metrics = Metrics()
    for number in range(1_000):
        reply(metrics, f"acme-model-with-a-name_v{number}")
        metrics.submissions.note_waiting(f"acme-model-with-a-name_v{number}", 1)
    servers = {f"acme-model-with-a-name_v{n}": ServerStatistics(1, 0, 0.5) for n in range(1_000)}
    metrics.submissions.note_servers(servers)
    metrics.submissions.note_spending({name: Spend(2.0, 100.0) for name in servers})
    found = every_series(metrics)
    for metric in metrics.described:
        if "submission" in metric.labels and metric.name != IN_FLIGHT:  # all have ended
            shown = found[metric.name + ("_count" if metric.kind == "histogram" else "")]
            named = {labels[0] for labels in shown}
            assert OTHER in named
            assert len(named) == MOST + 1
    assert sum(found[LABELLED].values()) == 1_000
    assert sum(found["guanaco_submission_turns_waiting"].values()) == 1_000
    assert found["guanaco_server_running_requests"][(OTHER,)] == 1_000 - MOST
    assert found["guanaco_server_kv_cache_usage_ratio"][(OTHER,)] == 0.5
    assert len(scrape(metrics)) < MOST_BYTES


def test_the_busiest_have_the_series_after_a_review() -> None:
    metrics = Metrics()
    for number in range(MOST):
        reply(metrics, f"early_v{number}")
    for _ in range(5):
        reply(metrics, "late_v1")
    assert "late_v1" not in submissions(metrics)
    metrics.submissions.review(lambda _: True)
    reply(metrics, "late_v1")
    counts = series(metrics, LABELLED)
    assert counts["late_v1", "ok"] == 1, "it begins anew"
    assert counts[OTHER, "ok"] == 5, "a counter never falls"
    assert len(counts) == MOST + 1


def test_submissions_of_equal_traffic_do_not_change_places() -> None:
    metrics = Metrics()
    names = [f"acme-tiny_v{number}" for number in range(MOST + 20)]
    for _ in range(3):
        for name in names:
            reply(metrics, name)
        metrics.submissions.review(lambda _: True)
    assert submissions(metrics) == {*names[:MOST], OTHER}


def test_what_was_torn_down_loses_its_series_after_a_while() -> None:
    metrics = Metrics()
    for name in ("torn-down_v1", "idle_v1"):
        reply(metrics, name)
    metrics.submissions.review(lambda name: name == "idle_v1")
    assert submissions(metrics) == {"torn-down_v1", "idle_v1"}, "its last replies are scraped"
    metrics.submissions.review(lambda name: name == "idle_v1")
    assert submissions(metrics) == {"idle_v1"}


def test_gauges_follow_what_is_under_way() -> None:
    metrics = Metrics()
    with metrics.reply("acme-tiny_v1"):
        metrics.note_turns_waiting("acme-tiny_v1", 3)
        assert series(metrics, "guanaco_submission_in_flight_requests") == {("acme-tiny_v1",): 1}
        assert series(metrics, "guanaco_submission_turns_waiting") == {("acme-tiny_v1",): 3}
        metrics.note_turns_waiting("acme-tiny_v1", -3)
    assert series(metrics, "guanaco_submission_in_flight_requests") == {}
    assert series(metrics, "guanaco_submission_turns_waiting") == {}
