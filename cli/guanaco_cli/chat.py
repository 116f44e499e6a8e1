"""`guanaco chat`: try out a submission."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from guanaco.errors import InvalidInput
from guanaco_cli import options
from guanaco_cli.connection import connect
from guanaco_cli.console import BOLD, DIM, console

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
    if message is not None and not message.strip():
        raise InvalidInput("There is nothing to say: --message is blank.")
    with connect() as client:
        who = options.read_bot(bot) if character is None else _cast(client, character)
        talk = LocalConversation(submission_id, who, show_prompt=show_prompt, as_json=as_json)
        client.submission(submission_id)  # one that is not there is said before the greeting
        talk.begin()
        for content in [message] if message is not None else _lines():
            if content.strip():
                talk.say(client, content)


def _cast(client: Client, character: str) -> Bot:
    """Return the bot of a stored character, with chance of its own for each talk."""
    import uuid

    character_id, version = options.parse_character(character)
    return client.character_bot(character_id, version=version, seed=uuid.uuid4().hex)


class LocalConversation:
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
