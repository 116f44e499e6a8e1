"""`guanaco chat` and `guanaco prompt`: try out a submission, or a prompt without a platform."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco.errors import InvalidInput
from guanaco_cli import options, prompt_tests
from guanaco_cli.completion import complete_submissions
from guanaco_cli.connection import connect
from guanaco_cli.console import BOLD, DIM, console
from guanaco_cli.installation import has_platform, needs_platform

if TYPE_CHECKING:
    from guanaco.chat import Bot, Reply, Turn
    from guanaco.client import Client
    from guanaco.prompts import Prompt

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
    character: Annotated[
        str | None,
        typer.Option(metavar="ID[@VERSION]", help="A stored character, in place of --bot."),
    ] = None,
    message: OneMessage = None,
    show_prompt: ShowPrompt = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each reply as a line of JSON.")
    ] = False,
) -> None:
    """Talk to your own submission. Nothing is recorded. Without a terminal, each line of stdin is a message."""
    with connect() as client:
        who = options.read_bot(bot) if character is None else _cast(client, character)
        talk = Talk(submission_id, who, show_prompt=show_prompt, as_json=as_json)
        talk.begin()
        for content in [message] if message is not None else _lines():
            if content.strip():
                talk.say(client, content)


def _cast(client: Client, character: str) -> Bot:
    """The bot of a stored character, with chance of its own for each talk."""
    import uuid

    character_id, version = options.parse_character(character)
    return client.character_bot(character_id, version=version, seed=uuid.uuid4().hex)


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


prompt_app = typer.Typer(help="Prompts: render one, and test it.", no_args_is_help=True)


@prompt_app.callback()
def root() -> None:
    """Prompts: render one, and test it."""


prompt_app.command(
    "test",
    epilog="Example: guanaco prompt test cases.yaml my-prompt.yaml --submission acme-tiny_v1",
)(prompt_tests.hold)


@prompt_app.command(
    epilog="Example: guanaco prompt render my-prompt.yaml --bot ada --tokenizer my-model/"
)
def render(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET|FILE",
            help="A prompt file, a formatter, a preset. [default: the submission's own]",
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
    turns: Annotated[int, typer.Option(min=1, max=1_000, help="Of the sample conversation.")] = 5,
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
    from guanaco.formatters import load_formatter

    if file is None and submission is None:
        raise InvalidInput("Name a preset or a file, or a --submission of yours.")
    if tokenizer is not None and (submission is not None or as_json):
        raise InvalidInput(
            "--tokenizer is for a model on this machine, without --submission or --json."
        )
    formatter = load_formatter(file) if file is not None else None
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
