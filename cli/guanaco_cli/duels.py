"""`guanaco duels`: two replies to one message, the votes on them, and what came of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from guanaco.errors import NotFound
from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import DIM, console
from guanaco_cli.options import AsJson, SubmissionId

if TYPE_CHECKING:
    from guanaco.duels import BattleReply, DuelScore, RegenerationScore, RivalReplay

app = typer.Typer(no_args_is_help=True)

ConversationId = Annotated[
    str, typer.Argument(metavar="ID", help="The conversation's id, like conv_….")
]
BattleId = Annotated[str, typer.Argument(metavar="BATTLE", help="The battle's id, like battle_….")]
Outcome = Literal["a", "b", "tie", "both_bad"]
Side = Literal["a", "b"]


@app.command(epilog='Example: guanaco duels battle conv_… "Who are you?"')
def battle(
    conversation_id: ConversationId,
    content: Annotated[str, typer.Argument(metavar="TEXT", help="What the user says.")],
    as_json: AsJson = False,
) -> None:
    """Send a message as the user, and print the two replies."""
    with connect() as client:
        found = client.battle(conversation_id, content)
    if as_json:
        console.json(found)
        return
    _print_replies(found.a, found.b)
    if found.battle_id is None:
        console.say("Only one submission could answer: there is nothing to vote on.")
    else:
        console.line(found.battle_id, style=DIM)
        console.say(f"`guanaco duels vote {conversation_id} {found.battle_id} a` votes.")


@app.command(epilog="Example: guanaco duels vote conv_… battle_… a")
def vote(
    conversation_id: ConversationId,
    battle_id: BattleId,
    outcome: Annotated[Outcome, typer.Argument(help="The better reply.")],
    continue_from: Annotated[
        Side | None, typer.Option(help="Go on with this reply. [default: the better one]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which reply is better, or change that within a day."""
    with connect() as client:
        voted = client.vote_on_battle(
            conversation_id, battle_id, outcome, continue_from=continue_from
        )
    if as_json:
        console.json(voted)
    else:
        console.say(f"Voted {voted.outcome}; the conversation goes on with {voted.continues_from}.")


@app.command("list", epilog="Example: guanaco duels list conv_…")
def list_battles(conversation_id: ConversationId, as_json: AsJson = False) -> None:
    """List the battles of a conversation."""
    with connect() as client:
        found = client.battles(conversation_id)
    if as_json:
        console.json(found)
        return
    console.table(
        ("id", "vote", "goes on with", "a", "b"),
        [
            (
                one.battle_id,
                one.outcome or "",
                one.continues_from,
                _shortened(one.a.content),
                _shortened(one.b.content),
            )
            for one in found
        ],
    )


