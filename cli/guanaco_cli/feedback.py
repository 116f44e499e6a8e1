"""`guanaco feedback`, and the bookmarks that say how far it was read: a file beside the profile."""

from __future__ import annotations

import json
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlencode

import typer

from guanaco.profile import profile_path
from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, SubmissionId

if TYPE_CHECKING:
    from guanaco.client import Client
    from guanaco.feedback import Feedback
    from guanaco.feedback_methods import Filters

app = typer.Typer()

TIME_FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"]


def _read_time(text: str) -> datetime:
    """Read a time; without a time zone it is this machine's."""
    for each in TIME_FORMATS:
        with suppress(ValueError, OverflowError):
            return datetime.strptime(text, each).astimezone()
    raise typer.BadParameter(
        f"{text[:40]!r} is no time. Write it like 2026-11-01, 2026-11-01T09:30:00 or 2026-11-01T09:30:00+01:00."
    )


Since = Annotated[
    datetime | None,
    typer.Option(parser=_read_time, metavar="TIME", help="Rated then or later; local time."),
]
Until = Annotated[
    datetime | None,
    typer.Option(parser=_read_time, metavar="TIME", help="Rated before; local time."),
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
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the newest N ratings.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV, with the conversations.")
    ] = False,
) -> None:
    """Show what people thought of your submission, oldest first."""
    if limit is not None and export is not None:
        raise typer.BadParameter("--export writes all ratings: leave out --limit.")
    if sum((as_json, as_csv, is_read, export is not None)) > 1:
        raise typer.BadParameter("choose one of --json, --csv, --read and --export, not both.")
    filters: Filters = {
        "rating": rating,
        "search": search,
        "bot": bot,
        "user": user,
        "since": since,
        "until": until,
        "min_length": min_length,
        "max_length": max_length,
    }
    with connect() as client:
        url = client.transport.url
        cursor = last_cursor(url, submission_id, filters) if is_new else None
        if export is not None:
            last = client.export_feedback(submission_id, export, cursor=cursor, **filters)
            if is_new:
                keep_cursor(url, submission_id, filters, last)
            console.say(f"Wrote {export}.")
            return
        found = _walk(client, submission_id, cursor, filters, is_new)
        if limit is not None:
            found = iter(deque(found, maxlen=limit))
        if is_read:
            _read(submission_id, found)
        elif as_csv:
            from guanaco.feedback_csv import CSV_COLUMNS, csv_row

            console.csv(CSV_COLUMNS, map(csv_row, found))
        elif as_json:
            console.json(list(found))
        else:
            print_feedback(list(found), nothing=_nothing(filters, is_new))


def _nothing(filters: Filters, is_new: bool) -> str:
    """Say why nothing is shown: no rating at all, none that is new, or none that the options let through."""
    given = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in filters.items()
        if value is not None
    ]
    if given:
        return f"No rating matches {' '.join(given)}{' since the last time' if is_new else ''}."
    return "No new ratings since the last time." if is_new else "None yet."


def _walk(
    client: Client, submission_id: str, cursor: str | None, filters: Filters, is_kept: bool
) -> Iterator[Feedback]:
    """Yield every rating; once all were taken, keep the cursor of the last page."""
    last = cursor
    for page in client.feedback_pages(submission_id, cursor=cursor, **filters):
        yield from page.items
        last = page.next_cursor or last
    if is_kept and last is not None:
        keep_cursor(client.transport.url, submission_id, filters, last)


def _read(submission_id: str, found: Iterator[Feedback]) -> None:
    from guanaco_cli import feedback_reader

    if not feedback_reader.is_possible():
        raise typer.BadParameter("--read needs a terminal.")
    feedback_reader.read(submission_id, found)


def print_feedback(
    found: Iterable[Feedback],
    *,
    title: str | None = None,
    is_talk: bool = False,
    nothing: str = "None yet.",
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
        console.say(nothing)


BOOKMARKS_FILE = "feedback-read.json"


def last_cursor(url: str, submission_id: str, filters: Filters) -> str | None:
    """Return where the last reading with this filter ended; None before the first one, or when the file is broken."""
    cursor = _read_bookmarks().get(_bookmark_key(url, submission_id, filters))
    return cursor if isinstance(cursor, str) else None


def keep_cursor(url: str, submission_id: str, filters: Filters, cursor: str) -> None:
    path = _bookmarks_path()
    cursors = _read_bookmarks() | {_bookmark_key(url, submission_id, filters): cursor}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(cursors, file, indent=2)
    Path(name).replace(path)


def _bookmarks_path() -> Path:
    return profile_path().with_name(BOOKMARKS_FILE)


def _bookmark_key(url: str, submission_id: str, filters: Filters) -> str:
    """Name a bookmark. The filter belongs to it, because what a filter leaves out has not been read."""
    given = {name: value for name, value in sorted(filters.items()) if value is not None}
    return f"{url} {submission_id} {urlencode(given)}".rstrip()


def _read_bookmarks() -> dict[str, object]:
    try:
        found = json.loads(_bookmarks_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
