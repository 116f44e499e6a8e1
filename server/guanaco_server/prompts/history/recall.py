"""Finds earlier turns that no longer fit into the prompt and share words with the user's message, without any model (BM25).

    turns: | out of reach, searched | what the prompt may still hold | the message

A turn that was recalled within the last EPOCH_MESSAGES stays where it was shown, takes of the budget, and is not shown again.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial

from guanaco.chat import Bot, Sender
from guanaco_server.lore.activation import EPOCH_MESSAGES, tokens
from guanaco_server.prompts.counting import Generations
from guanaco_server.prompts.history.truncation import LOW_WATER
from guanaco_server.prompts.layouts import Utterance
from guanaco_server.runtime import threads

BM25_K1, BM25_B = 1.2, 0.75  # Robertson and Zaragoza 2009, section 3
COMMON_SHARE = 10  # a word in more than a tenth of the turns tells nothing
COMMON_LEAST = 2
KEPT_BYTES = 16_000_000  # of the words of texts, and at most twice as much
WORD_BYTES = 130  # a word and its count, in a Counter
MOST_ASKED = 256  # words of the message
MOST_SEARCHED_CHARS = 400_000  # the newest that are out of reach
QUICK_CHARS = 8_000  # are searched on the event loop, in some 5 ms where they are new
LINE_TOKENS = 8  # of the words that say who said it
WORD = re.compile(r"\w{2,}")
MOST_CHARS = 4_000  # of a turn are searched


async def recall(
    turns: Sequence[Utterance], content: str, *, room: int, budget: int, forgotten_until: int = 0
) -> tuple[int, ...]:
    """Do what ``recalled`` does, in a thread where there is much to search."""
    work = partial(
        recalled,
        tuple(turns),
        content,
        room=room,
        budget=budget,
        forgotten_until=forgotten_until,
    )
    if sum(len(turn.content) for turn in turns) <= QUICK_CHARS:
        return work()
    return await threads.CHATS.run(work)


def recalled(
    turns: Sequence[Utterance], content: str, *, room: int, budget: int, forgotten_until: int = 0
) -> tuple[int, ...]:
    """Return the positions of the earlier turns to show again with a message, oldest first.

    Args:
        turns: The conversation so far, without the message.
        content: The message.
        room: The tokens that a whole prompt has for turns: what surely stands there is not searched.
        budget: The tokens that the recalled turns may take, with those that are in force.
        forgotten_until: The position up to which nothing is remembered.
    """
    searched = [
        turn for turn in turns[: _first_kept_turn(turns, room)] if turn.position > forgotten_until
    ]
    searched = _newest(searched)
    recent = turns[max(0, len(turns) - EPOCH_MESSAGES) :]
    in_force = {position for turn in recent for position in turn.recalled}
    budget -= sum(_size(turn) for turn in searched if turn.position in in_force)
    chosen = []
    for place in _ranked(searched, content):
        turn = searched[place]
        size = _size(turn)
        if turn.position not in in_force and size <= budget:
            budget -= size
            chosen.append(turn.position)
    return tuple(sorted(chosen))


def passages(bot: Bot, turns: Sequence[Utterance], positions: Sequence[int]) -> str:
    """Return the turns at these positions as lines of the prompt; what was deleted meanwhile is left out."""
    if not positions:
        return ""
    by_position = {turn.position: turn for turn in turns}
    found = [by_position[position] for position in positions if position in by_position]
    return "\n".join(_line(bot, turn) for turn in found)


def _line(bot: Bot, turn: Utterance) -> str:
    who = "the user" if turn.sender is Sender.USER else bot.name
    return f"Earlier, {who} said: {' '.join(turn.content.split())}"


def _size(turn: Utterance) -> int:
    return tokens(turn.content) + LINE_TOKENS


def _first_kept_turn(turns: Sequence[Utterance], room: int) -> int:
    """Return the first turn that a prompt surely holds right after a cut."""
    room = int(LOW_WATER * max(0, room))
    for place in range(len(turns) - 1, -1, -1):
        room -= tokens(turns[place].content) + tokens(turns[place].passages)
        if room < 0:
            return place + 1
    return 0


def _newest(turns: list[Utterance]) -> list[Utterance]:
    """Return as many of the newest turns as may be searched."""
    left = MOST_SEARCHED_CHARS
    for place in range(len(turns) - 1, -1, -1):
        left -= min(len(turns[place].content), MOST_CHARS)
        if left < 0:
            return turns[place + 1 :]
    return turns


def _ranked(turns: Sequence[Utterance], content: str) -> list[int]:
    """Return the places of the turns that share words with the content, by their BM25 score."""
    counted = [_words(turn.content) for turn in turns]
    asked = list(_words(content))[:MOST_ASKED]
    seen_in = {word: sum(word in words for words in counted) for word in asked}
    limit = max(COMMON_LEAST, len(turns) // COMMON_SHARE)
    weights = {
        word: math.log(1 + (len(turns) - n + 0.5) / (n + 0.5))
        for word, n in seen_in.items()
        if 0 < n <= limit
    }
    sizes = [words.total() for words in counted]
    mean = sum(sizes) / max(1, len(sizes)) or 1.0
    scores = {}
    for place, words in enumerate(counted):
        if shared := [word for word in weights if word in words]:
            norm = BM25_K1 * (1 - BM25_B + BM25_B * sizes[place] / mean)
            scores[place] = sum(
                weights[word] * words[word] * (BM25_K1 + 1) / (words[word] + norm)
                for word in shared
            )
    return sorted(scores, key=lambda place: (-scores[place], -place))


_kept: Generations[bytes, Counter[str]] = Generations(KEPT_BYTES)
_keeping = threading.Lock()


def _words(content: str) -> Counter[str]:
    key = hashlib.sha256(content[:MOST_CHARS].encode("utf-8", "surrogatepass")).digest()
    with _keeping:
        words = _kept.find(key)
    if words is None:
        words = Counter(WORD.findall(content[:MOST_CHARS].casefold()))
        with _keeping:
            _kept.keep(key, words, WORD_BYTES * (1 + len(words)))
    return words
