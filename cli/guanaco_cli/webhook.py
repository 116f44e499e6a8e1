"""`guanaco webhook`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, Yes
from guanaco_cli.sending import report_test

if TYPE_CHECKING:
    from guanaco.webhooks import Webhook

app = typer.Typer(no_args_is_help=True)


@app.command("set", epilog="Example: guanaco webhook set https://example.org/guanaco --every 50")
def set_webhook(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to POST to; https.")],
    every: Annotated[
        int | None,
        typer.Option(min=1, help="Also after each N ratings. [default: none]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a POST to your server about your submissions' events.

    Events are: deployed, failed, and the first rating.
    """
    with connect() as client:
        made = client.set_webhook(url, feedback_every=every)
    if as_json:
        console.json(made)
    elif made.secret is None:
        console.say(f"Your webhook goes to {made.url} now; its secret is the same.")
    else:
        console.line(made.secret)
        console.say("This secret, which signs every delivery, is shown only now.")


@app.command(epilog="Example: guanaco webhook show --json | jq '.deliveries[0]'")
def show(as_json: AsJson = False) -> None:
    """Show your webhook and its last deliveries."""
    with connect() as client:
        found = client.webhook()
    if as_json:
        console.json(found)
        return
    console.line(f"url      {found.url}")
    console.line(f"tells    {_tells(found)}")
    if found.old_secret_until is not None:
        console.line(f"rotated  the old secret signs until {words.moment(found.old_secret_until)}")
    console.table(
        ("when", "event", "submission", "state", "tries>", "last result", "next try"),
        [
            (
                words.moment(one.created_at),
                one.event,
                one.submission_id,
                one.state,
                one.attempts,
                one.last_result,
                words.moment(one.next_attempt_at),
            )
            for one in found.deliveries
        ],
    )


@app.command("test", epilog="Example: guanaco webhook test")
def send_test(as_json: AsJson = False) -> None:
    """Send a test, and say how it went."""
    with connect() as client:
        report_test(
            client.test_webhook(),
            lambda: client.webhook().deliveries,
            shown_by="guanaco webhook show",
            as_json=as_json,
        )


@app.command(epilog="Example: guanaco webhook rotate")
def rotate(as_json: AsJson = False) -> None:
    """Make a new secret; for a day the old one signs too."""
    with connect() as client:
        made = client.rotate_webhook_secret()
    if as_json:
        console.json(made)
        return
    console.line(made.secret or "")
    console.say(f"Until {words.moment(made.old_secret_until)} the old secret signs too.")


@app.command(epilog="Example: guanaco webhook remove --yes")
def remove(yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove your webhook and its secret: nothing more is sent."""
    console.confirm("Remove your webhook, and its secret?", yes=yes)
    with connect() as client:
        removed = client.remove_webhook()
    if as_json:
        console.json(removed)
    else:
        console.say(f"Nothing goes to {removed.url} any more.")


def _tells(found: Webhook) -> str:
    events = "deployed, failed, first rating"
    return events + (f", every {found.feedback_every} ratings" if found.feedback_every else "")
