"""`guanaco conversations`: the conversation API, as an app's engineer tries it out."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from guanaco.errors import InvalidInput
from guanaco_cli import words
from guanaco_cli.completion import complete_submissions
from guanaco_cli.connection import connect
from guanaco_cli.console import BOLD, DIM, console
from guanaco_cli.options import AsJson, BotName, Yes, read_bot

if TYPE_CHECKING:
    from guanaco.chat import Bot, Conversation, Message, Reply, Token, Turn
    from guanaco.memory import ConversationMemory

app = typer.Typer(no_args_is_help=True)

ConversationId = Annotated[
    str, typer.Argument(metavar="ID", help="The conversation's id, like conv_….")
]
MessageId = Annotated[
    str,
    typer.Argument(metavar="MESSAGE", help="The message's id, like msg_…, as `show` prints it."),
]
OneMessage = Annotated[
    str | None,
    typer.Option("--message", metavar="MESSAGE", help="Only this reply; it counts for no score."),
]
User = Annotated[str, typer.Option("--user", metavar="ID", help="The app's own id of the user.")]
UserName = Annotated[
    str, typer.Option(metavar="NAME", help="The name by which the character calls the user.")
]
Consent = Annotated[
    bool,
    typer.Option("--consent", help="The user agreed to talk to an experimental model."),
]
ExternalId = Annotated[
    str | None, typer.Option(metavar="ID", help="The app's own id of the conversation.")
]
Notes = Annotated[
    list[str] | None,
    typer.Option("--note", metavar="NAME=VALUE", help="A note of the app's own; repeat it."),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="ID|ALIAS",
        autocompletion=complete_submissions,
        help="Talk to this submission, where the key may choose; it then counts for no score.",
    ),
]
Competition = Annotated[
    str,
    typer.Option(
        metavar="ID", help="The competition that assigns a submission and counts the rating."
    ),
]
Character = Annotated[
    str | None,
    typer.Option(metavar="ID[@VERSION]", help="A stored character, in place of --bot."),
]
Greeting = Annotated[
    int | None,
    typer.Option(min=-1, max=100, help="Number of the greeting that comes first; -1 for none."),
]
Remember = Annotated[
    bool,
    typer.Option("--remember", help="It remembers the user's last conversation with it."),
]
AsLine = Annotated[bool, typer.Option("--json", help="Print the reply as a line of JSON.")]


@app.command("list", epilog="Example: guanaco conversations list --user u1")
def list_conversations(
    user: Annotated[
        str | None, typer.Option("--user", metavar="ID", help="Only this user's.")
    ] = None,
    external_id: ExternalId = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List your app's conversations, newest first."""
    with connect() as client:
        page = client.conversation_page(user_id=user, external_id=external_id, limit=limit)
    if as_json:
        console.json(page)
        return
    console.table(
        ("id", "user", "bot", "submission", "begun", "last message"),
        [
            (
                one.conversation_id,
                one.user_id,
                one.bot_name,
                one.submission_id + (" (chosen)" if one.is_chosen else ""),
                words.moment(one.created_at),
                _shortened(one.last_message.content) if one.last_message else "",
            )
            for one in page.items
        ],
    )
    if not page.items:
        console.say("None: `guanaco conversations open` begins one.")
    elif page.next_cursor:
        console.say("There are older ones: --limit shows up to 200 of them, --user one user's.")


