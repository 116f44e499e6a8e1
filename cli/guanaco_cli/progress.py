"""Follow a submission through the pipeline: log lines above, stages with their times below, and how it ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import typer

from guanaco_cli import words
from guanaco_cli.console import GREEN, RED, YELLOW, console
from guanaco_cli.untrusted import clean_line

if TYPE_CHECKING:
    from datetime import datetime

    from rich.live import Live
    from rich.table import Table

    from guanaco.client import Client
    from guanaco.submissions import Rollout, Stage, Submission, SubmissionEvent

LEVEL_STYLES = {"warning": YELLOW, "error": RED}
RICH_STYLES = {"warning": "yellow", "error": "red", "debug": "dim"}
GLYPHS = {"done": ("✓", "green"), "failed": ("✗", "red"), "cancelled": ("-", "yellow")}
FRAMES_PER_S = 8


class Progress(Protocol):
    def show(self, event: SubmissionEvent) -> None: ...


@contextmanager
def stage_progress(*, is_verbose: bool) -> Iterator[Progress]:
    """Show a live display on a terminal, otherwise one line for each event; both on stderr."""
    if not sys.stderr.isatty():
        yield LineProgress(is_verbose)
        return
    from rich.live import Live

    progress = LiveProgress(is_verbose)
    with Live(
        console=console.rich(is_talk=True),
        get_renderable=progress.render,
        refresh_per_second=FRAMES_PER_S,
    ) as live:
        progress.attach(live)
        yield progress


def is_shown(event: SubmissionEvent, is_verbose: bool) -> bool:
    return is_verbose or event.level != "debug"


class LineProgress:
    def __init__(self, is_verbose: bool) -> None:
        self._is_verbose = is_verbose

    def show(self, event: SubmissionEvent) -> None:
        if event.kind != "status" and is_shown(event, self._is_verbose):
            line = f"{words.clock(event.at)} {words.stage_column(event.stage)} {clean_line(event.message)}"
            console.say(line, style=LEVEL_STYLES.get(event.level))


@dataclass
class StageRow:
    """``outcome`` is None while it runs."""

    started_at: datetime
    outcome: str | None = None
    duration_s: float | None = None


class LiveProgress:
    def __init__(self, is_verbose: bool) -> None:
        from rich.spinner import Spinner

        self._is_verbose = is_verbose
        self._rows: dict[Stage, StageRow] = {}
        self._live: Live | None = None
        self._spinner = Spinner("dots", style="cyan")

    def attach(self, live: Live) -> None:
        self._live = live

    def show(self, event: SubmissionEvent) -> None:
        if event.kind == "stage" and event.stage is not None:
            self._note(event.stage, event)
        elif event.kind == "log" and is_shown(event, self._is_verbose) and self._live is not None:
            from rich.text import Text

            line = Text(clean_line(event.message), style=RICH_STYLES.get(event.level, ""))
            self._live.console.print(line)

    def render(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        from guanaco.submissions import Stage

        table = Table.grid(padding=(0, 1))
        for stage in (*Stage, *(stage for stage in self._rows if stage.is_unknown)):
            row = self._rows.get(stage)
            if row is None:
                table.add_row(Text("·", style="dim"), Text(stage, style="dim"), "")
            elif row.outcome is None:
                elapsed = words.seconds(words.since(row.started_at))
                table.add_row(self._spinner, Text(stage), elapsed)
            else:
                glyph, style = GLYPHS.get(row.outcome, ("?", ""))
                table.add_row(Text(glyph, style=style), Text(stage), words.seconds(row.duration_s))
        return table

    def _note(self, stage: Stage, event: SubmissionEvent) -> None:
        outcome = event.data.get("outcome")
        if outcome is None:
            self._forget_from(stage)
            self._rows[stage] = StageRow(event.at)
        elif stage in self._rows:
            self._rows[stage].outcome = str(outcome)
            self._rows[stage].duration_s = event.data.get("duration_s")

    def _forget_from(self, stage: Stage) -> None:
        """Drop what an earlier run showed: a stage that begins ends all that is known of later ones."""
        from guanaco.submissions import Stage

        order = list(Stage)
        if stage in order:
            earlier = order[: order.index(stage)]
            self._rows = {known: row for known, row in self._rows.items() if known in earlier}


def watch(
    client: Client, submission_id: str, *, is_verbose: bool = False, since: datetime | None = None
) -> Submission:
    """Show the stages until the submission is no longer in progress. Ctrl-C leaves the remote work running."""
    try:
        with stage_progress(is_verbose=is_verbose) as progress:

            def show(event: SubmissionEvent) -> None:
                if since is None or event.at >= since:
                    progress.show(event)

            return client.wait(submission_id, show)
    except KeyboardInterrupt:
        console.say(f"It goes on without you. `guanaco logs -f {submission_id}` follows it.")
        raise typer.Exit(130) from None


def conclude(submission: Submission, *, as_json: bool) -> None:
    """Print the submission (its id alone, or JSON); exit status 1 if it has failed or was cancelled."""
    if as_json:
        console.json(submission)
    else:
        console.line(submission.id)
    _say_outcome(submission)


def _say_outcome(submission: Submission) -> None:
    from guanaco.submissions import Status

    if submission.failure is not None:
        explain_failure(submission)
    elif submission.rollout is not None and _say_rollout(submission, submission.rollout):
        return
    elif submission.status is Status.CANCELLED:
        console.error(f"{submission.id} was cancelled.")
    elif submission.status.is_unknown:
        console.error(
            f"{submission.id} is {words.spoken(submission.status)}, which this version of guanaco does not know.",
            "Upgrade it: pip install --upgrade guanaco-platform",
        )
    elif submission.status.is_in_progress:
        console.say(
            f"It is {words.spoken(submission.status)}. `guanaco logs -f {submission.id}` follows it."
        )
        return
    else:
        console.say(f"{submission.id} is {words.spoken(submission.status)}.", style=GREEN)
        return
    raise typer.Exit(1)


def _say_rollout(submission: Submission, rollout: Rollout) -> bool:
    """Say how the newest redeploy stands; False where it has ended well, or the submission is not served. Exit status 1 if it has not ended well."""
    from guanaco.submissions import RolloutPhase

    if rollout.run != submission.run or not submission.is_served:
        return False
    follow = f"`guanaco logs -f {submission.id}` follows it."
    if rollout.is_canary:
        console.say(
            f"{rollout.share:.1%} of new conversations go to the canary, for {words.seconds(rollout.canary_s or 0)} unless it is worse. "
            f"`guanaco rollback {submission.id}` ends it.",
            style=GREEN,
        )
        return True
    if rollout.phase.is_in_progress:
        console.say(f"{submission.id} is served while its redeploy is {rollout.phase}. {follow}")
        return True
    if rollout.phase is RolloutPhase.CANCELLED:
        console.error(f"The redeploy was cancelled; {submission.id} is served as before.")
        raise typer.Exit(1)
    if rollout.failure is None:
        return False
    failure = rollout.failure
    where = f" in stage {failure.stage}" if failure.stage else ""
    console.error(
        f"The redeploy failed{where}, and {submission.id} is served as before: {failure.detail}",
        failure.hint,
    )
    console.say(f"blame: {failure.blame} ({failure.code})")
    raise typer.Exit(1)


def explain_failure(submission: Submission) -> None:
    """Say why it failed, and who can do something about it."""
    failure = submission.failure
    assert failure is not None
    where = f" in stage {failure.stage}" if failure.stage else ""
    console.error(f"{submission.id} failed{where}: {failure.detail}", failure.hint)
    console.say(f"blame: {failure.blame} ({failure.code})")
