"""`guanaco feedback`"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from guanaco_cli import bookmarks, words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, SubmissionId

if TYPE_CHECKING:
    from guanaco.client import Client
    from guanaco.feedback import Feedback
    from guanaco.feedback_methods import Filters

app = typer.Typer()

TIME_FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"]

Since = Annotated[
    datetime | None, typer.Option(formats=TIME_FORMATS, help="Rated then or later; local time.")
]
Until = Annotated[
    datetime | None, typer.Option(formats=TIME_FORMATS, help="Rated before; local time.")
]
Rating = Annotated[Literal["up", "down"] | None, typer.Option(help="Only these thumbs.")]
Search = Annotated[
    str | None, typer.Option(metavar="TEXT", help="In the rating's words or a message.")
]
Bot = Annotated[str | None, typer.Option(metavar="NAME", help="Only with this bot.")]
User = Annotated[str | None, typer.Option(metavar="PSEUDONYM", help="Only of this user.")]
MinLength = Annotated[int | None, typer.Option(min=0, help="Messages at least.")]
MaxLength = Annotated[int | None, typer.Option(min=0, help="Messages at most.")]


@app.command(
    epilog="Example: guanaco feedback org-model_v1 --rating down --since 2026-11-01 --read"
)
def feedback(
    submission_id: SubmissionId,
    rating: Rating = None,
    search: Search = None,
    bot: Bot = None,
    user: User = None,
    since: Since = None,
    until: Until = None,
    min_length: MinLength = None,
    max_length: MaxLength = None,
    is_new: Annotated[
        bool,
        typer.Option("--new", help="Only what is new since the last time, with these filters."),
    ] = False,
    is_read: Annotated[
        bool, typer.Option("--read", help="Page through the conversations, full screen.")
    ] = False,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write FILE.jsonl, .csv or .parquet.")
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV, with the conversations.")
    ] = False,
) -> None:
    """What people thought of your submission, oldest first."""
    if sum((as_json, as_csv, is_read, export is not None)) > 1:
        raise typer.BadParameter("choose one of --json, --csv, --read and --export, not both.")
    filters: Filters = {
        "rating": rating,
        "search": search,
        "bot": bot,
        "user": user,
        "since": _local(since),
        "until": _local(until),
        "min_length": min_length,
        "max_length": max_length,
    }
    with connect() as client:
        url = client.transport.url
        cursor = bookmarks.last_cursor(url, submission_id, filters) if is_new else None
        if export is not None:
            last = client.export_feedback(submission_id, export, cursor=cursor, **filters)
            if is_new:
                bookmarks.keep_cursor(url, submission_id, filters, last)
            console.say(f"Wrote {export}.")
            return
        found = _walk(client, submission_id, cursor, filters, is_new)
        if is_read:
            _read(submission_id, found)
        elif as_csv:
            from guanaco.feedback_csv import CSV_COLUMNS, csv_row

            console.csv(CSV_COLUMNS, map(csv_row, found))
        elif as_json:
            console.json(list(found))
        else:
            print_feedback(list(found))


def _local(moment: datetime | None) -> datetime | None:
    """Without a time zone it is this machine's."""
    return moment.astimezone() if moment is not None else None


def _walk(
    client: Client, submission_id: str, cursor: str | None, filters: Filters, is_kept: bool
) -> Iterator[Feedback]:
    """Every rating; where it ended is kept once all of them were taken."""
    last = cursor
    for page in client.feedback_pages(submission_id, cursor=cursor, **filters):
        yield from page.items
        last = page.next_cursor or last
    if is_kept and last is not None:
        bookmarks.keep_cursor(client.transport.url, submission_id, filters, last)


def _read(submission_id: str, found: Iterator[Feedback]) -> None:
    from guanaco_cli import reader

    if not reader.is_possible():
        raise typer.BadParameter("--read needs a terminal.")
    reader.read(submission_id, found)


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
