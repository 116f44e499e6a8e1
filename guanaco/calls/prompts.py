"""Calls about stored prompts: versions, and the labels that submissions follow."""

from __future__ import annotations

from pathlib import Path

from guanaco.calls.wire import API, Call, delete, get, put, segment, to_json
from guanaco.contract import reader
from guanaco.formatters import load_formatter
from guanaco.prompts import Prompt
from guanaco.stored_prompts import (
    LabelMove,
    PromptLabel,
    PromptPush,
    PromptVersion,
    StoredPrompt,
)


def push_prompt(
    name: str, prompt: Prompt | str | Path, *, note: str | None = None
) -> Call[PromptVersion]:
    """Store a version of a prompt; the first one makes it. The text of the newest version gives that version again. Developer.

    Args:
        name: The prompt's name: small letters, digits and dashes.
        prompt: A prompt of :mod:`guanaco.prompts`, a preset's name, or a file's path.
        note: What has changed, for those who read the list of versions.

    Returns:
        The PromptVersion.

    Raises:
        InvalidFormatter: The file holds no prompt.
        QuotaExceeded: You have as many prompts, or versions, as you may have.
    """
    read = load_formatter(prompt) if isinstance(prompt, str | Path) else prompt
    push = PromptPush(name=name, prompt=read, note=note)
    return Call(
        method="POST",
        path=f"{API}/prompts",
        json=to_json(push),
        parse=reader(PromptVersion).from_json,
        is_repeatable=True,  # the same text again stores nothing
    )


def prompts(*, developer: str | None = None) -> Call[list[StoredPrompt]]:
    """List your stored prompts by name, with their labels. Developer.

    Args:
        developer: Another developer's name, as an admin; None for your own.

    Returns:
        A list of StoredPrompt objects, without their versions.

    Raises:
        Forbidden: They are another developer's.
    """
    return get("/prompts", list[StoredPrompt], params=_of(developer))


def prompt(name: str, *, developer: str | None = None) -> Call[StoredPrompt]:
    """Read a stored prompt's labels and newest versions. Developer.

    Args:
        name: The prompt's name.
        developer: Another developer's name, as an admin; None for your own.

    Returns:
        The StoredPrompt.

    Raises:
        PromptNotFound: There is no such prompt.
    """
    return get(_path(name), StoredPrompt, params=_of(developer))


def prompt_version(
    name: str, version: int | str, *, developer: str | None = None
) -> Call[PromptVersion]:
    """Read one version of a stored prompt with its text. Developer.

    Args:
        name: The prompt's name.
        version: Its number, or a label.
        developer: Another developer's name, as an admin; None for your own.

    Returns:
        The PromptVersion.

    Raises:
        PromptNotFound: There is no such prompt, version or label.
    """
    return get(_path(name, "versions", str(version)), PromptVersion, params=_of(developer))


def label_prompt(
    name: str, label: str, version: int | None = None, *, developer: str | None = None
) -> Call[PromptLabel]:
    """Have a label name a version from now on: submissions that follow it have that version within a second. Developer.

    Args:
        name: The prompt's name.
        label: The label, such as ``production``.
        version: The version's number; None for that which the label named before its last move.
        developer: Another developer's name, as an admin; None for your own.

    Returns:
        The PromptLabel, with the submissions that were given the version.

    Raises:
        PromptNotFound: There is no such prompt or version.
        InvalidInput: A submission that follows the label could not be served so; nothing was changed.
    """
    return put(
        _path(name, "labels", label),
        PromptLabel,
        LabelMove(version=version),
        params=_of(developer),
        is_repeatable=version is not None,  # going back twice is going nowhere
    )


def remove_prompt_label(name: str, label: str, *, developer: str | None = None) -> Call[None]:
    """Remove a label that no submission follows. Developer.

    Args:
        name: The prompt's name.
        label: The label.
        developer: Another developer's name, as an admin; None for your own.

    Returns:
        Nothing.

    Raises:
        Conflict: Submissions follow it.
        PromptNotFound: There is no such prompt or label.
    """
    return delete(_path(name, "labels", label), params=_of(developer))


def delete_prompt(name: str, *, developer: str | None = None) -> Call[None]:
    """Delete a stored prompt with all versions. Submissions that name a version keep the text that they have. Developer.

    Args:
        name: The prompt's name.
        developer: Another developer's name, as an admin; None for your own.

    Returns:
        Nothing.

    Raises:
        Conflict: Submissions follow one of its labels.
        PromptNotFound: There is no such prompt.
    """
    return delete(_path(name), params=_of(developer))


def _path(name: str, *rest: str) -> str:
    return "/".join(["/prompts", segment(name), *map(segment, rest)])


def _of(developer: str | None) -> dict[str, str]:
    return {} if developer is None else {"developer": developer}
