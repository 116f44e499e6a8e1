"""`guanaco competitions`, `votes` and `assignment`: the rules, the ratings that they leave out, and one choice made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, RequestFile, Yes, read_request

if TYPE_CHECKING:
    from guanaco.competitions import (
        AskRule,
        AssignmentReplay,
        AssignmentRule,
        Competition,
        DuelRule,
        EntryRule,
    )
    from guanaco.leaderboard import SeasonCheck, VoteFlag

app = typer.Typer(no_args_is_help=True)
votes_app = typer.Typer(no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="The competition's id.")]


@app.command("list", epilog="Example: guanaco competitions list --json")
def list_competitions(as_json: AsJson = False) -> None:
    """List every competition and its window. Needs no key."""
    with connect() as client:
        competitions = client.competitions()
    if as_json:
        console.json(competitions)
        return
    console.table(
        ("id", "name", "starts", "ends", "assignment", "ranking", "frozen"),
        [
            (
                one.id,
                one.name,
                words.moment(one.starts_at),
                words.moment(one.ends_at),
                one.assignment.kind,
                one.ranking,
                words.moment(one.frozen_at),
            )
            for one in competitions
        ],
    )


@app.command(epilog="Example: guanaco competitions show autumn")
def show(competition_id: Id, as_json: AsJson = False) -> None:
    """Show one competition with its rules. Needs no key."""
    with connect() as client:
        competition = client.competition(competition_id)
    if as_json:
        console.json(competition)
        return
    console.line(f"id          {competition.id}")
    console.line(f"name        {competition.name}")
    console.line(f"window      {_window(competition)}")
    console.line(f"entry       {_entry(competition.entry)}")
    console.line(f"assignment  {_assignment(competition.assignment)}")
    console.line(f"ranking     {competition.ranking}")
    if competition.duels.battles or competition.duels.counted:
        console.line(f"duels       {_duels(competition.duels)}")
    if competition.ask is not None:
        console.line(f"asks        {_ask(competition.ask)}")
    if competition.feedback_after is not None:
        console.line(f"asks        after {words.counted(competition.feedback_after, 'message')}")
    if memory := competition.memory.model_dump(exclude_defaults=True):
        given = ", ".join(f"{name} {value}" for name, value in memory.items())
        console.line(f"memory      {given}")
    if competition.retention_days is not None:
        console.line(f"kept        {competition.retention_days} days")
    if competition.queue is not None:
        console.line(f"queue       {competition.queue}")
    if competition.frozen_at is not None:
        console.line(f"frozen      {words.moment(competition.frozen_at)}")


@app.command(epilog="Example: guanaco competitions put autumn autumn.yaml")
def put(competition_id: Id, file: RequestFile, as_json: AsJson = False) -> None:
    """Make a competition from a file, or replace its rules (admin).

    docs/routing.md describes the file.
    """
    from guanaco.competitions import CompetitionRequest

    request = read_request(file, CompetitionRequest)
    with connect() as client:
        competition = client.put_competition(competition_id, request)
    if as_json:
        console.json(competition)
    else:
        console.say(f"{competition.id} runs {_window(competition)}, ranked by {request.ranking}.")


@app.command(epilog="Example: guanaco competitions freeze autumn --yes")
def freeze(
    competition_id: Id,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """End a competition for good, and rank it (admin)."""
    console.confirm(f"End {competition_id} and rank it for good? It cannot be undone.", yes=yes)
    with connect() as client:
        season = client.freeze(competition_id)
    if as_json:
        console.json(season)
        return
    console.line(season.sha256)
    console.say(
        f"{season.competition} was frozen at {words.moment(season.frozen_at)}; this is its ranking's SHA-256."
    )


@app.command(epilog="Example: guanaco competitions recompute autumn")
def recompute(competition_id: Id, as_json: AsJson = False) -> None:
    """Rank a frozen competition again, and compare (admin).

    The exit status is 1 if another ranking comes out.
    """
    with connect() as client:
        check = client.recompute(competition_id)
    if as_json:
        console.json(check)
    else:
        console.line(f"recorded    {check.sha256}")
        console.line(f"recomputed  {check.recomputed_sha256}")
        console.line("the same" if check.is_same else "not the same")
        if not check.is_same:
            _explain(check)
    if not check.is_same:
        raise typer.Exit(1)


def _explain(check: SeasonCheck) -> None:
    for reason in check.reasons:
        console.say(reason)
    if not check.reasons:
        console.say(
            "No erasure or deletion since the freeze is known. Ratings were then changed in the database itself, or a release ranks otherwise."
        )
        console.say(
            "`guanaco backup verify BACKUP` ranks again from a backup: see whether one from before has the recorded SHA-256."
        )


@app.command(epilog="Example: guanaco competitions uniform autumn")
def uniform(competition_id: Id, as_json: AsJson = False) -> None:
    """Show what uniform assignment would have shown (admin).

    From the recorded chance of each assignment, so the competition needs a seed. The interval holds in the limit of many users.
    """
    with connect() as client:
        found = client.uniform_ratios(competition_id)
    if as_json:
        console.json(found)
        return
    console.table(
        ("submission", "could get>", "rated>", "observed>", "uniform>", "95 % interval>"),
        [
            (
                row.submission_id,
                row.conversations,
                row.rated,
                words.percent(row.observed),
                words.percent(row.ratio),
                "" if row.low is None or row.high is None else f"{row.low:.0%} to {row.high:.0%}",
            )
            for row in found.rows
        ],
    )
    if not found.conversations:
        console.say(
            "No assignment was recorded: the competition has no seed, or no conversation since."
        )
    elif found.unknown:
        console.say(
            f"{found.unknown} older conversations are left out: their snapshots are deleted."
        )


@votes_app.command(epilog="Example: guanaco votes flags --competition autumn")
def flags(
    competition: Annotated[
        str | None, typer.Option(metavar="ID", help="Only of this competition. [default: all]")
    ] = None,
    submission: Annotated[
        str | None, typer.Option(metavar="ID", help="Only of this submission. [default: all]")
    ] = None,
    duels: Annotated[
        bool | None,
        typer.Option("--duels/--ratings", help="Only duels, or only ratings. [default: both]"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Flags at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List ratings and duels that rules left out (admin).

    The newest come first.
    """
    with connect() as client:
        found = client.vote_flags(
            competition=competition, submission_id=submission, duels=duels, limit=limit
        )
    if as_json:
        console.json(found)
        return
    console.table(
        ("when", "rating or duel", "submission", "competition", "rule", "evidence", "state"),
        [
            (
                words.moment(flag.at),
                flag.feedback_id,
                flag.submission_id
                if flag.rival_id is None
                else f"{flag.submission_id}, with {flag.rival_id}",
                flag.competition,
                flag.rule,
                flag.evidence,
                _state(flag),
            )
            for flag in found
        ],
    )
    if not found:
        what = {None: "rating or duel", True: "duel", False: "rating"}[duels]
        console.say(f"No {what} was left out{_of(competition, submission)}.")


