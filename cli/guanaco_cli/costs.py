"""`guanaco costs`"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco.errors import InvalidInput
from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson

if TYPE_CHECKING:
    from guanaco.costs import Costs, SubmissionCost

app = typer.Typer()


@app.command(epilog="Example: guanaco costs --month 2026-11")
def costs(
    submission_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Only this submission, since it began.")
    ] = None,
    month: Annotated[
        str | None, typer.Option(metavar="YYYY-MM", help="A calendar month, UTC. [default: this]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What GPUs cost, by developer and submission (admin); of one submission, for its developer."""
    if submission_id is not None and month is not None:
        raise InvalidInput("A submission's cost is since it began, so --month does not go with it.")
    since, until = _month(month) if month else (None, None)
    with connect() as client:
        if submission_id is not None:
            _print(client.cost(submission_id), as_json)
        else:
            _print_all(client.costs(since=since, until=until), as_json)


def _month(text: str) -> tuple[datetime, datetime]:
    try:
        first = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise InvalidInput(f"--month takes a month like 2026-11, and not {text[:20]!r}.") from None
    year, month = (first.year + 1, 1) if first.month == 12 else (first.year, first.month + 1)
    return first, first.replace(year=year, month=month)


def _print(cost: SubmissionCost, as_json: bool) -> None:
    if as_json:
        console.json(cost)
        return
    console.line(
        f"{cost.submission_id}: {cost.gpu_hours:,.1f} GPU hours, {cost.cost:,.2f} {cost.currency}"
        f" since {words.moment(cost.since)}; {cost.gpus_now} GPUs now"
    )


def _print_all(found: Costs, as_json: bool) -> None:
    if as_json:
        console.json(found)
        return
    console.line(
        f"{found.gpu_hours:,.1f} GPU hours, {found.cost:,.2f} {found.currency},"
        f" {words.moment(found.since)} to {words.moment(found.until)}"
    )
    console.table(
        ("developer", "GPU hours>", f"{found.currency}>", "budget>", "used>"),
        [
            (
                one.developer,
                f"{one.gpu_hours:,.1f}",
                f"{one.cost:,.2f}",
                "" if one.budget is None else f"{one.budget:,.2f}",
                words.percent(one.cost / one.budget) if one.budget else "",
            )
            for one in found.developers
        ],
    )
    console.table(
        ("submission", "developer", "GPU hours>", f"{found.currency}>", "GPUs now>"),
        [
            (
                one.submission_id,
                one.developer,
                f"{one.gpu_hours:,.1f}",
                f"{one.cost:,.2f}",
                one.gpus_now,
            )
            for one in found.submissions
        ],
    )
