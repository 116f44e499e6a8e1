"""Tests when alerts fire, by table; the error budget; the form of the messages."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from guanaco.alerts import AlertMessageKind, AlertName, Severity
from guanaco_server.alerts.advice import ADVICE
from guanaco_server.alerts.figures import ServiceFigures, Traffic
from guanaco_server.alerts.objective import MONTH, WINDOWS, service_level
from guanaco_server.alerts.rules import (
    FIVE_MINUTES,
    HALF_HOUR,
    HOUR,
    PERIODS,
    SIX_HOURS,
    AlertPolicy,
    judge,
)
from guanaco_server.alerts.slack import alert_body, test_body
from guanaco_server.statistics.buckets import bucket_of, quantile

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks.md"
POLICY = AlertPolicy(daily_budget=100, currency="USD", target=0.9995)
NOW = datetime(2026, 1, 8, 12, tzinfo=UTC)


def first_tokens(**by_ms: int) -> tuple[int, ...]:
    """Counts by bucket, from m500=50 for fifty that took 500 ms."""
    counts = [0] * 80
    for name, count in by_ms.items():
        counts[bucket_of(int(name[1:]) / 1_000)] += count
    return tuple(counts)


USUAL = Traffic(
    answered=999,
    failed=1,
    prompt_tokens=1_000_000,
    cached_tokens=500_000,
    first_tokens=first_tokens(m500=1_000),
)
CALM = ServiceFigures(
    hour=USUAL,
    week_ago=USUAL,
    hour_cost=10,
    week_ago_cost=10,
    day_cost=50,
    recent=dict.fromkeys(PERIODS, USUAL),
)


def firing(figures: ServiceFigures, policy: AlertPolicy = POLICY) -> set[str]:
    checks = judge(figures, policy)
    by_a_worker = [name for name in AlertName if name is not AlertName.NO_WORKER]
    assert [check.name for check in checks] == by_a_worker
    assert all(check.sentence for check in checks)
    return {check.name for check in checks if check.is_firing}


def hour(**changes: Any) -> ServiceFigures:
    return replace(CALM, hour=replace(USUAL, **changes))


FAILING = Traffic(answered=900, failed=100)


@pytest.mark.parametrize(
    ("figures", "fires"),
    [
        pytest.param(CALM, set(), id="as last week"),
        pytest.param(replace(CALM, day_cost=101), {"daily_spend"}, id="over the day's budget"),
        pytest.param(replace(CALM, day_cost=100), set(), id="all of the day's budget"),
        pytest.param(replace(CALM, hour_cost=15.1), {"spend_unusual"}, id="dearer hour"),
        pytest.param(replace(CALM, hour_cost=15), set(), id="half as dear again"),
        pytest.param(replace(CALM, week_ago_cost=0), set(), id="nothing held last week"),
        pytest.param(hour(failed=20), {"errors_unusual"}, id="20 times the failures"),
        pytest.param(hour(failed=9), set(), id="too few failures to matter"),
        pytest.param(hour(answered=20_000, failed=100), set(), id="under one in a hundred"),
        pytest.param(
            replace(hour(failed=20), week_ago=replace(USUAL, failed=11)), set(), id="not twice"
        ),
        pytest.param(
            replace(hour(failed=900), week_ago=Traffic(answered=40)), set(), id="no week before"
        ),
        pytest.param(
            hour(first_tokens=first_tokens(m500=940, m2000=60)),
            {"first_token_unusual"},
            id="slow for one in twenty",
        ),
        pytest.param(hour(first_tokens=first_tokens(m500=960, m2000=40)), set(), id="for fewer"),
        pytest.param(hour(first_tokens=first_tokens(m900=1_000)), set(), id="under a second"),
        pytest.param(hour(first_tokens=first_tokens(m9000=49)), set(), id="too few to tell"),
        pytest.param(hour(cached_tokens=340_000), {"cache_hits_unusual"}, id="fewer hits"),
        pytest.param(hour(cached_tokens=360_000), set(), id="a few fewer hits"),
        pytest.param(hour(prompt_tokens=49_000, cached_tokens=0), set(), id="too few tokens"),
        pytest.param(
            replace(
                hour(cached_tokens=0), week_ago=replace(USUAL, cached_tokens=90_000)
            ),
            set(),
            id="never had hits",
        ),
        pytest.param(
            replace(CALM, recent={**CALM.recent, HOUR: FAILING, FIVE_MINUTES: FAILING}),
            {"budget_burns_fast"},
            id="burns fast",
        ),
        pytest.param(
            replace(CALM, recent={**CALM.recent, HOUR: FAILING}), set(), id="burnt, and over"
        ),
        pytest.param(
            replace(CALM, recent={**CALM.recent, SIX_HOURS: FAILING, HALF_HOUR: FAILING}),
            {"budget_burns_slowly"},
            id="burns slowly",
        ),
        pytest.param(
            replace(CALM, recent=dict.fromkeys(PERIODS, Traffic(answered=5, failed=9))),
            set(),
            id="a handful of failures",
        ),
        pytest.param(
            ServiceFigures(Traffic(), Traffic(), 0, 0, 0, dict.fromkeys(PERIODS, Traffic())),
            set(),
            id="nothing at all",
        ),
    ],
)  # fmt: skip
def test_an_alert_fires_in_its_own_case_and_no_other(
    figures: ServiceFigures, fires: set[str]
) -> None:
    assert firing(figures) == fires


def test_without_a_budget_no_spending_is_too_much() -> None:
    assert firing(replace(CALM, day_cost=1e9), replace(POLICY, daily_budget=None)) == set()


def test_a_quantile_lies_within_its_bucket() -> None:
    counts = first_tokens(m100=90, m2000=10)
    low, high = quantile(counts, 0.5), quantile(counts, 0.95)
    assert low is not None
    assert 0.08 <= low <= 0.125
    assert high is not None
    assert 1.6 <= high <= 2.5
    assert quantile((), 0.5) is None


def test_the_error_budget_is_what_may_fail_within_thirty_days() -> None:
    recent = {period: Traffic(answered=9_990, failed=10) for period in WINDOWS.values()}
    level = service_level(recent, 0.998, NOW)
    assert level.budget == pytest.approx(20)
    assert level.budget_left == pytest.approx(0.5)
    assert [window.burn_rate for window in level.windows] == [pytest.approx(0.5)] * 3
    assert level.windows[-1].since == NOW - MONTH
    overspent = service_level({**recent, MONTH: Traffic(answered=90, failed=10)}, 0.95, NOW)
    assert overspent.budget_left == pytest.approx(-1)
    assert service_level(dict.fromkeys(recent, Traffic()), 0.998, NOW).budget_left is None


@pytest.mark.parametrize("kind", [AlertMessageKind.FIRING, AlertMessageKind.RESOLVED])
def test_message_has_slacks_form_and_no_injected_link(kind: AlertMessageKind) -> None:
    body = alert_body(
        kind,
        AlertName.DAILY_SPEND,
        Severity.CRITICAL,
        "<!channel> & <http://evil>",
        NOW - timedelta(minutes=12),
        NOW,
        "https://guanaco.example.com",
    )
    message = json.loads(body)
    assert set(message) == {"text", "attachments"}
    (attachment,) = message["attachments"]
    assert "<" not in attachment["text"]
    assert "&lt;!channel&gt; &amp; " in attachment["text"]
    assert attachment["title_link"] == "https://guanaco.example.com/admin/reliability"
    assert ("12 minutes" in attachment["text"]) is (kind is AlertMessageKind.RESOLVED)
    assert "title_link" not in json.loads(test_body(NOW, ""))["attachments"][0]


def test_every_alert_has_advice_and_a_runbook() -> None:
    assert set(ADVICE) == set(AlertName)
    headings = set(re.findall(r"^### (\w+)$", RUNBOOKS.read_text(), re.MULTILINE))
    assert {str(name) for name in AlertName} <= headings
