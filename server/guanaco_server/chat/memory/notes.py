"""Asks a model for a summary: what it is told, and whether what it wrote can be used.

A fine-tuned chat model may write anything. Its text is used only if most of its words are the conversation's own, and if it
keeps what the rule (digest.py) finds most telling: names and numbers above all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from guanaco.chat import Bot, Sender
from guanaco_server.lore.activation import tokens
from guanaco_server.prompts.history.summaries import within_budget
from guanaco_server.prompts.layouts import Utterance

WRITER = Bot(
    name="Notes",
    memory=(
        "You keep notes on a conversation. Keep every name, number, place, date, promise and preference, and what happened. "
        "Write short plain sentences in the third person, in the language of the conversation. Add nothing that was not said."
    ),
    prompt="",
)
WRITER_USER = "Conversation"
READ_PART = 0.6  # of the model's prompt, for what it is to summarize
LEAST_OWN_PART = 0.5  # of a summary's words, that stand in the conversation
LEAST_KEPT_PART = 0.5  # of what the rule's summary tells
NAME_WEIGHT = 3.0  # of a name or a number, beside another word
LEAST_WORDS = 3
WORDS_PER_TOKEN = 0.7
WORD = re.compile(r"[^\W\d_]{4,}|\d+")
ANY_WORD = re.compile(r"\w+")
NAME = re.compile(r"(?<=[a-z,;] )[A-Z]\w+")  # not at the beginning of a sentence
SPEAKERS = frozenset({"user"})
UNSPACED = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af]{2,}")


def readable(turns: Sequence[Utterance], prompt_tokens: int) -> Sequence[Utterance]:
    """Return the oldest turns that the model's prompt has room for; one at least."""
    room = READ_PART * prompt_tokens
    for place, turn in enumerate(turns):
        room -= tokens(turn.content)
        if room < 0:
            return turns[: max(1, place)]
    return turns


def request(
    previous: str, turns: Sequence[Utterance], bot_name: str, user_name: str, budget: int
) -> str:
    """Return the message that asks for the notes."""
    turns_text = "\n".join(
        f"{user_name if turn.sender is Sender.USER else bot_name}: {' '.join(turn.content.split())}"
        for turn in turns
    )
    before = f"The notes so far:\n{previous}\n\nThen they said:\n" if previous else ""
    words = max(10, int(budget * WORDS_PER_TOKEN))
    return f"{before}{turns_text}\n\nNow write the whole notes anew, in one paragraph of at most {words} words."


def usable(written: str, source: str, budget: int) -> str:
    """Return the model's text on one line and within the budget; empty where it is not about the conversation."""
    storable = written.replace("\x00", "").encode(errors="ignore").decode()
    text = within_budget(" ".join(storable.split()), budget)
    own, known = _features(text), _features(source)
    if len(own) < LEAST_WORDS or len(own & known) < LEAST_OWN_PART * len(own):
        return ""
    return text


def keeps(written: str, by_rule: str) -> bool:
    """Tell whether a model's text keeps enough of what the rule found worth telling."""
    names = {name.casefold() for name in NAME.findall(by_rule)}
    weights = {
        word: NAME_WEIGHT if word in names or word.isdigit() else 1.0
        for word in _features(by_rule) | names
        if word not in SPEAKERS
    }
    found = set(ANY_WORD.findall(written.casefold())) | _features(written)
    kept = sum(weight for word, weight in weights.items() if word in found)
    return kept >= LEAST_KEPT_PART * sum(weights.values())


def _features(text: str) -> set[str]:
    """Return the longer words and the numbers; of text without spaces, each two characters."""
    folded = text.casefold()
    pairs = {
        run[place : place + 2] for run in UNSPACED.findall(folded) for place in range(len(run) - 1)
    }
    return pairs | {word for word in WORD.findall(folded) if not UNSPACED.search(word)}
