"""`guanaco submit`: enter a model, and its reward model where one is named by repo; `guanaco check`: only try it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from guanaco_cli import options, words
from guanaco_cli.connection import connect
from guanaco_cli.console import GREEN, console
from guanaco_cli.parameters import ParameterizedCommand, given_params
from guanaco_cli.progress import conclude, explain_failure, watch

if TYPE_CHECKING:
    from guanaco.checks import RepoCheck
    from guanaco.client import Client

app = typer.Typer()


@app.command(
    cls=ParameterizedCommand,
    epilog="Example: guanaco submit org/model --temperature 0.8 --max-output-tokens 128 --formatter chatml",
)
def submit(
    context: typer.Context,
    repo: Annotated[
        str, typer.Argument(metavar="REPO", help="The Hugging Face model repo, org/name.")
    ],
    revision: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION", help="Branch, tag or commit. [default: main]", show_default=False
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Shown on the leaderboard. [default: the repo's]",
            show_default=False,
        ),
    ] = None,
    formatter: options.Formatter = "pygmalion",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    kind: options.Kind = "chat",
    reward: options.Reward = None,
    reward_repo: options.RewardRepo = None,
    reward_formatter: options.RewardFormatter = None,
    show_prompt: options.ShowPrompt = False,
    hub_token: options.HubToken = False,
    wait: options.Wait = True,
    verbose: options.Verbose = False,
    as_json: options.AsJson = False,
) -> None:
    """Submit a model, and follow it until it is live."""
    from guanaco.errors import InvalidInput

    params = given_params(context)
    with connect() as client:
        if reward_repo is not None:
            if params.best_of == 1:
                raise InvalidInput("--reward-repo needs --best-of of 2 or more.")
            reward = reward_of(client, reward_repo, reward, is_verbose=verbose)
        submission = client.submit(
            repo,
            revision=revision,
            name=name,
            params=params,
            formatter=formatter,
            dtype=dtype,
            quantization=quantization,
            kind=kind,
            reward=reward,
            reward_formatter=reward_formatter,
            show_prompt=show_prompt,
            hub_token=options.read_hub_token(hub_token),
        )
        console.say(f"Submitted {submission.repo} as {submission.id}.")
        if submission.no_worker_since is not None:
            since = words.moment(submission.no_worker_since)
            console.warn(
                f"No worker of the platform has been heard of since {since}: the submission waits until one starts."
            )
        if wait:
            submission = watch(client, submission.id, is_verbose=verbose)
    conclude(submission, as_json=as_json)


@app.command(
    cls=ParameterizedCommand,
    epilog="Example: guanaco check org/model --formatter chat-template --max-input-tokens 4096",
)
def check(
    context: typer.Context,
    repo: Annotated[
        str, typer.Argument(metavar="REPO", help="The Hugging Face model repo, org/name.")
    ],
    revision: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION", help="Branch, tag or commit. [default: main]", show_default=False
        ),
    ] = None,
    formatter: options.Formatter = "pygmalion",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    kind: options.Kind = "chat",
    reward: options.Reward = None,
    reward_formatter: options.RewardFormatter = None,
    hub_token: options.HubToken = False,
    as_json: options.AsJson = False,
) -> None:
    """Check a model as a submission would, and submit nothing. Exits with 1 if it would fail."""
    with connect() as client:
        found = client.check(
            repo,
            revision=revision,
            params=given_params(context),
            formatter=formatter,
            dtype=dtype,
            quantization=quantization,
            kind=kind,
            reward=reward,
            reward_formatter=reward_formatter,
            hub_token=options.read_hub_token(hub_token),
        )
    if as_json:
        console.json(found)
    else:
        _print_check(found)
    if not found.is_passed:
        raise typer.Exit(1)


def _print_check(found: RepoCheck) -> None:
    facts = (
        ("repo", found.repo),
        ("commit", found.commit),
        ("base", found.base_repo and f"{found.base_repo} at {found.base_commit}"),
        ("model", found.architecture),
        ("parameters", words.count(found.parameter_count)),
        ("weights", words.size(found.weight_bytes)),
    )
    for label, value in facts:
        if value:
            console.line(f"{label:<12} {value}")
    if found.failure is None:
        console.say("It passes every check before its weights are fetched.", style=GREEN)
        return
    where = f" in stage {found.failure.stage}" if found.failure.stage else ""
    console.error(f"It would fail{where}: {found.failure.detail}", found.failure.hint)
    console.say(f"blame: {found.failure.blame} ({found.failure.code})")


def reward_of(client: Client, repo: str, reward: str | None, *, is_verbose: bool) -> str:
    """Return the reward model's id once it is live; exit with status 1 where it does not become live."""
    from guanaco.errors import InvalidInput
    from guanaco.submissions import Status, SubmissionKind

    if reward is not None:
        raise InvalidInput("--reward and --reward-repo exclude each other.")
    me = client.me().name
    for one in client.submissions():
        is_reward = one.kind is SubmissionKind.REWARD and one.repo == repo
        if is_reward and one.status is Status.DEPLOYED and one.developer == me:
            console.say(f"The reward model is {one.id}.")
            return one.id
    submitted = client.submit(repo, kind=SubmissionKind.REWARD)
    console.say(f"Submitted the reward model {repo} as {submitted.id}.")
    watched = watch(client, submitted.id, is_verbose=is_verbose)
    if watched.status is not Status.DEPLOYED:
        if watched.failure is not None:
            explain_failure(watched)
        console.error(
            f"Nothing else was submitted: the reward model is {words.spoken(watched.status)}."
        )
        raise typer.Exit(1)
    return watched.id
