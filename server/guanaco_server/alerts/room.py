"""Builds the alerts room: what is watched, the messages about it, and the service level."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from guanaco.errors import InvalidInput, InvalidSettings
from guanaco_server.alerts.figures import FigureReader, ReadCost
from guanaco_server.alerts.loop import AlertLoop
from guanaco_server.alerts.recording import ServiceRecorder
from guanaco_server.alerts.rules import AlertPolicy
from guanaco_server.alerts.sender import AlertSender
from guanaco_server.alerts.service import AlertService
from guanaco_server.alerts.watch import AlertWatch
from guanaco_server.database.database import Database
from guanaco_server.notifications.addresses import require_allowed_url
from guanaco_server.notifications.client import Resolve, WebhookClient, resolve
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings
from guanaco_server.workers.absence import WorkerAbsences


@dataclass(frozen=True)
class AlertsRoom:
    """``service`` answers operators; each process runs ``recorder``, one at a time runs ``loop``."""

    service: AlertService
    recorder: ServiceRecorder
    watch: AlertWatch
    sender: AlertSender
    loop: AlertLoop


def build_alerts(
    database: Database,
    clock: Clock,
    *,
    read_cost: ReadCost,
    absences: WorkerAbsences,
    metrics: Metrics,
    settings: Settings,
    resolve: Resolve = resolve,
) -> AlertsRoom:
    """``resolve`` looks up host names; a test can answer with addresses of its own. InvalidSettings for a URL that no message may go to."""
    woken = asyncio.Event()
    url = receiver_of(settings)
    link_base = (settings.webhook_link_base or "").rstrip("/")
    figures = FigureReader(database, read_cost)
    watch = AlertWatch(
        database,
        clock,
        figures,
        AlertPolicy(settings.daily_budget, settings.currency, settings.slo_target),
        has_receiver=url is not None,
        link_base=link_base,
    )
    client = WebhookClient(
        allow_private=settings.webhook_allow_private,
        timeout_s=settings.webhook_timeout_s,
        resolve=resolve,
    )
    sender = AlertSender(database, clock, client, url)
    service = AlertService(
        database,
        clock,
        figures,
        watch,
        absences,
        target=settings.slo_target,
        link_base=link_base,
        wake=woken.set,
    )
    return AlertsRoom(
        service,
        ServiceRecorder(database, clock, metrics.tally),
        watch,
        sender,
        AlertLoop(clock, watch, sender, database.watch_commits(woken)),
    )


def receiver_of(settings: Settings) -> str | None:
    """Return the operator's webhook; the error never repeats it, for it is a secret."""
    if settings.alert_webhook_url is None:
        return None
    url = settings.alert_webhook_url.get_secret_value()
    try:
        return require_allowed_url(url, allow_private=settings.webhook_allow_private)
    except InvalidInput as error:
        raise InvalidSettings(f"alert_webhook_url: {error.detail}", hint=error.hint) from None
