"""`guanaco submit`"""

from __future__ import annotations

from typing import Annotated

import typer

from guanaco_cli import options
from guanaco_cli.connection import connect
from guanaco_cli.console import console
from guanaco_cli.parameters import ParameterizedCommand, given_params
from guanaco_cli.rewards import reward_of
from guanaco_cli.watching import conclude, watch

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
        str | None, typer.Option(help="Branch, tag or commit. [default: main]", show_default=False)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Shown on the leaderboard. [default: the repo's]", show_default=False),
    ] = None,
    formatter: options.Formatter = "pygmalion",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    kind: options.Kind = "chat",
    reward: options.Reward = None,
    reward_repo: options.RewardRepo = None,
    reward_formatter: options.RewardFormatter = None,
    wait: options.Wait = True,
    verbose: options.Verbose = False,
    as_json: options.AsJson = False,
) -> None:
    """Enter a model, and follow it until it is live."""
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
        )
        console.say(f"Submitted {submission.repo} as {submission.id}.")
        if wait:
            submission = watch(client, submission.id, is_verbose=verbose)
    conclude(submission, as_json=as_json)
