"""The service level: the share of replies that came, against a target, and how fast the error budget burns.

    budget     1 - target                    the share of 30 days' replies that may fail
    burn rate  share that failed / budget    1 uses the budget up in exactly 30 days, 14.4 a 50th of it in an hour

Burn rates and their thresholds are those of Google's SRE workbook (https://sre.google/workbook/alerting-on-slos/).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from guanaco.alerts import ServiceLevel, ServiceWindow
from guanaco_server.alerts.figures import Traffic

MONTH = timedelta(days=30)
WINDOWS = {"1h": timedelta(hours=1), "6h": timedelta(hours=6), "30d": MONTH}


def burn_rate(traffic: Traffic, target: float) -> float | None:
    """Return how many times faster the budget is used than it lasts; None without any reply."""
    share = traffic.failed_share
    return None if share is None else share / (1 - target)


def service_level(
    recent: Mapping[timedelta, Traffic], target: float, now: datetime
) -> ServiceLevel:
    """Judge the traffic of each of WINDOWS."""
    month = recent[MONTH]
    month_burn = burn_rate(month, target)
    return ServiceLevel(
        target=target,
        windows=[
            _window(name, recent[period], target, now - period) for name, period in WINDOWS.items()
        ],
        budget=month.replies * (1 - target),
        budget_left=None if month_burn is None else 1 - month_burn,
    )


def _window(name: str, traffic: Traffic, target: float, since: datetime) -> ServiceWindow:
    share = traffic.failed_share
    return ServiceWindow(
        name=name,
        since=since,
        answered=traffic.answered,
        failed=traffic.failed,
        availability=None if share is None else 1 - share,
        burn_rate=burn_rate(traffic, target),
    )
