"""Makes the bot of a conversation from a character's texts: names put in, chance decided, the fields of a bot filled.

system prompt, description, personality   →  memory          never cut
scenario, example messages                →  prompt          cut last
the chosen greeting                       →  first_message
post-history instructions                 →  post_history    behind the turns, never cut
lorebook                                  →  lorebook        told when it is spoken of
"""

from __future__ import annotations

from guanaco.characters import CharacterTexts
from guanaco.chat import MAX_MESSAGE_CHARS, Bot
from guanaco.errors import InvalidInput
from guanaco.lore import MAX_ENTRY_CHARS, Lorebook
from guanaco_server.characters.macros import Names, count_of, expand
from guanaco_server.lore.activation import require_usable

NO_GREETING = -1
LONGEST_USER = "W" * 64


def cast(texts: CharacterTexts, *, user_name: str, seed: str, greeting: int = 0) -> Bot:
    """Return the bot that a user meets. InvalidInput for a greeting that there is not, or a text that becomes too long."""
    names = _names(texts, user_name)

    def expanded(name: str, text: str) -> str:
        return expand(text, names, seed, name).strip()

    personality = expanded("personality", texts.personality)
    scenario = expanded("scenario", texts.scenario)
    return Bot(
        name=names.char,
        memory=_joined(
            "persona",
            expanded("system_prompt", texts.system_prompt),
            expanded("description", texts.description),
            f"{names.char}'s personality: {personality}" if personality else "",
        ),
        prompt=_joined(
            "scenario with example messages",
            f"Scenario: {scenario}" if scenario else "",
            expanded("example_messages", texts.example_messages),
        ),
        first_message=_greeting(texts, names, seed, greeting),
        post_history=_joined(
            "post-history instructions",
            expanded("post_history_instructions", texts.post_history_instructions),
        ),
        lorebook=_book(texts, names, seed),
    )


def _book(texts: CharacterTexts, names: Names, seed: str) -> Lorebook | None:
    """Return the lorebook with names put in; each entry has its own chance."""
    book = texts.lorebook
    if book is None or not book.entries:
        return None
    contents = [
        expand(one.content, names, seed, f"lorebook {place}").strip()
        for place, one in enumerate(book.entries)
    ]
    if (longest := max(map(len, contents))) > MAX_ENTRY_CHARS:
        raise InvalidInput(
            f"An entry of the lorebook has {longest:,} characters with the names put in; {MAX_ENTRY_CHARS:,} are allowed."
        )
    entries = [
        one.model_copy(update={"content": content})
        for one, content in zip(book.entries, contents, strict=True)
    ]
    cast_book = book.model_copy(update={"entries": tuple(entries)})
    require_usable(cast_book)
    return cast_book


def require_castable(texts: CharacterTexts) -> None:
    """Raise InvalidInput for a card with which no conversation could begin, whatever the user is called."""
    cast(texts, user_name=LONGEST_USER, seed="", greeting=NO_GREETING)
    for greeting in range(len(texts.greetings)):
        _greeting(texts, _names(texts, LONGEST_USER), "", greeting)


def macros_of(texts: CharacterTexts) -> int:
    """Return at most how many macros casting expands."""
    longest = max(map(count_of, texts.greetings), default=0)
    return longest + sum(
        map(
            count_of,
            (
                texts.system_prompt,
                texts.description,
                texts.personality,
                texts.scenario,
                texts.example_messages,
                texts.post_history_instructions,
                *(one.content for one in (texts.lorebook.entries if texts.lorebook else ())),
            ),
        )
    )


def _names(texts: CharacterTexts, user_name: str) -> Names:
    return Names(char=texts.nickname or texts.name, user=user_name)


def _greeting(texts: CharacterTexts, names: Names, seed: str, chosen: int) -> str:
    if chosen == NO_GREETING or (chosen == 0 and not texts.greetings):
        return ""
    if chosen >= len(texts.greetings):
        count = len(texts.greetings)
        raise InvalidInput(
            f"The character has {count} greeting{'' if count == 1 else 's'}, so there is none with the number {chosen}.",
            hint="They are counted from 0; -1 is none.",
        )
    text = expand(texts.greetings[chosen], names, seed, f"greeting {chosen}")
    return _joined(f"greeting {chosen}", text.strip())


def _joined(what: str, *texts: str) -> str:
    """Return the texts that are not empty, as lines. InvalidInput where they are more than a bot can hold."""
    joined = "\n".join(text for text in texts if text)
    if len(joined) > MAX_MESSAGE_CHARS:
        raise InvalidInput(
            f"The character's {what} has {len(joined):,} characters with the names put in; {MAX_MESSAGE_CHARS:,} are allowed.",
            hint="Shorten it and push a new version.",
        )
    return joined
