"""`guanaco chat` and `guanaco prompt`: try out a submission, or a prompt without a platform."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco_cli import options
from guanaco_cli.connection import connect
from guanaco_cli.console import BOLD, DIM, console
from guanaco_cli.installation import needs_platform

if TYPE_CHECKING:
    from guanaco.chat import Bot, Reply, Turn
    from guanaco.client import Client

app = typer.Typer()

ShowPrompt = Annotated[
    bool, typer.Option("--show-prompt", help="Print the very prompt that the model got.")
]
OneMessage = Annotated[
    str | None, typer.Option("--message", "-m", metavar="TEXT", help="Say this, once.")
]


@app.command(
    epilog='Example: guanaco chat org-model_v1 --bot ada --message "Who are you?" --show-prompt'
)
def chat(
    submission_id: options.SubmissionId,
    bot: options.BotName = "marlowe",
    message: OneMessage = None,
    show_prompt: ShowPrompt = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each reply as a line of JSON.")
    ] = False,
) -> None:
    """Talk to your own submission. Nothing is recorded. Without a terminal, each line of stdin is a message."""
    talk = Talk(submission_id, options.read_bot(bot), show_prompt=show_prompt, as_json=as_json)
    with connect() as client:
        talk.begin()
        for content in [message] if message is not None else _lines():
            if content.strip():
                talk.say(client, content)


class Talk:
    """A conversation that only this process stores."""

    def __init__(self, submission_id: str, bot: Bot, *, show_prompt: bool, as_json: bool) -> None:

        self._submission_id = submission_id
        self._bot = bot
        self._turns: list[Turn] = []
        self._show_prompt = show_prompt
        self._as_json = as_json

    def begin(self) -> None:
        if self._bot.first_message:
            console.say(f"{self._bot.name}: {self._bot.first_message}", style=BOLD)

    def say(self, client: Client, content: str) -> None:
        """Send a message and print the reply as it comes."""
        from guanaco.chat import Sender, Turn

        turns = [*self._turns, Turn(sender=Sender.USER, content=content)]
        reply = self._print_reply(client, turns)
        self._turns = [*turns, Turn(sender=Sender.BOT, content=reply.content)]
        if self._as_json:
            console.json_line(reply)
        elif self._show_prompt and reply.prompt is not None:
            console.say(reply.prompt, style=DIM)

    def _print_reply(self, client: Client, turns: list[Turn]) -> Reply:
        from guanaco.chat import Reply

        if self._as_json:
            return client.preview(self._submission_id, self._bot, turns)
        is_streamed = False
        for item in client.stream_preview(self._submission_id, self._bot, turns):
            if isinstance(item, Reply):
                console.line("" if is_streamed else item.content)
                return item
            is_streamed = True
            console.piece(item.text)
        raise AssertionError("a reply's stream ends with the reply, or raises")


def _lines() -> Iterator[str]:
    if not console.is_interactive:
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    console.say("Ctrl-D ends the chat.", style=DIM)
    while True:
        try:
            yield console.ask("You: ")
        except EOFError:
            return


prompt_app = typer.Typer(help="Prompts: try one out.", no_args_is_help=True)


@prompt_app.callback()
def root() -> None:
    """Prompts: try one out."""


@prompt_app.command(
    epilog="Example: guanaco prompt render my-prompt.yaml --bot ada --tokenizer my-model/"
)
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
    """Print the prompt that a file makes from a sample conversation, without a platform."""
    from guanaco.formatters import load_formatter
    from guanaco.parameters import GenerationParams

    with needs_platform():
        from guanaco_server.prompts.tryout import try_out
    given = {} if max_input_tokens is None else {"max_input_tokens": max_input_tokens}
    budget = GenerationParams.model_validate(given).max_input_tokens
    console.line(try_out(load_formatter(file), options.read_bot(bot), turns, budget, tokenizer))