@app.command(epilog="Example: guanaco conversations show conv_… --all")
def show(
    conversation_id: ConversationId,
    is_all: Annotated[bool, typer.Option("--all", help="Replies that were replaced too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a conversation, each message with its id."""
    with connect() as client:
        found = client.conversation(conversation_id)
    if as_json:
        console.json(found)
        return
    chosen = ", chosen" if found.is_chosen else ""
    console.line(f"{found.conversation_id} with {found.submission_id}{chosen}", style=BOLD)
    for name, value in found.metadata.items():
        console.line(f"{name}={value}", style=DIM)
    if found.bot.first_message:
        console.line(f"{found.bot.name}: {found.bot.first_message}")
    for message in found.messages:
        if is_all or not message.is_deleted:
            _print_message(found, message)


@app.command("open", epilog="Example: guanaco conversations open --user u1 --consent --bot ada")
def open_conversation(
    user: User,
    consent: Consent = False,
    bot: BotName = "marlowe",
    character: Character = None,
    greeting: Greeting = None,
    remember: Remember = False,
    user_name: UserName = "You",
    competition: Competition = "open",
    model: Model = None,
    external_id: ExternalId = None,
    notes: Notes = None,
    as_json: AsJson = False,
) -> None:
    """Begin a conversation of a consenting user, and print its id."""
    if character is None and (greeting is not None or remember):
        option = "--remember" if greeting is None else "--greeting"
        raise InvalidInput(f"{option} goes with --character.")
    who = {"bot": read_bot(bot)} if character is None else {"character": character}
    more: dict[str, Any] = {"competition": competition}
    if remember:
        more["remember"] = True
    if greeting is not None:
        more["greeting"] = greeting
    _open(user, consent, who | more, user_name, model, external_id, notes, as_json, ())


@app.command("import", epilog="Example: guanaco conversations import chat.json --user u1 --consent")
def import_conversation(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A list of {sender, content}, in JSON or YAML, or what `show --json` printed.",
            exists=True,
            dir_okay=False,
        ),
    ],
    user: User,
    consent: Consent = False,
    bot: Annotated[
        str | None,
        typer.Option("--bot", metavar="NAME|FILE", help="[default: the file's, or marlowe]"),
    ] = None,
    user_name: UserName = "You",
    competition: Competition = "open",
    model: Model = None,
    external_id: ExternalId = None,
    notes: Notes = None,
    as_json: AsJson = False,
) -> None:
    """Begin a conversation with earlier messages, and print its id."""
    history, known_bot = _read_history(file)
    with_bot = known_bot if bot is None and known_bot is not None else read_bot(bot or "marlowe")
    who = {"bot": with_bot, "competition": competition}
    _open(user, consent, who, user_name, model, external_id, notes, as_json, history)


@app.command(epilog='Example: guanaco conversations say conv_… "Who are you?"')
def say(
    conversation_id: ConversationId,
    content: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="[default, or -: each line of stdin]")
    ] = None,
    as_json: AsLine = False,
) -> None:
    """Say something as the user, and print the reply as it comes."""
    if content is not None and not content.strip():
        raise InvalidInput(
            "There is nothing to say: TEXT is blank.", hint="Without it, lines are read from stdin."
        )
    lines = map(str.rstrip, sys.stdin) if content in (None, "-") else [content]
    with connect() as client:
        for line in lines:
            if not line:
                continue
            if as_json:
                console.json_line(client.send(conversation_id, line))
            else:
                _print_reply(client.stream_send(conversation_id, line))


@app.command(epilog="Example: guanaco conversations regenerate conv_…")
def regenerate(
    conversation_id: ConversationId,
    may_compare: Annotated[
        bool,
        typer.Option(
            "--may-compare",
            help="Another submission may write the reply, where the competition draws it so.",
        ),
    ] = False,
    as_json: AsLine = False,
) -> None:
    """Answer the last message again; the earlier reply is a swipe."""
    with connect() as client:
        if as_json:
            console.json_line(client.regenerate(conversation_id, may_compare=may_compare))
        else:
            _print_reply(client.stream_regenerate(conversation_id, may_compare=may_compare))


@app.command("continue", epilog="Example: guanaco conversations continue conv_…")
def continue_reply(conversation_id: ConversationId, as_json: AsLine = False) -> None:
    """Continue the last reply where it ended; print what is added."""
    with connect() as client:
        if as_json:
            console.json_line(client.continue_reply(conversation_id))
        else:
            _print_reply(client.stream_continue_reply(conversation_id))


@app.command(epilog="Example: guanaco conversations swipes conv_…")
def swipes(conversation_id: ConversationId, as_json: AsJson = False) -> None:
    """List all replies to the last message."""
    with connect() as client:
        found = client.swipes(conversation_id)
    if as_json:
        console.json(found)
        return
    console.table(
        ("id", "chosen", "reply"),
        [(one.id, "" if one.is_deleted else "yes", _shortened(one.content)) for one in found],
    )


@app.command(epilog="Example: guanaco conversations choose conv_… msg_…")
def choose(conversation_id: ConversationId, message_id: MessageId, as_json: AsJson = False) -> None:
    """Go on with one of the swipes."""
    with connect() as client:
        chosen = client.choose(conversation_id, message_id)
    _print_changed(chosen, "The conversation goes on with", as_json)


@app.command(epilog='Example: guanaco conversations edit conv_… msg_… "What I meant."')
def edit(
    conversation_id: ConversationId,
    message_id: MessageId,
    content: Annotated[str, typer.Argument(metavar="TEXT", help="The new text.")],
    as_json: AsJson = False,
) -> None:
    """Replace a message's text."""
    with connect() as client:
        edited = client.edit_message(conversation_id, message_id, content)
    _print_changed(edited, "Edited", as_json)


