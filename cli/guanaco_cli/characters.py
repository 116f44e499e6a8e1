"""`guanaco characters`: cards pushed, looked at, and given back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from guanaco.errors import InvalidInput
from guanaco.errors.validation import one_sentence
from guanaco_cli import words
from guanaco_cli.connection import connect
from guanaco_cli.console import BOLD, DIM, console
from guanaco_cli.options import AsJson, Yes, parse_character
from guanaco_cli.untrusted import escape_json

if TYPE_CHECKING:
    from guanaco.characters import Character
    from guanaco.lore import Lorebook

app = typer.Typer(no_args_is_help=True)

CharacterId = Annotated[
    str, typer.Argument(metavar="ID[@VERSION]", help="The character's id, like chr_….")
]
SUFFIXES: dict[str, Literal["json", "png", "charx"]] = {
    ".json": "json",
    ".png": "png",
    ".charx": "charx",
}
SHOWN_CHARS = 400


@app.command(epilog="Example: guanaco characters push marlowe.png --public")
def push(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A Character Card V1, V2 or V3 (JSON, PNG, CHARX), or our own form in JSON.",
            exists=True,
            dir_okay=False,
        ),
    ],
    character_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="A new version of this character.")
    ] = None,
    is_public: Annotated[
        bool, typer.Option("--public", help="Every account may read it and talk to it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Store a character, or a new version of one."""
    if is_public and character_id is not None:
        raise InvalidInput(
            "--public is for a new character.", hint="`guanaco characters publish ID` is for this."
        )
    try:
        card = file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from None
    _refuse_repeated_keys(file, card)
    with connect() as client:
        pushed = client.push_character(card, character_id=character_id, is_public=is_public)
    if as_json:
        console.json(pushed)
        return
    console.line(f"{pushed.id}@{pushed.version}")
    count = len(pushed.greetings)
    console.say(f"{pushed.name}, with {count} greeting{'' if count == 1 else 's'}.")
    if pushed.lorebook_entries:
        used = len(pushed.lorebook.entries) if pushed.lorebook is not None else 0
        console.say(f"Of its {pushed.lorebook_entries} lorebook entries {used} are in use.")


