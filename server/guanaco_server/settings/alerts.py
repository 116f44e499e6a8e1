"""Settings of alerts to the operator and of the service level (docs/alerts.md)."""

from __future__ import annotations

from pydantic import BaseModel, Field, SecretStr


class AlertSettings(BaseModel):
    """Alerts and service level"""

    alert_webhook_url: SecretStr | None = Field(
        default=None,
        description="Incoming webhook (Slack's form) that alerts are sent to; whoever knows it can write there. Default: alerts are kept, and sent nowhere.",
    )
    daily_budget: float | None = Field(
        default=None,
        ge=0,
        description="Cost of all GPUs in a day (UTC) above which there is an alert; nothing is stopped. No limit otherwise.",
    )
    slo_target: float = Field(
        default=0.9995,
        gt=0,
        lt=1,
        description="Share of replies that should come, over 30 days; the rest is the error budget.",
    )
