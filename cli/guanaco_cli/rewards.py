"""The reward model of `guanaco submit --reward-repo`: one's own live one of that repo, or a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from guanaco_cli.console import console
from guanaco_cli.watching import explain_failure, watch

if TYPE_CHECKING:
    from guanaco.client import Client


def reward_of(client: Client, repo: str, reward: str | None, *, is_verbose: bool) -> str:
    """Its id, once it is live. Exit status 1 where it does not get there."""
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
        console.error(f"Nothing else was submitted: the reward model is {watched.status}.")
        raise typer.Exit(1)
    return watched.id
