"""`guanaco assignment`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson

if TYPE_CHECKING:
    from guanaco.assignments import AssignmentReplay

app = typer.Typer()


@app.command(epilog="Example: guanaco assignment conv_0a1b2c")
def assignment(
    conversation_id: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help="The conversation's id.")
    ],
    as_json: AsJson = False,
) -> None:
    """How a conversation got its submission; makes the same choice again (admin). Exits 1 if it differs."""
    with connect() as client:
        found = client.assignment(conversation_id)
    if as_json:
        console.json(found)
    else:
        _print(found)
    if found.is_same is False:
        raise typer.Exit(1)


def _print(found: AssignmentReplay) -> None:
    decision = found.decision
    rows = [("competition", found.competition), ("submission", found.submission_id)]
    if decision is not None:
        rows += [
            ("seed", str(decision.seed)),
            ("snapshot", decision.snapshot),
            ("entries", "" if found.entries is None else str(found.entries)),
            ("had before", " ".join(decision.seen)),
            ("full or away", " ".join(decision.barred)),
            ("made again", found.replayed or ""),
        ]
    console.table(("", found.conversation_id), rows)
    console.say(_verdict(found))


def _verdict(found: AssignmentReplay) -> str:
    if found.decision is None:
        return "Nothing was recorded of the choice: its competition had no seed, or an experiment chose."
    if found.is_same is None:
        return "It cannot be made again: its snapshot was not used for 30 days and is deleted."
    return "The same." if found.is_same else "Another one: the choice cannot be trusted."
