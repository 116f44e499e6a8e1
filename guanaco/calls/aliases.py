"""Calls about aliases: names that a developer gives to submissions, and moves from one to another."""

from __future__ import annotations

from guanaco.aliases import Alias
from guanaco.calls.wire import API, Call, get, of_submission, segment
from guanaco.calls.wire import delete as delete_call
from guanaco.contract import reader


def aliases() -> Call[list[Alias]]:
    """List your aliases, each with the submission that it names; everybody's as an admin.

    Returns:
        A list of Alias objects.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return get("/aliases", list[Alias])


def set_alias(submission_id: str, alias: str) -> Call[Alias]:
    """Call a submission ``alias`` from now on, like ``champion``; another one of its repo loses that alias at the same moment.

    ``org/model@champion`` then stands wherever a submission's id can.

    Args:
        submission_id: The submission's id, or an alias like ``org/model@champion``.
        alias: The last part of the alias, like ``champion``.

    Returns:
        The Alias.

    Raises:
        SubmissionNotFound: There is no such submission, or it is another developer's.
    """
    path = of_submission(submission_id, "aliases", segment(alias))
    return Call(
        method="PUT", path=f"{API}{path}", parse=reader(Alias).from_json, is_repeatable=True
    )


def remove_alias(alias: str) -> Call[None]:
    """Take an alias away, given whole, like ``org/model@champion``; the submission stays as it is.

    Args:
        alias: The whole alias, like ``org/model@champion``.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    return delete_call(of_submission(alias, "aliases", segment(alias.rpartition("@")[2])))
