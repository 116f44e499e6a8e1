"""`guanaco prompt render`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from guanaco_cli import options
from guanaco_cli.console import console
from guanaco_cli.installation import needs_platform

app = typer.Typer(help="Prompts: try one out.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Prompts: try one out."""


@app.command(epilog="Example: guanaco prompt render my-prompt.yaml --bot ada --tokenizer my-model/")
def render(
    file: Annotated[
        str, typer.Argument(metavar="PRESET|FILE", help="A prompt file, a formatter, a preset.")
    ],
    bot: options.BotName = "marlowe",
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with the model's tokenizer.json, and its chat template. [default: a token a word]",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    turns: Annotated[int, typer.Option(min=1, max=1_000, help="Of the sample conversation.")] = 5,
    max_input_tokens: Annotated[
        int | None, typer.Option(help="As of a submission.", show_default=False)
    ] = None,
) -> None:
    """Print what a prompt makes of a sample conversation, without a platform."""
    from guanaco.bots import BOTS
    from guanaco.formatters import load_formatter
    from guanaco.parameters import GenerationParams

    with needs_platform():
        from guanaco_server.prompts.tryout import try_out
    if bot not in BOTS:
        raise typer.BadParameter(f"There is no bot {bot!r}. Choose {', '.join(BOTS)}.")
    given = {} if max_input_tokens is None else {"max_input_tokens": max_input_tokens}
    budget = GenerationParams.model_validate(given).max_input_tokens
    console.line(try_out(load_formatter(file), BOTS[bot], turns, budget, tokenizer))
