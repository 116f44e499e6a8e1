"""Reads Character Cards V1, V2 and V3, and our own form.

Only the fields that prompts and pages need are read. The card itself is stored as it came, with every field that nobody here knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from guanaco.characters import MAX_GREETINGS, MAX_TAGS, CardSpec, CharacterForm, CharacterTexts
from guanaco.chat import MAX_MESSAGE_CHARS
from guanaco.errors import InvalidCard
from guanaco.errors.validation import one_sentence
from guanaco.forms import DECEPTIVE
from guanaco.lore import Lorebook
from guanaco_server.characters.books import as_card_book, read_book
from guanaco_server.characters.macros import MAX_DEPTH, depth_of

MAX_CARD_BYTES = (
    1_048_576  # of JSON, which is parsed while the interpreter does nothing else: 10 ms
)
MAX_NAME_CHARS = 64
MAX_NOTES_CHARS = 65_536
MAX_TAG_CHARS = 200
SPECS = {"chara_card_v2": CardSpec.V2, "chara_card_v3": CardSpec.V3}
PROMPT_FIELDS = (
    "description",
    "personality",
    "scenario",
    "mes_example",
    "system_prompt",
    "post_history_instructions",
)
V1_FIELDS = ("name", "description", "personality", "scenario", "first_mes", "mes_example")
BACKFILLED = "This character is a Character Card V3, of which this is what a V2 card can say."


@dataclass(frozen=True)
class Card:
    """``json`` is the card as it came. ``icon`` is where it says that its picture is."""

    spec: CardSpec
    json: str
    texts: CharacterTexts
    icon: str | None = None
    value: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


def read_card(data: bytes) -> Card:
    """Read a card or our own form from JSON. InvalidCard in one sentence for anything else."""
    value, text = parse_object(data)
    spec = value.get("spec")
    if isinstance(spec, str) and spec in SPECS:
        return _read_nested(SPECS[spec], value, text)
    if spec is not None:
        raise InvalidCard(
            f"The card's spec is {_format_value(spec)}.", hint="It should be chara_card_v2 or _v3."
        )
    if "first_mes" in value or "mes_example" in value:
        return Card(CardSpec.V1, text, _texts(value, ""), value=value)
    return _read_form(value)


def parse_object(data: bytes) -> tuple[dict[str, Any], str]:
    """Return the JSON object in ``data``, and its text. InvalidCard where there is none."""
    if len(data) > MAX_CARD_BYTES:
        raise InvalidCard(
            f"The card's JSON has {len(data):,} bytes; {MAX_CARD_BYTES:,} are allowed."
        )
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        if "recursion" in str(error):
            raise InvalidCard("The card's JSON is nested deeper than 200 levels.") from None
        raise InvalidCard(f"The card is not JSON in UTF-8: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidCard("The card's JSON is not an object.")
    return value, data.decode()


def as_v3(card: Card) -> bytes:
    """Return the card as a V3 one, for a CHARX file, which must have such a one."""
    if card.spec is CardSpec.V3:
        return card.json.encode()
    value = card.value
    if card.spec is CardSpec.V1:
        data, outside = dict(value), {}
    else:
        data, outside = dict(value["data"]), {k: v for k, v in value.items() if k != "data"}
    defaults: dict[str, Any] = dict.fromkeys(
        (*V1_FIELDS, "creator_notes", "system_prompt", "post_history_instructions", "creator"), ""
    )
    defaults |= {"character_version": "", "alternate_greetings": [], "group_only_greetings": []}
    defaults |= {"tags": [], "extensions": {}}
    upgraded = {**outside, "spec": "chara_card_v3", "spec_version": "3.0"}
    return _dumped({**upgraded, "data": {**defaults, **data}})


def with_book(spec: CardSpec, text: str, book: Lorebook | None) -> bytes:
    """Return the card's JSON with another lorebook, or none. A V1 card becomes a V3 one, since it can hold none."""
    value = from_json(text)
    if spec is CardSpec.V1:
        value = from_json(as_v3(Card(spec, text, CharacterTexts(name="V1"), value=value)))
    data = {name: each for name, each in value["data"].items() if name != "character_book"}
    if book is not None:
        data["character_book"] = as_card_book(book)
    return _dumped({**value, "data": data})


def as_v2(card: Card) -> bytes:
    """Return what a V2 reader can know of a V3 card, with a note for people that it is one."""
    data = dict(card.value["data"])
    notes = data.get("creator_notes")
    data["creator_notes"] = "\n\n".join([BACKFILLED, *([notes] if notes else [])])
    return _dumped({**card.value, "spec": "chara_card_v2", "spec_version": "2.0", "data": data})


def stored_card(spec: CardSpec, text: str, texts: CharacterTexts) -> Card:
    """Return a card that was read before."""
    value = from_json(text)
    return Card(spec, text, texts, value=value)


def _dumped(value: dict[str, Any]) -> bytes:
    return to_json(value, inf_nan_mode="null")


def _read_nested(spec: CardSpec, value: dict[str, Any], text: str) -> Card:
    data = value.get("data")
    if not isinstance(data, dict):
        raise InvalidCard("The card has no object `data`, where its fields should be.")
    texts = _texts(data, "data.", has_nickname=spec is CardSpec.V3)
    return Card(spec, text, texts, _icon(data), value=value)


