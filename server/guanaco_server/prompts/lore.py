"""Puts a lorebook's entries into a prompt: constant ones behind the persona, the others before the user's message at which they were told.

There they stay until that turn is cut. So a prompt only grows at its end, and the model server's prefix cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from guanaco.chat import Bot, Sender
from guanaco.lore import MAX_SCAN_DEPTH
from guanaco_server.lore.activation import EPOCH_MESSAGES, require_usable, takes_long, triggered
from guanaco_server.prompts.layouts import Spoken, Utterance
from guanaco_server.runtime import threads


def asked(bot: Bot, turns: Sequence[Spoken], content: str) -> Utterance:
    """The user's message with the entries to tell before it."""
    book = bot.lorebook
    if book is None:
        return Utterance(Sender.USER, content)
    said, in_force = _scanned(bot, turns, content)
    return Utterance(Sender.USER, content, triggered(book, said, in_force))


async def ask(bot: Bot, turns: Sequence[Spoken], content: str) -> Utterance:
    """The same, in a thread where that may take long: a stranger wrote the lorebook."""
    book = bot.lorebook
    if book is None or not takes_long(
        book, [*(turn.content for turn in turns[-MAX_SCAN_DEPTH:]), content]
    ):
        return asked(bot, turns, content)
    return await threads.CHATS.run(asked, bot, tuple(turns), content)


def _scanned(bot: Bot, turns: Sequence[Spoken], content: str) -> tuple[list[str], set[int]]:
    """The messages that keys are looked for in, and the places of the entries that are in force."""
    recent = turns[max(0, len(turns) - EPOCH_MESSAGES) :]
    in_force = {place for turn in recent for place in getattr(turn, "lore", ())}
    greeting = [bot.first_message] if len(recent) == len(turns) and bot.first_message else []
    return [*greeting, *(turn.content for turn in recent), content], in_force


def require_usable_book(bot: Bot) -> None:
    """Raise InvalidInput for a bot whose lorebook is too large, or has a key that could take long."""
    if bot.lorebook is not None:
        require_usable(bot.lorebook)


def with_lore(bot: Bot, turns: Sequence[Spoken]) -> Sequence[Spoken]:
    """The turns of a talk that is recorded nowhere, as a conversation would have them."""
    if bot.lorebook is None:
        return turns
    told: list[Spoken] = []
    for turn in turns:
        is_user = turn.sender is Sender.USER
        told.append(asked(bot, told, turn.content) if is_user else turn)
    return told


async def with_lore_later(bot: Bot, turns: Sequence[Spoken]) -> Sequence[Spoken]:
    """The same, in a thread: each message of the user is looked through."""
    if bot.lorebook is None:
        return turns
    return await threads.CHATS.run(with_lore, bot, turns)


def without_newest_lore(turns: Sequence[Spoken]) -> Sequence[Spoken] | None:
    """The same without the entries, the summary and the earlier turns at the newest message; None where there are none."""
    newest = turns[-1] if turns else None
    if not isinstance(newest, Utterance) or not (newest.lore or newest.passages or newest.summary):
        return None
    return [*turns[:-1], newest._replace(lore=(), passages="", summary=None)]
