"""Writes messages in the form of Slack's incoming webhooks, which Mattermost, Rocket.Chat and Discord (`/slack`) take too.

Nothing that a user wrote and nobody's name is in them: figures, the alert's name and links.
"""

from __future__ import annotations

import json
from datetime import datetime

from guanaco.alerts import AlertMessageKind, AlertName, Severity
from guanaco_server.alerts.advice import ADVICE

RED, YELLOW, GREEN, GREY = "#d0342c", "#e8a317", "#2e8b57", "#808080"
PAGE = "/admin/reliability"


def alert_body(
    kind: AlertMessageKind,
    name: AlertName,
    severity: Severity,
    sentence: str,
    began_at: datetime,
    at: datetime,
    link_base: str,
) -> str:
    """Return the body of a message that says that an alert fires, or has ended."""
    is_firing = kind is AlertMessageKind.FIRING
    title = f"{'Firing' if is_firing else 'Resolved'}: {name} ({severity})"
    urgent = RED if severity is Severity.CRITICAL else YELLOW
    minutes = round((at - began_at).total_seconds() / 60)
    text = (
        f"{sentence}\n*What to do:* {ADVICE[name]} {_runbook(name, link_base)}"
        if is_firing
        else f"It fired for {minutes} minutes. Now: {sentence}"
    )
    return _body(title, text, urgent if is_firing else GREEN, at, link_base)


def test_body(at: datetime, link_base: str) -> str:
    """Return the body of the message that `guanaco alerts test` sends."""
    return _body("Test", "Guanaco can send alerts here.", GREY, at, link_base)


test_body.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def _runbook(name: AlertName, link_base: str) -> str:
    where = f"{link_base}/docs/runbooks#{name}" if link_base else "docs/runbooks.md"
    return f"Runbook: {where}"


def _body(title: str, text: str, color: str, at: datetime, link_base: str) -> str:
    attachment = {
        "color": color,
        "title": _escaped(title),
        "text": _escaped(text),
        "fallback": _escaped(f"{title}. {text}"),
        "mrkdwn_in": ["text"],
        "ts": int(at.timestamp()),
    }
    if link_base:
        attachment["title_link"] = link_base + PAGE
    return json.dumps({"text": _escaped(f"Guanaco: {title}"), "attachments": [attachment]})


def _escaped(text: str) -> str:
    """Escape the three characters with which Slack's links and mentions begin."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
