"""Decides which alerts the figures call for. It is a pure function of the figures and what the operator has set.

Four compare the last hour with the same hour of last week. Each wants enough of both, a difference by a factor, and a
difference that matters by itself, so that one failure in a quiet night wakes nobody:

    spend_unusual         costs 1.5 times as much
    errors_unusual        2 times the share of replies fails, at least 1 % and 10 replies
    first_token_unusual   p95 is 1.5 times as long, at least 1 s
    cache_hits_unusual    the prefix caches have less than 0.7 times the share of the prompts, which was 10 % at least

Three have a limit of their own:

    daily_spend           the day (UTC) has cost the daily budget
    budget_burns_fast     14.4 times as fast as it lasts, over 1 hour and over the last 5 minutes
    budget_burns_slowly   6 times, over 6 hours and over the last 30 minutes

One is found by whoever reads the alerts, for no worker is there to write it:

    no_worker             none has been heard of for a minute (workers/absence.py)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from guanaco.alerts import AlertCheck, AlertName, Severity
from guanaco_server.alerts.figures import ServiceFigures, Traffic
from guanaco_server.alerts.objective import burn_rate
from guanaco_server.workers.absence import WorkerAbsence

SPEND_FACTOR = 1.5
ERROR_FACTOR = 2.0
ERROR_SHARE = 0.01
LEAST_FAILED = 10
FIRST_TOKEN_FACTOR = 1.5
FIRST_TOKEN_S = 1.0
HIT_FACTOR = 0.7
HIT_SHARE = 0.1
LEAST_REPLIES = 50
LEAST_PROMPT_TOKENS = 50_000

FIVE_MINUTES, HALF_HOUR = timedelta(minutes=5), timedelta(minutes=30)
HOUR, SIX_HOURS = timedelta(hours=1), timedelta(hours=6)
FAST_BURN, SLOW_BURN = 14.4, 6.0
PERIODS = (FIVE_MINUTES, HALF_HOUR, HOUR, SIX_HOURS)


@dataclass(frozen=True)
class AlertPolicy:
    """``daily_budget`` is in ``currency``; None is no limit. ``target`` is the share of replies that should come."""

    daily_budget: float | None
    currency: str
    target: float


def judge(figures: ServiceFigures, policy: AlertPolicy) -> list[AlertCheck]:
    """Return the check of every alert that a worker writes, in the order of AlertName."""
    return [
        _daily_spend(figures, policy),
        _spend(figures, policy),
        _errors(figures.hour, figures.week_ago),
        _first_token(figures.hour, figures.week_ago),
        _cache_hits(figures.hour, figures.week_ago),
        _burn(
            AlertName.BUDGET_BURNS_FAST,
            Severity.CRITICAL,
            figures.recent[HOUR],
            figures.recent[FIVE_MINUTES],
            FAST_BURN,
            policy.target,
            ("an hour", "5 minutes"),
        ),
        _burn(
            AlertName.BUDGET_BURNS_SLOWLY,
            Severity.WARNING,
            figures.recent[SIX_HOURS],
            figures.recent[HALF_HOUR],
            SLOW_BURN,
            policy.target,
            ("6 hours", "30 minutes"),
        ),
    ]


def no_worker(absence: WorkerAbsence | None) -> AlertCheck:
    return AlertCheck(
        name=AlertName.NO_WORKER,
        severity=Severity.CRITICAL,
        is_firing=absence is not None,
        value=None,
        compared=None,
        sentence="A worker is there, or may just be starting."
        if absence is None
        else f"{absence} Submissions wait, model servers that die stay dead, and no alert is checked or sent.",
    )


def _daily_spend(figures: ServiceFigures, policy: AlertPolicy) -> AlertCheck:
    cost = _money(figures.day_cost, policy)
    if policy.daily_budget is None:
        limit, sentence = None, f"GPUs have cost {cost} today (UTC), and no daily_budget is set."
    else:
        limit = _money(policy.daily_budget, policy)
        sentence = f"GPUs have cost {cost} today (UTC), of a budget of {limit}."
    return AlertCheck(
        name=AlertName.DAILY_SPEND,
        severity=Severity.CRITICAL,
        is_firing=policy.daily_budget is not None and figures.day_cost > policy.daily_budget,
        value=cost,
        compared=limit,
        sentence=sentence,
    )


def _spend(figures: ServiceFigures, policy: AlertPolicy) -> AlertCheck:
    now, before = figures.hour_cost, figures.week_ago_cost
    return AlertCheck(
        name=AlertName.SPEND_UNUSUAL,
        severity=Severity.WARNING,
        is_firing=0 < before * SPEND_FACTOR < now,
        value=_money(now, policy),
        compared=_money(before, policy) if before else None,
        sentence=f"GPUs cost {_money(now, policy)} in the last hour, and {_money(before, policy)} in the same hour of last week.",
    )


def _errors(hour: Traffic, week_ago: Traffic) -> AlertCheck:
    now, before = _share_failed(hour), _share_failed(week_ago)
    is_firing = (
        now is not None
        and before is not None
        and hour.failed >= LEAST_FAILED
        and now >= ERROR_SHARE
        and now > ERROR_FACTOR * before
    )
    return _compared(
        AlertName.ERRORS_UNUSUAL,
        is_firing,
        None if now is None else f"{now:.2%}",
        None if before is None else f"{before:.2%}",
        "{value} of the last hour's replies failed, and {compared} in the same hour of last week.",
    )


def _first_token(hour: Traffic, week_ago: Traffic) -> AlertCheck:
    now, before = _first_token_s(hour), _first_token_s(week_ago)
    is_firing = (
        now is not None
        and before is not None
        and now >= FIRST_TOKEN_S
        and now > FIRST_TOKEN_FACTOR * before
    )
    return _compared(
        AlertName.FIRST_TOKEN_UNUSUAL,
        is_firing,
        None if now is None else f"{now:.2f} s",
        None if before is None else f"{before:.2f} s",
        "One reply in twenty took over {value} to begin within the last hour, and {compared} in the same hour of last week.",
    )


def _cache_hits(hour: Traffic, week_ago: Traffic) -> AlertCheck:
    now, before = _hit_share(hour), _hit_share(week_ago)
    is_firing = (
        now is not None and before is not None and before >= HIT_SHARE and now < HIT_FACTOR * before
    )
    return _compared(
        AlertName.CACHE_HITS_UNUSUAL,
        is_firing,
        None if now is None else f"{now:.0%}",
        None if before is None else f"{before:.0%}",
        "The prefix caches had {value} of the last hour's prompts, and {compared} in the same hour of last week.",
    )


def _compared(
    name: AlertName, is_firing: bool, value: str | None, compared: str | None, sentence: str
) -> AlertCheck:
    if value is None:
        explanation = "There was too little traffic in the last hour to tell."
    elif compared is None:
        explanation = "There was too little traffic in the same hour of last week to compare with."
    else:
        explanation = sentence.format(value=value, compared=compared)
    return AlertCheck(
        name=name,
        severity=Severity.WARNING,
        is_firing=is_firing,
        value=value,
        compared=compared,
        sentence=explanation,
    )


def _burn(
    name: AlertName,
    severity: Severity,
    long: Traffic,
    short: Traffic,
    limit: float,
    target: float,
    periods: tuple[str, str],
) -> AlertCheck:
    """Both periods must burn: the long one says that it matters, the short one that it still goes on."""
    over, recent = burn_rate(long, target), burn_rate(short, target)
    is_firing = (
        over is not None
        and recent is not None
        and min(over, recent) >= limit
        and long.failed >= LEAST_FAILED
    )
    explanation = (
        "There was no reply to judge by."
        if over is None
        else f"{long.failed:,} of {long.replies:,} replies failed within {periods[0]}: the error budget of {1 - target:.2%} burns {over:.1f} times as fast as it lasts, and {recent or 0:.1f} times within the last {periods[1]}."
    )
    return AlertCheck(
        name=name,
        severity=severity,
        is_firing=is_firing,
        value=None if over is None else f"{over:.1f}",
        compared=f"{limit:g}",
        sentence=explanation,
    )


def _share_failed(traffic: Traffic) -> float | None:
    return traffic.failed_share if traffic.replies >= LEAST_REPLIES else None


def _first_token_s(traffic: Traffic) -> float | None:
    return traffic.first_token_s if sum(traffic.first_tokens) >= LEAST_REPLIES else None


def _hit_share(traffic: Traffic) -> float | None:
    return traffic.hit_share if traffic.prompt_tokens >= LEAST_PROMPT_TOKENS else None


def _money(amount: float, policy: AlertPolicy) -> str:
    return f"{amount:,.2f} {policy.currency}"