@app.command(epilog="Example: guanaco conversations memory conv_… --correct 'Kim lives in Oslo.'")
def memory(
    conversation_id: ConversationId,
    correction: Annotated[
        str | None,
        typer.Option("--correct", metavar="TEXT", help="Remember this in place of all summaries."),
    ] = None,
    is_erased: Annotated[
        bool, typer.Option("--erase", help="Forget what was said so far; the messages stay.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show what a conversation remembers; correct or erase it."""
    if is_erased and correction is not None:
        raise InvalidInput("--correct and --erase exclude each other.")
    if correction is not None and not correction.strip():
        raise InvalidInput("--correct needs a text; --erase forgets what was said so far.")
    with connect() as client:
        if is_erased:
            console.confirm(f"Erase what {conversation_id} remembers?", yes=yes)
            client.erase_memory(conversation_id)
            console.say(
                "Forgotten. The messages stay; `guanaco conversations delete` removes them."
            )
            return
        if correction is not None:
            found = client.correct_memory(conversation_id, correction)
        else:
            found = client.memory(conversation_id)
    if as_json:
        console.json(found)
    else:
        _print_memory(found)


def _print_memory(found: ConversationMemory) -> None:
    if found.carried is not None:
        console.say(f"From {found.carried.conversation_id}:")
        console.line(found.carried.text)
    for one in found.summaries:
        what = f"Messages 1 to {one.until}, shown" if one.until else "Shown"
        console.say(f"{what} with message {one.message}, by {one.written_by}:")
        console.line(one.text)
    if found.recalled:
        rows = [(one.message, ", ".join(map(str, one.recalled))) for one in found.recalled]
        console.table(("message", "shown again with it"), rows)
    if found.forgotten_until:
        console.say(f"Messages up to number {found.forgotten_until} were forgotten.")
    if not (found.carried or found.summaries or found.recalled or found.forgotten_until):
        console.say("It remembers nothing beyond its prompt.")


@app.command(epilog="Example: guanaco conversations rate conv_… up --text 'Funny.'")
def rate(
    conversation_id: ConversationId,
    thumb: Annotated[Literal["up", "down"], typer.Argument(help="The user's thumb.")],
    text: Annotated[str, typer.Option(help="The user's words.")] = "",
    is_change: Annotated[
        bool, typer.Option("--change", help="In the place of the rating that was given.")
    ] = False,
    may_be_quoted: Annotated[
        bool,
        typer.Option(
            "--quotable", help="The user agreed: their words may stand on the model's public page."
        ),
    ] = False,
    message: OneMessage = None,
    as_json: AsJson = False,
) -> None:
    """Rate a conversation or a reply; change a rating within a day."""
    is_up = thumb == "up"
    if message is not None and (text or is_change or may_be_quoted):
        raise InvalidInput("--message rates one reply: with a thumb alone, as often as you like.")
    done: Any
    with connect() as client:
        if message is not None:
            done = client.rate_message(conversation_id, message, is_up)
        elif is_change:
            done = client.change_rating(conversation_id, is_up, text, may_be_quoted=may_be_quoted)
        else:
            done = client.rate(conversation_id, is_up, text, may_be_quoted=may_be_quoted)
    if as_json:
        console.json(done)
    else:
        console.say(f"Thumbs {thumb}. `guanaco conversations withdraw` takes it back.")


@app.command(epilog="Example: guanaco conversations rating conv_…")
def rating(conversation_id: ConversationId, as_json: AsJson = False) -> None:
    """Show a conversation's rating, and until when it can change."""
    with connect() as client:
        found = client.rating(conversation_id)
    if as_json:
        console.json(found)
        return
    console.line(
        f"thumbs {'up' if found.thumbs_up else 'down'}{': ' if found.text else ''}{found.text}"
    )
    console.say(f"It can be changed or withdrawn until {words.moment(found.changeable_until)}.")


@app.command(epilog="Example: guanaco conversations withdraw conv_…")
def withdraw(conversation_id: ConversationId, message: OneMessage = None) -> None:
    """Withdraw a rating that is younger than a day, or a reply's."""
    with connect() as client:
        if message is None:
            client.withdraw_rating(conversation_id)
        else:
            client.withdraw_message_rating(conversation_id, message)
    console.say("Withdrawn.")


@app.command(epilog="Example: guanaco conversations note conv_… shelf=2 pinned=yes")
def note(
    conversation_id: ConversationId,
    notes: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE…", help="All of them; none for none.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replace your app's notes of a conversation."""
    with connect() as client:
        changed = client.note_metadata(conversation_id, _pairs(notes))
    if as_json:
        console.json(changed)
    else:
        console.say(f"{words.counted(len(changed.metadata), 'note')}.")


@app.command(epilog="Example: guanaco conversations delete conv_… --yes")
def delete(
    conversation_id: ConversationId,
    message: Annotated[
        str | None, typer.Option("--message", metavar="MESSAGE", help="Only this message.")
    ] = None,
    with_following: Annotated[
        bool, typer.Option("--with-following", help="With --message, all that follow it too.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a conversation, or one message of it, for good.

    A conversation's messages and rating are deleted with it.
    """
    if with_following and message is None:
        raise InvalidInput("--with-following goes with --message.")
    console.confirm(f"Delete {message or conversation_id} for good?", yes=yes)
    with connect() as client:
        if message is None:
            client.delete_conversation(conversation_id)
        else:
            client.delete_message(conversation_id, message, with_following=with_following)
    console.say(f"Deleted {message or conversation_id}.")


def _open(
    user: str,
    consent: bool,
    who: dict[str, Any],
    user_name: str,
    model: str | None,
    external_id: str | None,
    notes: list[str] | None,
    as_json: bool,
    history: Iterable[Turn],
) -> None:
    with connect() as client:
        opened = client.open_conversation(
            user,
            **who,
            consent=consent,
            user_name=user_name,
            model=model,
            external_id=external_id,
            metadata=_pairs(notes),
            history=list(history),
        )
    if as_json:
        console.json(opened)
        return
    console.line(opened.conversation_id)
    if opened.first_message:
        console.say(opened.first_message, style=BOLD)
    console.say(
        f"It talks to {opened.submission_id}: `guanaco conversations say {opened.conversation_id}`."
    )


def _pairs(notes: Iterable[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in notes or ()]
    for name, sign, _ in pairs:
        if not (name and sign):
            raise InvalidInput(f"A note looks like NAME=VALUE, and {name[:80]!r} does not.")
    return {name: value for name, _, value in pairs}


def _read_history(file: Path) -> tuple[list[Turn], Bot | None]:
    """Read turns from a list of them, or from a conversation as `show --json` prints it, without what was replaced, with its bot."""
    from pydantic import TypeAdapter, ValidationError

    from guanaco.chat import Bot, Turn
    from guanaco.errors.validation import one_sentence
    from guanaco.yaml_files import parse_yaml, unreadable

    try:
        data = parse_yaml(file.read_text())
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise unreadable(file, error) from None
    bot = None
    if isinstance(data, dict) and isinstance(data.get("messages"), list):
        bot = data.get("bot")
        data = [
            {"sender": one.get("sender"), "content": one.get("content")}
            for one in data["messages"]
            if isinstance(one, dict) and not one.get("is_deleted")
        ]
    try:
        turns = TypeAdapter(list[Turn]).validate_python(data)
        return turns, None if bot is None else Bot.model_validate(bot)
    except ValidationError as error:
        raise InvalidInput(
            f"{file}: {one_sentence(error)}",
            hint="It is a list of {sender: user or bot, content: text}.",
        ) from None


def _print_reply(events: Iterable[Token | Reply]) -> None:
    """Print a reply as it comes; about its end on stderr."""
    from guanaco.chat import Reply

    for item in events:
        if isinstance(item, Reply):
            console.line()
            if item.appended == "":
                console.say("The model has nothing to add.")
            elif item.finish_reason == "length":
                console.say("It was cut by its length: `guanaco conversations continue` goes on.")
            if item.ask_for_feedback:
                console.say("This is when to ask the user for feedback.")
        else:
            console.piece(item.text)


def _print_message(conversation: Conversation, message: Message) -> None:
    who = conversation.user_name if message.sender == "user" else conversation.bot.name
    marks = [
        mark
        for mark, is_set in (
            ("replaced", message.is_deleted),
            ("imported", message.is_imported),
            ("edited", message.edited_at is not None),
            ("thumbs up", message.thumbs_up is True),
            ("thumbs down", message.thumbs_up is False),
        )
        if is_set
    ]
    console.line(f"{message.id}{' (' + ', '.join(marks) + ')' if marks else ''}", style=DIM)
    console.line(f"{who}: {message.content}")


def _print_changed(message: Message, what: str, as_json: bool) -> None:
    if as_json:
        console.json(message)
    else:
        console.say(f"{what} {message.id}: {_shortened(message.content)}")


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…"


SHOWN_CHARS = 60
