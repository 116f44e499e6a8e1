"""Calls about prompts: stored versions, the labels that submissions follow, and renderings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from guanaco.calls.wire import API, Call, delete, get, post, put, segment, to_json
from guanaco.chat import Bot, Turn
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
from guanaco.trials import PromptTrial, RenderedPrompt

RENDER_TIMEOUT_S = 60.0  # a stranger's template may wait for its turn, and then take its time


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
        BadPrompt: It can make no prompt; the sentence is that of a submission's check.
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
        BadPrompt: The version can make no prompt.
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


def render_prompt(
    formatter: Prompt | str | None,
    bot: Bot,
    turns: Sequence[Turn] = (),
    *,
    submission: str | None = None,
    user_name: str = "You",
    max_input_tokens: int | None = None,
) -> Call[RenderedPrompt]:
    """Render the prompt that a model would get; no model is asked. The formatter may name a preset or a file.

    With a ``submission`` of yours, by id or alias, its tokenizer and chat template are used, and its own prompt where the
    formatter is None. If there is none, a word is a token.

    Args:
        formatter: The prompt: a preset's name, a file's path, ``chat-template``, or a prompt of :mod:`guanaco.prompts`.
        bot: The bot that the user talks with.
        turns: What was said so far, oldest first.
        submission: The submission whose tokenizer counts; None for none.
        user_name: What the bot calls the user.
        max_input_tokens: The prompt's budget.

    Returns:
        The RenderedPrompt.

    Raises:
        GuanacoError: The server refuses it, or does not answer; the class and its ``hint`` say why.
    """
    trial = PromptTrial(
        formatter=load_formatter(formatter) if isinstance(formatter, str) else formatter,
        submission=submission,
        bot=bot,
        turns=list(turns),
        user_name=user_name,
        max_input_tokens=max_input_tokens,
    )
    return post("/prompts/render", RenderedPrompt, trial, timeout_s=RENDER_TIMEOUT_S)


def _path(name: str, *rest: str) -> str:
    return "/".join(["/prompts", segment(name), *map(segment, rest)])


def _of(developer: str | None) -> dict[str, str]:
    return {} if developer is None else {"developer": developer}
