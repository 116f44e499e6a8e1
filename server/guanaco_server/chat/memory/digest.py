"""Writes a summary without a model: the sentences that tell the most about who speaks, in the order in which they were said.

A sentence counts by what it holds: words about oneself, names, numbers, and words that are rare in the conversation. Questions
count little. The sentences of the summary before compete with the new ones, so a fact stays until enough others tell more.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from guanaco.chat import Sender
from guanaco_server.lore.activation import BYTES_PER_TOKEN, tokens
from guanaco_server.prompts.layouts import Utterance

USER = "The user"
MOST_READ_CHARS = 400_000  # of the newest turns: 0.2 s
MOST_SENTENCES = 2_000  # the newest ones compete
MOST_MISSES = 50  # sentences in a row that do not fit: then the budget is used up
MOST_CHARS = 4_000  # of a turn
MOST_SENTENCE_CHARS = 240  # a longer one is divided
LEAST_WORDS = 3
KEPT_BONUS = 1.0  # of a sentence that was kept before: what a summary says does not flicker

SENTENCE = re.compile(r"[^.!?…\u3002\uff01\uff1f\n]+[.!?…\u3002\uff01\uff1f]*")
WORD = re.compile(r"\w+")
NAME = re.compile(r"(?<!^)(?<![.!?:\"“'] )\b[A-Z]\w+")
NUMBER = re.compile(r"\d+")
ONESELF = re.compile(
    r"\b(?:i am|i'm|i was|i have|i've|i live|i work|i like|i love|i hate|i want|i need|i collect|i stud\w+|my|mine|our|call me|remember|promise\w*)\b",
    re.IGNORECASE,
)
ONESELF_WEIGHT, NAME_WEIGHT, NUMBER_WEIGHT, QUESTION_WEIGHT = 3.0, 1.0, 1.0, -3.0
USER_WEIGHT = 1.0
MOST_COUNTED = 2  # names, and numbers, of a sentence
UNSPACED = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af]")


@dataclass(frozen=True)
class _Sentence:
    place: int
    speaker: str
    text: str
    words: frozenset[str]
    bonus: float = 0.0


def digest(previous: str, turns: Sequence[Utterance], bot_name: str, budget: int) -> str:
    """Return a summary of at most ``budget`` tokens, four bytes each; empty where nothing is worth it.

    Args:
        previous: The summary that it continues.
        turns: What was said since.
        bot_name: The name under which the bot's sentences stand.
        budget: The tokens that it may take.
    """
    found = [*_kept_before(previous, bot_name)]
    found += deque(_sentences_of(_newest(turns), bot_name, len(found)), maxlen=MOST_SENTENCES)
    if not found:
        return ""
    seen_in = Counter(word for sentence in found for word in sentence.words)
    ranked = sorted(found, key=lambda one: (-_score(one, seen_in, len(found)), -one.place))
    return _text(_fitting(ranked, budget))


def _fitting(ranked: Sequence[_Sentence], budget: int) -> list[_Sentence]:
    """Take the sentences that tell something new, one after another, until the budget is used up."""
    chosen: list[_Sentence] = []
    misses = size = 0
    for sentence in ranked:
        if misses > MOST_MISSES:
            break
        if any(sentence.words <= other.words for other in chosen):
            continue
        own = len(sentence.text.encode())
        misses += 1
        if size + own > BYTES_PER_TOKEN * budget:  # whoever said it
            continue
        if tokens(_text([*chosen, sentence])) <= budget:
            chosen.append(sentence)
            misses, size = 0, size + own
    return chosen


def _kept_before(previous: str, bot_name: str) -> Iterable[_Sentence]:
    """Yield the sentences of the summary before; who said them stands at the beginning of a line."""
    place = 0
    for line in previous.splitlines():
        speaker, content = "", line
        for name in (USER, bot_name):
            if line.startswith(f"{name}: "):
                speaker, content = name, line[len(name) + 2 :]
        for text in _sentences(content):
            yield _sentence(place, speaker, text, KEPT_BONUS)
            place += 1


def _newest(turns: Sequence[Utterance]) -> Sequence[Utterance]:
    """Return the newest turns, as many as are read."""
    left = MOST_READ_CHARS
    for place in range(len(turns) - 1, -1, -1):
        left -= min(MOST_CHARS, len(turns[place].content))
        if left < 0:
            return turns[place + 1 :]
    return turns


def _sentences_of(turns: Sequence[Utterance], bot_name: str, place: int) -> Iterable[_Sentence]:
    for turn in turns:
        speaker = USER if turn.sender is Sender.USER else bot_name
        for text in _sentences(turn.content[:MOST_CHARS]):
            yield _sentence(place, speaker, text)
            place += 1


def _sentence(place: int, speaker: str, text: str, bonus: float = 0.0) -> _Sentence:
    return _Sentence(place, speaker, text, frozenset(WORD.findall(text.casefold())), bonus)


def _sentences(content: str) -> Iterable[str]:
    for found in SENTENCE.findall(content):
        whole = " ".join(found.split()).strip('*_"“” ')
        for text in textwrap.wrap(whole, MOST_SENTENCE_CHARS):
            size = len(UNSPACED.findall(text)) or len(WORD.findall(text))
            if size >= LEAST_WORDS:
                yield text


def _score(sentence: _Sentence, seen_in: Counter[str], count: int) -> float:
    text = sentence.text
    score = sentence.bonus + USER_WEIGHT * (sentence.speaker == USER)
    score += ONESELF_WEIGHT * bool(ONESELF.search(text))
    score += NAME_WEIGHT * min(MOST_COUNTED, len(NAME.findall(text)))
    score += NUMBER_WEIGHT * min(MOST_COUNTED, len(NUMBER.findall(text)))
    score += QUESTION_WEIGHT * text.endswith(("?", "\uff1f"))
    words = sentence.words
    rare = sum(math.log((1 + count) / seen_in[word]) for word in words) / max(1, len(words))
    return score + rare / math.log(2 + count)


def _text(sentences: Iterable[_Sentence]) -> str:
    """Return the sentences in their order; those that one speaker said in a row on one line."""
    lines: list[tuple[str, list[str]]] = []
    for sentence in sorted(sentences, key=lambda one: one.place):
        if not lines or lines[-1][0] != sentence.speaker:
            lines.append((sentence.speaker, []))
        lines[-1][1].append(sentence.text)
    return "\n".join(
        f"{speaker}: {' '.join(texts)}" if speaker else " ".join(texts) for speaker, texts in lines
    )
