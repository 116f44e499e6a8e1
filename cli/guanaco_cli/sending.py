"""A test message of a webhook: it is waited for, and its result is the exit status."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import typer

from guanaco_cli.console import console

if TYPE_CHECKING:
    from guanaco.alerts import AlertMessage
    from guanaco.webhooks import Delivery

WAIT_S = 20.0
POLL_S = 0.5
IN_WORDS = {
    "delivered": "It was delivered",
    "pending": "It was not taken, and is tried again",
    "given_up": "It was not taken, and is not tried again",
}

Sent = TypeVar("Sent", "AlertMessage", "Delivery")


def report_test(
    sent: Sent, list_sent: Callable[[], Iterable[Sent]], *, shown_by: str, as_json: bool
) -> None:
    """Say how the test went once it was tried, or that nobody has sent it yet after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while not sent.attempts and time.monotonic() < deadline:
        time.sleep(POLL_S)
        sent = next((one for one in list_sent() if one.id == sent.id), sent)
    if as_json:
        console.json(sent)
    elif not sent.attempts:
        console.say(f"It waits to be sent: `{shown_by}` shows how it went.")
    else:
        console.line(f"{IN_WORDS.get(sent.state, sent.state)}: {sent.last_result}")
    if sent.attempts and sent.state != "delivered":
        raise typer.Exit(1)
