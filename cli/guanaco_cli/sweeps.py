"""`guanaco sweep`: variants of one repo, entered together, and what is done with all of them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import GREEN, console
from guanaco_cli.options import AsJson, HubToken, Yes, read_hub_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from guanaco.client import Client
    from guanaco.submissions import Submission
    from guanaco.sweeps import Sweep, SweepRequest

LOOK_S = 1.0
NOT_SHOWN = ("repo", "revision", "kind", "name")


class SweepGroup(TyperGroup):
    """`guanaco sweep FILE` is short for `guanaco sweep run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = any(word in self.commands for word in args[:1])
        if args and not is_named and args[0] not in ("-h", "--help"):
            args.insert(0, "run")
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


app = typer.Typer(cls=SweepGroup, no_args_is_help=True)


def _complete_sweeps(incomplete: str) -> list[str]:
    try:
        with connect() as client:
            return [one.id for one in client.sweeps() if one.id.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - the person is typing: an error here has no place to go
        return []


SweepId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The sweep's id.", autocompletion=_complete_sweeps),
]
SweepWait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Follow all variants to their end.")
]


@app.command(epilog="Example: guanaco sweep sweep.yaml --dry-run")
def run(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="YAML or JSON (docs/sweeps.md).", dir_okay=False),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the variants, and submit nothing.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Enter it once more, though it was entered before.")
    ] = False,
    hub_token: HubToken = False,
    wait: SweepWait = True,
    as_json: AsJson = False,
) -> None:
    """Enter all variants of a sweep, or none, and follow them. The same file again shows the same sweep."""
    import uuid

    from guanaco.sweeps import load_sweep

    request = load_sweep(file)
    if dry_run:
        _print_variants(request, as_json=as_json)
        return
    with connect() as client:
        sweep = client.submit_sweep(
            request,
            idempotency_key=uuid.uuid4().hex if again else None,
            hub_token=read_hub_token(hub_token),
        )
        console.say(
            f"{sweep.id} has {words.counted(len(sweep.submissions), 'variant')} of {sweep.repo}."
        )
        if wait:
            sweep = _watch(client, sweep)
    _conclude(sweep, as_json=as_json)


@app.command("list", epilog="Example: guanaco sweep list")
def list_sweeps(as_json: AsJson = False) -> None:
    """List your sweeps, newest first."""
    with connect() as client:
        found = client.sweeps()
    if as_json:
        console.json(found)
        return
    console.table(
        ("id", "name", "repo", "variants>", "states", "submitted"),
        [
            (
                one.id,
                one.name,
                one.repo,
                len(one.submissions),
                _states(one),
                words.moment(one.created_at),
            )
            for one in found
        ],
    )
    if not found:
        console.say("No sweeps yet: `guanaco sweep FILE` enters one.")


@app.command(epilog="Example: guanaco sweep show org-model_sweep1 --wait")
def show(
    sweep_id: SweepId,
    wait: Annotated[bool, typer.Option("--wait", help="Follow all variants to their end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a sweep's variants and their states."""
    with connect() as client:
        sweep = client.sweep(sweep_id)
        if wait:
            sweep = _watch(client, sweep)
    if as_json:
        console.json(sweep)
    else:
        console.table(*_table(sweep))
        console.say(_states(sweep))


@app.command(epilog="Example: guanaco sweep cancel org-model_sweep1 --yes")
def cancel(sweep_id: SweepId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Cancel those variants that are in progress."""
    _change(sweep_id, "cancel", lambda client: client.cancel_sweep, yes, as_json)


@app.command(epilog="Example: guanaco sweep deactivate org-model_sweep1 --yes")
def deactivate(sweep_id: SweepId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Send no new conversations to its variants; open ones go on."""
    _change(sweep_id, "deactivate", lambda client: client.deactivate_sweep, yes, as_json)


@app.command(epilog="Example: guanaco sweep reactivate org-model_sweep1")
def reactivate(sweep_id: SweepId, as_json: AsJson = False) -> None:
    """Open those variants that were deactivated."""
    _change(sweep_id, "reactivate", lambda client: client.reactivate_sweep, True, as_json)


@app.command(epilog="Example: guanaco sweep teardown org-model_sweep1 --yes")
def teardown(sweep_id: SweepId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Tear down the served variants; feedback stays readable."""
    _change(sweep_id, "tear down", lambda client: client.teardown_sweep, yes, as_json)


def _change(
    sweep_id: str,
    verb: str,
    method: Callable[[Client], Callable[[str], Sweep]],
    yes: bool,
    as_json: bool,
) -> None:
    console.confirm(f"{verb.capitalize()} all variants of {sweep_id}?", yes=yes)
    with connect() as client:
        sweep = method(client)(sweep_id)
    if as_json:
        console.json(sweep)
    else:
        console.say(f"{sweep.id}: {_states(sweep)}.")


def _watch(client: Client, sweep: Sweep) -> Sweep:
    """Show the table until no variant is in progress. Ctrl-C leaves the remote work running."""
    try:
        if not sys.stderr.isatty():
            return _follow(client, sweep, _Lines().show)
        from rich.live import Live

        with Live(_live_table(sweep), console=console.rich(is_talk=True)) as live:
            return _follow(client, sweep, lambda seen: live.update(_live_table(seen)))
    except KeyboardInterrupt:
        console.say(f"It goes on without you. `guanaco sweep show {sweep.id} --wait` follows it.")
        raise typer.Exit(130) from None


def _follow(client: Client, sweep: Sweep, on_look: Callable[[Sweep], None]) -> Sweep:
    while True:
        on_look(sweep)
        if not sweep.is_in_progress:
            return sweep
        time.sleep(LOOK_S)
        sweep = client.sweep(sweep.id)


class _Lines:
    """One line for each change of a variant's state."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def show(self, sweep: Sweep) -> None:
        for one in sweep.submissions:
            if self._seen.get(one.id) != one.status:
                self._seen[one.id] = one.status
                console.say(f"{one.id} {one.status} {one.name}")


def _live_table(sweep: Sweep) -> Table:
    columns, rows = _table(sweep)
    return console.make_table(columns, rows, caption=_states(sweep))


def _table(sweep: Sweep) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    rows: list[tuple[object, ...]] = [
        (one.id, one.status, one.name, _why(one)) for one in sweep.submissions
    ]
    return ("id", "state", "name", "why"), rows


def _why(submission: Submission) -> str:
    return submission.failure.detail if submission.failure else ""


def _states(sweep: Sweep) -> str:
    """``30 deployed, 2 failed``"""
    counts: dict[str, int] = {}
    for one in sweep.submissions:
        counts[one.status] = counts.get(one.status, 0) + 1
    return ", ".join(f"{number} {status}" for status, number in counts.items())


def _print_variants(request: SweepRequest, *, as_json: bool) -> None:
    from guanaco.sweeps import engines_of

    if as_json:
        console.json(request)
        return
    flat = [_flat(one.model_dump(mode="json")) for one in request.variants]
    varied = [key for key in flat[0] if len({repr(one.get(key)) for one in flat}) > 1]
    console.table(
        ("#>", "name", *varied),
        [
            (number, one.name, *(values.get(key) for key in varied))
            for number, (one, values) in enumerate(zip(request.variants, flat, strict=True), 1)
        ],
    )
    engines = engines_of(request)
    server = "one model server" if engines == 1 else f"{engines} model servers"
    console.say(f"{words.counted(len(flat), 'variant')} for {server}. Nothing was submitted.")


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """A variant's values; of a prompt its kind or preset."""
    flat = {key: value for key, value in fields.items() if key not in (*NOT_SHOWN, "params")}
    for key in ("formatter", "reward_formatter"):
        flat[key] = _prompt(flat[key])
    params: dict[str, Any] = fields["params"]
    return params | flat


def _prompt(formatter: dict[str, Any] | None) -> str:
    from guanaco.prompts import PRESETS

    if formatter is None:
        return ""
    for name, preset in PRESETS.items():
        if preset.model_dump(mode="json") == formatter:
            return name
    import hashlib
    import json

    kind = str(formatter.get("kind", "prompt"))
    return f"{kind} {hashlib.sha256(json.dumps(formatter).encode()).hexdigest()[:6]}"


def _conclude(sweep: Sweep, *, as_json: bool) -> None:
    """Print the sweep (its id alone, or JSON); exit status 1 if a variant has failed or was cancelled."""
    from guanaco.submissions import Status

    if as_json:
        console.json(sweep)
    else:
        console.line(sweep.id)
    if sweep.is_in_progress:
        console.say(f"{_states(sweep)}. `guanaco sweep show {sweep.id} --wait` follows it.")
        return
    bad = sweep.count(Status.FAILED, Status.CANCELLED)
    if bad:
        console.error(
            f"{_states(sweep)}.", f"`guanaco sweep show {sweep.id}` says why each one failed."
        )
        raise typer.Exit(1)
    console.say(f"{_states(sweep)}.", style=GREEN)
