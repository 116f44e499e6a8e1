"""`guanaco experiments`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, RequestFile, Yes, read_request

if TYPE_CHECKING:
    from guanaco.estimates import Estimate
    from guanaco.experiments import Experiment, Variant

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
                one.state,
                one.competition or "all",
                _users(one),
                ", ".join(variant.name for variant in one.variants),
                words.moment(one.started_at),
                words.moment(one.stopped_at),
            )
            for one in experiments
        ],
    )


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


@app.command(epilog="Example: guanaco experiments create prompts.yaml")
def create(file: RequestFile, as_json: AsJson = False) -> None:
    """Make a draft from a file (docs/experiments.md); no conversation takes part until it is started."""
    from guanaco.experiments import ExperimentRequest

    request = read_request(file, ExperimentRequest)
    with connect() as client:
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
    """Stop it for good: no new conversation takes part; the open ones keep their variant."""
    console.confirm(f"Stop the experiment {name} for good?", yes=yes)
    with connect() as client:
        experiment = client.stop_experiment(name)
    _print_state(experiment, "Its conversations keep their variant.", as_json)


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
            "length>",
            "reply ms>",
        ),
        [
            (
                one.variant,
                one.users,
                one.conversations,
                _estimate(one.thumbs_up_ratio, 100, " %"),
                _estimate(one.thumbs_up_difference, 100, " pp"),
                _estimate(one.conversation_length),
                _estimate(one.reply_ms),
            )
            for one in found.variants
        ],
    )


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
