"""`guanaco feedback`"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, SubmissionId

if TYPE_CHECKING:
    from guanaco.feedback import Feedback

app = typer.Typer()

CSV_COLUMNS = (
    "id", "at", "submission_id", "conversation_id", "user", "bot_name", "thumbs_up", "text", "messages"
)  # fmt: skip


@app.command(epilog="Example: guanaco feedback org-model_v1 --csv > feedback.csv")
def feedback(
    submission_id: SubmissionId,
    as_json: AsJson = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV, with the conversations.")
    ] = False,
) -> None:
    """What people thought of your submission, oldest first."""
    if as_json and as_csv:
        raise typer.BadParameter("choose --json or --csv, not both.")
    with connect() as client:
        found = client.feedback(submission_id)
        if as_csv:
            console.csv(CSV_COLUMNS, (_csv_row(one) for one in found))
        elif as_json:
            console.json(list(found))
        else:
            print_feedback(list(found))


def print_feedback(
    found: Iterable[Feedback], *, title: str | None = None, is_talk: bool = False
) -> None:
    rows = [
        (
            words.moment(one.at),
            "up" if one.thumbs_up else "down",
            one.text,
            one.user,
            one.bot_name,
            sum(not message.is_deleted for message in one.messages),
        )
        for one in found
    ]
    console.table(
        ("when", "thumbs", "words", "user", "bot", "messages>"), rows, title=title, is_talk=is_talk
    )
    if not rows:
        console.say("None yet.")


def _csv_row(one: Feedback) -> tuple[object, ...]:
    transcript = "\n".join(
        f"{message.sender}: {message.content}" for message in one.messages if not message.is_deleted
    )
    return (
        one.id,
        one.at.isoformat(),
        one.submission_id,
        one.conversation_id,
        one.user,
        one.bot_name,
        str(one.thumbs_up).lower(),
        one.text,
        transcript,
    )