@app.command("list", epilog="Example: guanaco characters list --public")
def list_characters(
    is_public: Annotated[
        bool, typer.Option("--public", help="Everybody's public ones, not your own.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List characters, newest first."""
    with connect() as client:
        page = client.characters(whose="public" if is_public else "own", limit=limit)
    if as_json:
        console.json(page)
        return
    console.table(
        ("id", "version>", "name", "owner", "public", "greetings>", "tags", "changed"),
        [
            (
                one.id,
                one.version,
                one.name,
                one.owner,
                "yes" if one.is_public else "",
                one.greetings,
                ", ".join(one.tags[:5]),
                words.moment(one.updated_at),
            )
            for one in page.items
        ],
    )
    if not page.items:
        console.say("None: `guanaco characters push FILE` stores one.")


@app.command(epilog="Example: guanaco characters show chr_…@2")
def show(character_id: CharacterId, as_json: AsJson = False) -> None:
    """Print a character, with the macros that its texts have."""
    named, version = parse_character(character_id)
    with connect() as client:
        found = client.character(named, version=version)
    if as_json:
        console.json(found)
    else:
        _print(found)


@app.command(epilog="Example: guanaco characters export chr_… marlowe.png")
def export(
    character_id: CharacterId,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="The ending is the format: .json, .png or .charx. [default: JSON on stdout]",
            dir_okay=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is there.")
    ] = False,
) -> None:
    """Give the card back as JSON, in a PNG or in a CHARX file."""
    named, version = parse_character(character_id)
    form = "json" if file is None else SUFFIXES.get(file.suffix.lower())
    if form is None:
        raise InvalidInput(f"{file} should end with .json, .png or .charx.")
    if file is not None and file.exists() and not overwrite:
        raise InvalidInput(f"{file} is there already.", hint="--overwrite replaces it.")
    with connect() as client:
        card = client.character_card(named, format=form, version=version)
    if file is None:
        print(escape_json(card.decode()), file=sys.stdout, flush=True)
        return
    try:
        file.write_bytes(card)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error.strerror}.") from None
    console.say(f"Wrote {file}.")


@app.command(epilog="Example: guanaco characters lorebook chr_… islands.json")
def lorebook(
    character_id: CharacterId,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="A lorebook in our form, in JSON. [default: print the character's]",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    is_removed: Annotated[
        bool, typer.Option("--remove", help="A new version without a lorebook.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the lorebook, or store a new version with another one."""
    if is_removed and file is not None:
        raise InvalidInput("Name a file, or --remove.")
    named, version = parse_character(character_id)
    with connect() as client:
        if file is None and not is_removed:
            from guanaco.lore import Lorebook

            console.json(client.character(named, version=version).lorebook or Lorebook())
            return
        book = None if file is None else _read_book(file)
        changed = client.set_lorebook(named, book, version=version)
    if as_json:
        console.json(changed)
        return
    console.line(f"{changed.id}@{changed.version}")
    count = len(changed.lorebook.entries) if changed.lorebook is not None else 0
    console.say(f"{changed.name}, with {count} lorebook entr{'y' if count == 1 else 'ies'}.")


def _read_book(file: Path) -> Lorebook:
    from pydantic import ValidationError

    from guanaco.lore import Lorebook

    try:
        content = file.read_bytes()
        book = Lorebook.model_validate_json(content)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        raise InvalidInput(f"{file} is no lorebook: {one_sentence(error)}") from None
    _refuse_repeated_keys(file, content)
    return book


def _refuse_repeated_keys(file: Path, content: bytes) -> None:
    """Raise InvalidInput where JSON says something twice. What is no JSON, such as a picture, passes: whoever reads it says so."""
    from guanaco.json_files import refuse_repeated_keys
    from guanaco.yaml_files import RepeatedKey

    try:
        text = content.decode("utf-8-sig")
        json.loads(text)
        refuse_repeated_keys(text)
    except RepeatedKey as error:
        raise InvalidInput(f"{file}: {error}.") from None
    except (ValueError, RecursionError):
        return


@app.command(epilog="Example: guanaco characters publish chr_…")
def publish(
    character_id: Annotated[str, typer.Argument(metavar="ID", help="The character's id.")],
    is_withdrawn: Annotated[
        bool, typer.Option("--withdraw", help="Make it private again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let every account talk to a character, or yours alone again."""
    with connect() as client:
        changed = client.change_character(character_id, is_public=not is_withdrawn)
    if as_json:
        console.json(changed)
    else:
        console.say(f"{changed.name} is {'public' if changed.is_public else 'private'} now.")


@app.command(epilog="Example: guanaco characters delete chr_… --yes")
def delete(
    character_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The character's id.")
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every character of your account.")] = False,
    account: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --all, another account's (admin)."),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a character, or all of an account.

    Conversations that have begun go on.
    """
    if is_all == (character_id is not None) or (account is not None and not is_all):
        raise InvalidInput("Name one character, or --all, with which --account may go.")
    if character_id is not None:
        console.confirm(f"Delete {character_id} for good?", yes=yes)
        with connect() as client:
            client.delete_character(character_id)
        console.say(f"Deleted {character_id}.")
        return
    console.confirm(f"Delete every character of {account or 'your account'} for good?", yes=yes)
    with connect() as client:
        erased = client.erase_characters(account=account)
    if as_json:
        console.json(erased)
    else:
        console.say(f"Deleted {erased.characters} characters with {erased.versions} versions.")


def _print(found: Character) -> None:
    public = ", public" if found.is_public else ""
    console.line(f"{found.name} ({found.id}@{found.version} of {found.newest}{public})", style=BOLD)
    facts = {
        "nickname": found.nickname or "",
        "owner": found.owner,
        "creator": found.creator,
        "came as": found.spec.value,
        "tags": ", ".join(found.tags),
        "assets": ", ".join(one.path for one in found.assets),
        "lorebook": f"{found.lorebook_entries} entries" if found.lorebook_entries else "",
    }
    for name, value in facts.items():
        if value:
            console.line(f"{name}: {value}", style=DIM)
    texts = {
        "creator notes": found.creator_notes,
        "system prompt": found.system_prompt,
        "description": found.description,
        "personality": found.personality,
        "scenario": found.scenario,
        "example messages": found.example_messages,
        "post-history instructions": found.post_history_instructions,
    }
    texts |= {f"greeting {number}": text for number, text in enumerate(found.greetings)}
    for name, text in texts.items():
        if text:
            shown = text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
            console.line(f"\n{name}:\n{shown}")
