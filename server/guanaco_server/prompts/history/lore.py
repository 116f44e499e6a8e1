"""Puts a lorebook's entries into a prompt: constant ones behind the persona, the others before the user's message at which they were told.

There they stay until that turn is cut. So a prompt only grows at its end, and the model server's prefix cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from guanaco.chat import Bot, Sender
from guanaco.lore import MAX_SCAN_DEPTH
from guanaco_server.lore.activation import (
    EPOCH_MESSAGES,
    has_patterns,
    require_usable,
    takes_long,
    triggered,
)
from guanaco_server.prompts.layouts import ChatTurn, Utterance
from guanaco_server.runtime import threads

PREVIEWED = (
    100  # the newest messages of a talk that is recorded nowhere, which keys are looked for in
)


def asked(bot: Bot, turns: Sequence[ChatTurn], content: str) -> Utterance:
    """Return the user's message with the entries to tell before it."""
    book = bot.lorebook
    if book is None:
        return Utterance(Sender.USER, content)
    messages, in_force = _scanned(bot, turns, content)
    return Utterance(Sender.USER, content, triggered(book, messages, in_force))


async def ask(bot: Bot, turns: Sequence[ChatTurn], content: str) -> Utterance:
    """Return the same, in a thread where that may take long: a stranger wrote the lorebook."""
    book = bot.lorebook
    if book is None or not takes_long(
        book, [*(turn.content for turn in turns[-MAX_SCAN_DEPTH:]), content]
    ):
        return asked(bot, turns, content)
    return await threads.CHATS.run(asked, bot, tuple(turns), content)


def _scanned(bot: Bot, turns: Sequence[ChatTurn], content: str) -> tuple[list[str], set[int]]:
    """Return the messages that keys are looked for in, and the places of the entries that are in force."""
    recent = turns[max(0, len(turns) - EPOCH_MESSAGES) :]
    in_force = {place for turn in recent for place in getattr(turn, "lore", ())}
    greeting = [bot.first_message] if len(recent) == len(turns) and bot.first_message else []
    return [*greeting, *(turn.content for turn in recent), content], in_force


async def require_usable_book(bot: Bot, account_id: str) -> None:
    """Raise InvalidInput for a bot of an account whose lorebook is too large, or has a key that could take long."""
    if bot.lorebook is None:
        return
    if has_patterns(bot.lorebook):
        await threads.BOOKS.run_in_turn(account_id, require_usable, bot.lorebook)
    else:
        require_usable(bot.lorebook)


async def with_lore(bot: Bot, turns: Sequence[ChatTurn], account_id: str) -> Sequence[ChatTurn]:
    """Return the turns of a talk that is recorded nowhere, as a conversation would have them; older ones than PREVIEWED tell nothing.

    Each message takes its own turn in a thread, so that a long talk holds up nobody else's for long.
    """
    if bot.lorebook is None:
        return turns
    begin = max(0, len(turns) - PREVIEWED)
    annotated: list[ChatTurn] = list(turns[:begin])
    for turn in turns[begin:]:
        if turn.sender is Sender.USER:
            content, before = turn.content, tuple(annotated)
            annotated.append(
                await threads.BOOKS.run_in_turn(account_id, asked, bot, before, content)
            )
        else:
            annotated.append(turn)
    return annotated


def without_newest_lore(turns: Sequence[ChatTurn]) -> Sequence[ChatTurn] | None:
    """Return the same without the entries, the summary and the earlier turns at the newest message; None where there are none."""
    newest = turns[-1] if turns else None
    if not isinstance(newest, Utterance) or not (newest.lore or newest.passages or newest.summary):
        return None
    return [*turns[:-1], newest._replace(lore=(), passages="", summary=None)]