@app.command(epilog="Example: guanaco duels show org-model_v1")
def show(
    submission_id: SubmissionId,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Older ones: what a page ended with.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show your submission's duels; the other side is anonymous."""
    with connect() as client:
        page = client.duels(submission_id, cursor=cursor)
    if as_json:
        console.json(page)
        return
    console.line(_score(page.score))
    console.table(
        ("result", "its reply", "the other reply"),
        [(one.result, _shortened(one.reply), _shortened(one.other_reply)) for one in page.items],
    )
    if page.next_cursor is not None:
        console.say(f"`--cursor {page.next_cursor}` shows older ones.")


@app.command(epilog="Example: guanaco duels pairs open")
def pairs(
    competition_id: Annotated[str, typer.Argument(metavar="ID", help="The competition's id.")],
    as_json: AsJson = False,
) -> None:
    """Show the results of each pair of a competition (admin)."""
    with connect() as client:
        found = client.duels_of_pairs(competition_id)
    if as_json:
        console.json(found)
        return
    console.table(
        ("first", "second", "the first one's results"),
        [(one.first, one.second, _score(one.score)) for one in found],
    )


@app.command(epilog="Example: guanaco duels rival conv_… battle_…")
def rival(
    conversation_id: ConversationId,
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="[BATTLE|REGENERATION]",
            help="The id of one, like battle_… or regeneration_…. [default: all of the conversation]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how rivals were chosen, and by what chance (admin).

    These are the rivals of battles and of compared regenerations. Each choice is made again
    from what was recorded. Exits 1 if one differs."""
    with connect() as client:
        if which is not None and not which.startswith("regeneration_"):
            found = [client.rival(conversation_id, which)]
        else:
            found = client.rivals(conversation_id)
    if which is not None:
        found = [one for one in found if which in (one.battle_id, one.regeneration_id)]
        if not found:
            raise NotFound(
                f"The conversation {conversation_id} has no compared regeneration {which}.",
                hint=f"`guanaco duels rival {conversation_id}` shows all of it.",
            )
    if as_json:
        console.json(found if which is None else found[0])
    else:
        for one in found:
            _print_rival(one)
        if not found:
            console.say("This conversation has no battle and no compared regeneration.")
    if any(one.is_same is False for one in found):
        raise typer.Exit(1)


def _print_rival(found: RivalReplay) -> None:
    rows = [("competition", found.competition), ("own", found.own), ("rival", found.rival)]
    if found.drawn is not None:
        rows.append(("the user got the reply of", found.drawn))
    decision = found.decision
    if decision is not None:
        rows += [
            ("seed", str(decision.seed)),
            ("snapshot", decision.snapshot),
            ("entries", "" if found.entries is None else str(found.entries)),
            ("met before", " ".join(decision.seen)),
            ("no longer counts", " ".join(decision.spent)),
            ("full or away", " ".join(decision.barred)),
            ("chance", "" if found.chance is None else words.percent(found.chance)),
            ("made again", found.replayed or ""),
        ]
    console.table(("", found.battle_id or found.regeneration_id or ""), rows)
    if decision is None:
        console.say("Nothing was recorded of the choice: its competition had no seed.")
    elif found.is_same is None and found.entries is not None:
        console.say("It cannot be made again: its rule is of a newer version of the platform.")
    elif found.is_same is None:
        console.say(
            "It cannot be made again: its snapshot was not used for 30 days and is deleted."
        )
    else:
        console.say("The same." if found.is_same else "Another one: the choice cannot be trusted.")


@app.command(epilog="Example: guanaco duels regenerations open")
def regenerations(
    competition_id: Annotated[str, typer.Argument(metavar="ID", help="The competition's id.")],
    as_json: AsJson = False,
) -> None:
    """Show which regenerated replies are kept, by pair (admin)."""
    with connect() as client:
        found = client.regenerations_of_pairs(competition_id)
    if as_json:
        console.json(found)
        return
    console.table(
        (
            "first",
            "second",
            "in the first one's chats",
            "in the second one's",
            "the first leads by",
        ),
        [
            (
                one.first,
                one.second,
                _kept(one.in_firsts),
                _kept(one.in_seconds),
                _points(one.lead, one.low, one.high),
            )
            for one in found
        ],
    )


def _kept(score: RegenerationScore) -> str:
    return f"kept: own {score.own_kept} of {score.own_total}, other {score.other_kept} of {score.other_total}"


def _points(value: float | None, low: float | None, high: float | None) -> str:
    if value is None or low is None or high is None:
        return "unknown"
    return f"{100 * value:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"


def _score(score: DuelScore) -> str:
    ties = f"{score.tie} ties, {score.both_bad} both bad"
    counts = f"{score.won} won, {score.lost} lost, {ties}"
    if score.low is None or score.high is None:
        return counts
    return f"{counts}; wins {score.low:.0%} to {score.high:.0%} of those with a winner"


def _print_replies(a: BattleReply | None, b: BattleReply | None) -> None:
    for side, reply in (("A", a), ("B", b)):
        if reply is not None:
            console.line(f"{side}: {reply.content}")


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…"


SHOWN_CHARS = 40