def _read_form(value: dict[str, Any]) -> Card:
    try:
        form = CharacterForm.model_validate_json(to_json(value))
    except ValidationError as error:
        raise InvalidCard(
            f"The character is not in our form: {one_sentence(error)}",
            hint="A Character Card V2 or V3 names itself in `spec`; a V1 card has a `first_mes`.",
        ) from None
    first, *others = form.greetings or ("",)
    data: dict[str, Any] = {
        "name": form.name,
        "description": form.description,
        "personality": form.personality,
        "scenario": form.scenario,
        "first_mes": first,
        "mes_example": form.example_messages,
        "creator_notes": form.creator_notes,
        "system_prompt": form.system_prompt,
        "post_history_instructions": form.post_history_instructions,
        "alternate_greetings": others,
        "tags": list(form.tags),
        "creator": form.creator,
        "character_version": form.character_version,
        "extensions": {},
        "group_only_greetings": [],
    }
    if form.nickname is not None:
        data["nickname"] = form.nickname
    if form.lorebook is not None:
        data["character_book"] = as_card_book(form.lorebook)
    made = {"spec": "chara_card_v3", "spec_version": "3.0", "data": data}
    card = _read_nested(CardSpec.V3, made, _dumped(made).decode())
    return Card(CardSpec.FORM, card.json, card.texts, value=made)


def _texts(data: dict[str, Any], at: str, *, has_nickname: bool = True) -> CharacterTexts:
    texts = {name: _text(data, name, at) for name in PROMPT_FIELDS}
    for name, text in texts.items():
        _require_shallow(text, at + name)
    nickname = _name(data, "nickname", at) if has_nickname else ""
    first = _text(data, "first_mes", at)
    greetings = [first, *_list(data, "alternate_greetings", at, MAX_GREETINGS, MAX_MESSAGE_CHARS)]
    for greeting in greetings:
        _require_shallow(greeting, f"{at}greetings")
    name = _name(data, "name", at)
    if not name:
        raise InvalidCard(f"The card's {at}name is empty.", hint="A character needs a name.")
    return CharacterTexts(
        name=name,
        nickname=nickname or None,
        description=texts["description"],
        personality=texts["personality"],
        scenario=texts["scenario"],
        greetings=tuple(greetings) if any(greetings) else (),
        example_messages=texts["mes_example"],
        system_prompt=texts["system_prompt"],
        post_history_instructions=texts["post_history_instructions"],
        creator=_text(data, "creator", at),
        creator_notes=_text(data, "creator_notes", at, MAX_NOTES_CHARS),
        character_version=_text(data, "character_version", at),
        tags=tuple(_list(data, "tags", at, MAX_TAGS, MAX_TAG_CHARS)),
        lorebook_entries=_lorebook_entries(data),
        lorebook=read_book(data),
    )


def _text(data: dict[str, Any], name: str, at: str, most: int = MAX_MESSAGE_CHARS) -> str:
    value = data.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidCard(f"The card's {at}{name} is not a text.")
    if len(value) > most:
        raise InvalidCard(
            f"The card's {at}{name} has {len(value):,} characters; {most:,} are allowed."
        )
    return value.replace("\x00", "")


def _name(data: dict[str, Any], name: str, at: str) -> str:
    """Return a name on one line, without characters that hide or turn text."""
    given = "".join(c if c.isprintable() else " " for c in _text(data, name, at))
    cleaned = " ".join(DECEPTIVE.sub("", given).split())
    if len(cleaned) > MAX_NAME_CHARS:
        raise InvalidCard(
            f"The card's {at}{name} has {len(cleaned)} characters; {MAX_NAME_CHARS} are allowed."
        )
    return cleaned


def _list(data: dict[str, Any], name: str, at: str, most: int, chars: int) -> list[str]:
    value = data.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidCard(f"The card's {at}{name} is not a list of texts.")
    if len(value) > most:
        raise InvalidCard(f"The card's {at}{name} has {len(value):,} texts; {most} are allowed.")
    for one in value:
        if len(one) > chars:
            raise InvalidCard(
                f"A text in the card's {at}{name} has {len(one):,} characters; {chars:,} are allowed."
            )
    return [one.replace("\x00", "") for one in value]


def _require_shallow(text: str, where: str) -> None:
    if (depth := depth_of(text)) > MAX_DEPTH:
        raise InvalidCard(
            f"The macros in the card's {where} are nested {depth} deep; {MAX_DEPTH} are allowed."
        )


def _lorebook_entries(data: dict[str, Any]) -> int:
    book = data.get("character_book")
    entries = book.get("entries") if isinstance(book, dict) else None
    return len(entries) if isinstance(entries, list | dict) else 0


def _icon(data: dict[str, Any]) -> str | None:
    """Return the place of the main icon, as the card's assets give it."""
    assets = data.get("assets")
    icons = [
        one
        for one in (assets if isinstance(assets, list) else ())
        if isinstance(one, dict) and one.get("type") == "icon" and isinstance(one.get("uri"), str)
    ]
    main = next((one for one in icons if one.get("name") == "main"), icons[0] if icons else None)
    return None if main is None else str(main["uri"])


def _format_value(value: Any) -> str:
    return repr(value)[:40]
