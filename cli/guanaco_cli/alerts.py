"""`guanaco alerts` and `guanaco slo`: what the platform watches by itself, and how well it keeps its promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson
from guanaco_cli.sending import report_test

if TYPE_CHECKING:
    from guanaco.alerts import Alerts, ServiceLevel

app = typer.Typer()
group = typer.Typer(invoke_without_command=True)


@group.callback(epilog="Example: guanaco alerts --json | jq '.firing[].name'")
def alerts(context: typer.Context, as_json: AsJson = False) -> None:
    """Show which alerts fire, what each compares, and the last messages (admin)."""
    if context.invoked_subcommand is not None:
        return
    with connect() as client:
        found = client.alerts()
    if as_json:
        console.json(found)
    else:
        _print_alerts(found)


@group.command("test", epilog="Example: guanaco alerts test")
def send_test(as_json: AsJson = False) -> None:
    """Send a test to the operator's webhook, and say how it went (admin)."""
    with connect() as client:
        report_test(
            client.test_alerts(),
            lambda: client.alerts().messages,
            shown_by="guanaco alerts",
            as_json=as_json,
        )


@app.command(epilog="Example: guanaco slo --json | jq .budget_left")
def slo(as_json: AsJson = False) -> None:
    """Show the service level and its error budget (admin)."""
    with connect() as client:
        level = client.service_level()
    if as_json:
        console.json(level)
    else:
        _print_level(level)


def _print_alerts(found: Alerts) -> None:
    since = {one.name: words.moment(one.began_at) for one in found.firing}
    console.table(
        ("alert", "fires since", "now>", "limit or a week ago>", "what it says"),
        [
            (one.name, since.get(one.name, ""), one.value, one.compared, one.sentence)
            for one in found.checks
        ],
    )
    if found.ended:
        console.table(
            ("ended within 7 days", "from", "to"),
            [
                (one.name, words.moment(one.began_at), words.moment(one.ended_at))
                for one in found.ended
            ],
        )
    if found.messages:
        console.table(
            ("message", "about", "written", "state", "tries>", "last result"),
            [
                (one.kind, one.alert, words.moment(one.created_at), one.state, one.attempts, one.last_result)
                for one in found.messages
            ],
        )  # fmt: skip
    for one in found.firing:
        if one.name == "no_worker":
            console.warn(one.sentence)
    count = len(found.firing)
    console.say(f"{count} alert{'s' * (count != 1)} fire{'s' * (count == 1)}.")


def _print_level(level: ServiceLevel) -> None:
    if level.budget_left is None:
        console.line(f"target {level.target:.4%}; no reply within 30 days")
    else:
        state = (
            f"{level.budget_left:.0%} is left"
            if level.budget_left >= 0
            else f"it is used up {1 - level.budget_left:,.1f} times"
        )
        console.line(
            f"target {level.target:.4%}; the error budget of 30 days is {level.budget:,.0f} replies, and {state}"
        )
    console.table(
        ("period", "replies>", "failed>", "came>", "burn rate>"),
        [
            (
                window.name,
                f"{window.answered + window.failed:,}",
                f"{window.failed:,}",
                "" if window.availability is None else f"{window.availability:.3%}",
                "" if window.burn_rate is None else f"{window.burn_rate:,.1f}",
            )
            for window in level.windows
        ],
    )
