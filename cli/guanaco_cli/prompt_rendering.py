"""`guanaco prompts render`: try out a prompt, with or without a platform."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco.errors import InvalidInput
from guanaco_cli import options
from guanaco_cli.completion import complete_submissions
from guanaco_cli.connection import connect
from guanaco_cli.console import DIM, console
from guanaco_cli.installation import has_platform, needs_platform

if TYPE_CHECKING:
    from guanaco.chat import Bot
    from guanaco.prompts import Prompt


NOTHING_NAMED = "Name a preset, a file or a stored prompt, or a --submission of yours."


def read_prompt(named: str) -> Prompt:
    """Return the preset, what the file holds, or the stored prompt of ``name@version`` or ``name@label``."""
    from guanaco.formatters import load_formatter, stored_reference

    reference = stored_reference(named)
    if reference is None:
        return load_formatter(named)
    name, _, which = str(reference).partition("@")
    with connect() as client:
        return client.prompt_version(name, which).prompt


def render(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET|FILE|NAME@VERSION",
            help="A prompt file, a formatter, a preset, a stored prompt. [default: the submission's own]",
        ),
    ] = None,
    bot: options.BotName = "marlowe",
    submission: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Your submission, by id or alias, whose tokenizer and chat template are used.",
            autocompletion=complete_submissions,
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with the model's tokenizer.json, and its chat template; needs the platform's packages. [default: a token a word]",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    turns: Annotated[
        int, typer.Option(min=1, max=1_000, help="Turns of the sample conversation.")
    ] = 5,
    max_input_tokens: Annotated[
        int | None, typer.Option(help="As of a submission.", show_default=False)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Ask the server, and print tokens and budget too.")
    ] = False,
) -> None:
    """Print the prompt that a file makes from a sample conversation.

    It is rendered here if the platform is installed, or else by the server.
    """
    if file is None and submission is None:
        raise InvalidInput(NOTHING_NAMED)
    if tokenizer is not None and (submission is not None or as_json):
        raise InvalidInput(
            "--tokenizer is for a model on this machine, without --submission or --json."
        )
    formatter = read_prompt(file) if file is not None else None
    is_here = submission is None and not as_json and (tokenizer is not None or has_platform())
    if is_here and formatter is not None:
        console.line(
            _render_here(formatter, options.read_bot(bot), turns, max_input_tokens, tokenizer)
        )
        return
    from guanaco.trials import sample_turns

    with connect() as client:
        rendered = client.render_prompt(
            formatter,
            options.read_bot(bot),
            sample_turns(turns),
            submission=submission,
            max_input_tokens=max_input_tokens,
        )
    if as_json:
        console.json(rendered)
        return
    console.line(rendered.prompt)
    console.say(f"{rendered.tokens:,} tokens of {rendered.max_input_tokens:,}.", style=DIM)


def _render_here(
    formatter: Prompt, bot: Bot, turns: int, max_input_tokens: int | None, tokenizer: Path | None
) -> str:
    from guanaco.parameters import GenerationParams

    with needs_platform():
        from guanaco_server.prompts.tryout import try_out
    given = {} if max_input_tokens is None else {"max_input_tokens": max_input_tokens}
    budget = GenerationParams.model_validate(given).max_input_tokens
    return try_out(formatter, bot, turns, budget, tokenizer)
