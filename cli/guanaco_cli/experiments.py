"""`guanaco experiments`"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, Yes, read_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guanaco.estimates import Estimate
    from guanaco.experiments import Experiment, ExperimentRequest, Obstacle, Variant
    from guanaco.sweeps import Sweep

app = typer.Typer(no_args_is_help=True)

PROMPTS = {
    "templates": "prompt template",
    "chat_template": "the model's chat template",
    "file": "prompt file",
}

Name = Annotated[str, typer.Argument(metavar="NAME", help="The experiment's name.")]


@app.command("list", epilog="Example: guanaco experiments list --json")
def list_experiments(as_json: AsJson = False) -> None:
    """List every experiment and its state."""
    with connect() as client:
        experiments = client.experiments()
    if as_json:
        console.json(experiments)
        return
    console.table(
        ("name", "state", "competition", "users", "variants", "started", "stopped"),
        [
            (
                one.name,
                f"{one.state}, takes nobody now" if one.obstacles else one.state,
                one.competition or "all",
                _users(one),
                ", ".join(variant.name for variant in one.variants),
                words.moment(one.started_at),
                words.moment(one.stopped_at),
            )
            for one in experiments
        ],
    )
    for one in experiments:
        _print_obstacles(one.name, one.obstacles)


@app.command(epilog="Example: guanaco experiments show prompts")
def show(name: Name, as_json: AsJson = False) -> None:
    """Show one experiment with its variants."""
    with connect() as client:
        experiment = client.experiment(name)
    if as_json:
        console.json(experiment)
        return
    where = experiment.competition or "every competition"
    console.line(f"{name} ({experiment.state}): {_users(experiment)} of the users of {where}")
    console.table(
        ("variant", "share>", "changes"),
        [
            (variant.name, f"{variant.share:g}", _changes(variant))
            for variant in experiment.variants
        ],
    )
    _print_obstacles(name, experiment.obstacles)


@app.command(epilog="Example: guanaco experiments create prompts.yaml")
def create(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="YAML or JSON.", exists=True, dir_okay=False),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Compare the served variants of this sweep instead."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ID", help="Only this submission of the sweep; repeat it."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The experiment's name. [default: of the sweep]"),
    ] = None,
    competition: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="The competition whose conversations take part. [default: all]"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a draft from a file or a sweep; start it separately.

    docs/experiments.md describes the file. No conversation takes part until the experiment is started.
    """
    from guanaco.errors import InvalidInput
    from guanaco.experiments import ExperimentRequest

    if (file is None) == (sweep is None):
        raise InvalidInput("Give a FILE, or --sweep ID.")
    with connect() as client:
        if file is not None:
            request = read_request(file, ExperimentRequest)
        else:
            request = _of_sweep(client.sweep(sweep or ""), only or (), name, competition)
        experiment = client.create_experiment(request)
    _print_state(experiment, f"`guanaco experiments start {experiment.name}` begins it.", as_json)


@app.command(epilog="Example: guanaco experiments start prompts")
def start(name: Name, as_json: AsJson = False) -> None:
    """Start it: from now on new conversations take part."""
    with connect() as client:
        experiment = client.start_experiment(name)
    _print_state(experiment, "New conversations take part within a second.", as_json)


@app.command(epilog="Example: guanaco experiments stop prompts --yes")
def stop(name: Name, yes: Yes = False, as_json: AsJson = False) -> None:
    """Stop an experiment; open conversations stay as they are.

    No new conversation takes part, until the experiment is started again.
    """
    console.confirm(
        f"Stop the experiment {name}? No new conversation takes part until it is started again.",
        yes=yes,
    )
    with connect() as client:
        experiment = client.stop_experiment(name)
    _print_state(
        experiment,
        f"Its conversations keep their variant. `guanaco experiments start {name}` begins it again.",
        as_json,
    )


@app.command(epilog="Example: guanaco experiments results prompts --json")
def results(name: Name, as_json: AsJson = False) -> None:
    """Compare the variants by what users did, with 95 % intervals."""
    with connect() as client:
        found = client.experiment_results(name)
    if as_json:
        console.json(found)
        return
    console.table(
        (
            "variant",
            "users>",
            "conversations>",
            "thumbs up>",
            "difference>",
            "for one look>",
            "length>",
            "reply ms>",
        ),
        [
            (
                one.variant,
                one.users,
                one.conversations,
                _estimate(one.thumbs_up_ratio, 100, " %"),
                _estimate(one.thumbs_up_difference_always, 100, " pp"),
                _estimate(one.thumbs_up_difference, 100, " pp"),
                _estimate(one.conversation_length),
                _estimate(one.reply_ms),
            )
            for one in found.variants
        ],
    )
    _print_obstacles(name, found.obstacles)


def _of_sweep(
    sweep: Sweep, only: Sequence[str], name: str | None, competition: str | None
) -> ExperimentRequest:
    """Return an experiment with a variant for each served submission of a sweep, or for those that are named."""
    from pydantic import ValidationError

    from guanaco.errors import InvalidInput
    from guanaco.errors.validation import one_sentence
    from guanaco.experiments import MAX_VARIANTS, ExperimentRequest, Variant
    from guanaco.submissions import Status

    served = [one.id for one in sweep.submissions if one.status is Status.DEPLOYED]
    if strange := [each for each in only if each not in served]:
        raise InvalidInput(f"{strange[0]} is no served submission of {sweep.id}.")
    chosen = list(only) or served
    if not 2 <= len(chosen) <= MAX_VARIANTS:
        raise InvalidInput(
            f"{sweep.id} gives {len(chosen)} served variants, and an experiment compares 2 to {MAX_VARIANTS}.",
            hint="Choose some with --only ID, once for each.",
        )
    variants = [
        Variant(name=f"variant-{place}", model=one.id)
        for place, one in enumerate(sweep.submissions, 1)
        if one.id in chosen
    ]
    try:
        return ExperimentRequest(
            name=name or re.sub(r"[^a-z0-9]+", "-", sweep.id)[-64:].strip("-"),
            competition=competition,
            variants=tuple(variants),
        )
    except ValidationError as error:
        raise InvalidInput(one_sentence(error)) from None


def _print_obstacles(name: str, obstacles: Sequence[Obstacle]) -> None:
    """Say why a running experiment takes no conversation now."""
    if obstacles:
        console.say(f"{name} takes nobody now, in no variant:")
    for one in obstacles:
        console.say(f"- {one.variant}: {one.detail}" if one.variant else f"- {one.detail}")


def _users(experiment: Experiment) -> str:
    return f"{experiment.users_from:.0%} to {experiment.users_to:.0%}"


def _changes(variant: Variant) -> str:
    changes = [f"model {variant.model}"] if variant.model else []
    changes += (
        [PROMPTS.get(variant.formatter.kind, f"prompt of the kind {variant.formatter.kind}")]
        if variant.formatter
        else []
    )
    if variant.params:
        chosen = variant.params.model_dump(exclude_none=True)
        changes += [f"{name} {value}" for name, value in chosen.items()]
    return ", ".join(changes) or "nothing"


def _estimate(found: Estimate | None, scale: float = 1, unit: str = "") -> str:
    if found is None:
        return ""
    value = f"{found.value * scale:.1f}{unit}"
    if found.low is None or found.high is None:
        return value
    return f"{value} ({found.low * scale:.1f} to {found.high * scale:.1f})"


def _print_state(experiment: Experiment, then: str, as_json: bool) -> None:
    if as_json:
        console.json(experiment)
    else:
        console.say(f"{experiment.name} is {experiment.state}. {then}")