def _of(competition: str | None, submission: str | None) -> str:
    parts = [f" of the submission {submission}"] if submission else []
    return "".join([*parts, *([f" in the competition {competition}"] if competition else [])])


@votes_app.command(epilog="Example: guanaco votes patterns --competition autumn")
def patterns(
    competition: Annotated[str, typer.Option(metavar="ID", help="The competition.")] = "open",
    duels: Annotated[
        bool, typer.Option("--duels", help="Compare the votes on battles, not thumbs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find votes by another kind of users than others' (admin).

    Votes by users who voted on one submission alone are compared with the others'. The farthest from what the other submissions
    lead one to expect comes first. It is a hint, and leaves nothing out.
    """
    with connect() as client:
        found = client.vote_patterns(competition=competition, duels=duels)
    if as_json:
        console.json(found)
        return
    console.table(
        ("submission", "no other: won>", "of>", "others too: won>", "of>", "excess>", "z>", "")
        if duels
        else ("submission", "one vote: up>", "of>", "several: up>", "of>", "excess>", "z>", ""),
        [
            (
                one.submission_id,
                one.narrow_up,
                one.narrow_up + one.narrow_down,
                one.broad_up,
                one.broad_up + one.broad_down,
                "" if one.excess is None else f"{one.excess:+.1%}",
                "" if one.z is None else f"{one.z:+.1f}",
                "look at it" if one.is_suspicious else "",
            )
            for one in found
        ],
    )
    if not found:
        votes = "vote on a battle" if duels else "vote"
        console.say(f"None: the competition {competition} has no {votes} to compare yet.")


@votes_app.command(epilog="Example: guanaco votes allow fb_2a71c0de")
def allow(
    feedback_id: Annotated[
        str, typer.Argument(metavar="ID", help="The rating's id, or the battle's.")
    ],
    as_json: AsJson = False,
) -> None:
    """Let a rating or duel count, whatever rule left it out (admin)."""
    with connect() as client:
        allowed = client.allow_vote(feedback_id)
    if as_json:
        console.json(allowed)
    else:
        rules = ", ".join(flag.rule for flag in allowed)
        console.say(f"{feedback_id} counts from now on; it was left out by: {rules}.")


@votes_app.command(epilog="Example: guanaco votes hide-quote fb_2a71c0de")
def hide_quote(
    feedback_id: Annotated[str, typer.Argument(metavar="FEEDBACK_ID", help="The rating's id.")],
) -> None:
    """Show a rating's words no longer on the public page (admin)."""
    with connect() as client:
        client.hide_quote(feedback_id)
    console.say(f"The words of {feedback_id} are quoted no longer. The rating still counts.")


def _window(competition: Competition) -> str:
    start = f"from {words.moment(competition.starts_at)}"
    if competition.ends_at is None:
        return f"{start} on"
    return f"{start} until {words.moment(competition.ends_at)}"


def _entry(rule: EntryRule) -> str:
    limits = [f"at most {words.count(rule.max_parameters)} weights"] if rule.max_parameters else []
    limits += [f"a developer's newest {rule.per_developer}"] if rule.per_developer else []
    limits += ["submitted within the window"] if rule.submitted_within else []
    return ", ".join(limits) or "every submission"


def _assignment(rule: AssignmentRule) -> str:
    changed = rule.model_dump(exclude_defaults=True, exclude={"kind", "weights"})
    parts = [f"{name} {value}" for name, value in changed.items()]
    parts += [f"{name} weighs {weight:g}" for name, weight in rule.weights.items()]
    return ", ".join([rule.kind, *parts])


def _duels(rule: DuelRule) -> str:
    parts = ["battles"] if rule.battles else ["no battles"]
    parts += ["counted"] if rule.counted else []
    return ", ".join([*parts, *(["style control"] if rule.style_control else [])])


def _ask(rule: AskRule) -> str:
    return f"{rule.share:.0%} of users after {rule.after} messages, who may take {rule.answer_minutes} minutes"


def _state(flag: VoteFlag) -> str:
    if flag.allowed_at is not None:
        return f"allowed by {flag.allowed_by}"
    return "left out" if flag.lifted_at is None else "lifted"


assignment_app = typer.Typer()


@assignment_app.command(epilog="Example: guanaco assignment conv_0a1b2c")
def assignment(
    conversation_id: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help="The conversation's id.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show how a conversation got its submission (admin).

    The choice is made again from what was recorded. Exits 1 if it differs."""
    with connect() as client:
        found = client.assignment(conversation_id)
    if as_json:
        console.json(found)
    else:
        _print_replay(found)
    if found.is_same is False:
        raise typer.Exit(1)


def _print_replay(found: AssignmentReplay) -> None:
    decision = found.decision
    rows = [("competition", found.competition), ("submission", found.submission_id)]
    if decision is not None:
        rows += [
            ("seed", str(decision.seed)),
            ("snapshot", decision.snapshot),
            ("entries", "" if found.entries is None else str(found.entries)),
            ("had before", " ".join(decision.seen)),
            ("full or away", " ".join(decision.barred)),
            ("chance", "" if found.chance is None else words.percent(found.chance)),
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
