"""Alerts to the operator, and the service level that the platform keeps."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from guanaco.open_enum import OpenEnum
from guanaco.webhooks import DeliveryState


class AlertName(OpenEnum):
    """Names an alert that the platform raises by itself; docs/runbooks.md says what to do about each."""

    DAILY_SPEND = "daily_spend"
    SPEND_UNUSUAL = "spend_unusual"
    ERRORS_UNUSUAL = "errors_unusual"
    FIRST_TOKEN_UNUSUAL = "first_token_unusual"  # noqa: S105 - no secret
    CACHE_HITS_UNUSUAL = "cache_hits_unusual"
    BUDGET_BURNS_FAST = "budget_burns_fast"
    BUDGET_BURNS_SLOWLY = "budget_burns_slowly"
    NO_WORKER = "no_worker"


class Severity(OpenEnum):
    """A critical alert needs somebody now, a warning within the day."""

    WARNING = "warning"
    CRITICAL = "critical"


class AlertMessageKind(OpenEnum):
    FIRING = "firing"
    RESOLVED = "resolved"
    TEST = "test"


class AlertCheck(BaseModel):
    """Shows what one alert compares now. ``value`` and ``compared`` are words for people: ``3.2 %``, ``1.4 s``."""

    name: AlertName
    severity: Severity
    is_firing: bool = Field(description="True if the figures call for the alert at this moment.")
    value: str | None = Field(description="The last hour, or the day; None without enough traffic.")
    compared: str | None = Field(
        description="The same hour of last week, or the limit; None where there is none."
    )
    sentence: str = Field(description="The figures in one sentence.")


class Alert(BaseModel):
    """An alert that fires, or has fired."""

    name: AlertName
    severity: Severity
    sentence: str
    began_at: datetime
    ended_at: datetime | None = Field(description="None while it fires.")


class AlertMessage(BaseModel):
    """A message to the operator's webhook. A pending one is tried again, for about a day."""

    id: int
    kind: AlertMessageKind
    alert: AlertName | None = Field(description="None for a test.")
    state: DeliveryState
    attempts: int
    created_at: datetime
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None = Field(description="Null once it is no longer pending.")
    last_result: str | None = Field(
        description="The status that the receiver answered, or why none came."
    )


class Alerts(BaseModel):
    """``firing`` and ``ended`` are newest first; ``messages`` are the newest that were written.

    A worker keeps the alerts. Without one, ``firing`` begins with ``no_worker``, which whoever answers has found, and
    includes what the figures call for now.
    """

    firing: list[Alert]
    ended: list[Alert] = Field(description="Alerts that ended within the last 7 days.")
    checks: list[AlertCheck]
    messages: list[AlertMessage]


class ServiceWindow(BaseModel):
    """A period until now. ``burn_rate`` is 1 where the error budget would last exactly 30 days."""

    name: str = Field(description="`1h`, `6h` or `30d`.")
    since: datetime
    answered: int = Field(description="Replies that came whole.")
    failed: int = Field(description="Replies that failed for a reason that is not the client's.")
    availability: float | None = Field(description="Null if there was no reply.")
    burn_rate: float | None


class ServiceLevel(BaseModel):
    """The share of replies that came within 30 days, beside the share that the platform promises."""

    target: float
    windows: list[ServiceWindow]
    budget: float = Field(description="Replies that may fail within 30 days at this traffic.")
    budget_left: float | None = Field(
        description="The share of it that is left; negative when it is overspent. Null if there was no reply."
    )
