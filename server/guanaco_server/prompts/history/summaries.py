"""Decides when a conversation's older turns are summarized, and what of them; the writing is chat/memory/.

    turns: | summarized already | to summarize | the newest exchange |
                                               ^ until

A summary is shown before the first user's message after it was written, and stays there until that message is cut: the prompt
only grows at its end. A new one is due when DUE_PART of a prompt's room was said since the last one was shown. After a cut
LOW_WATER of the room is left, which is more than that and a summary, so the newest summary is in the prompt. A prompt whose
persona leaves less than LEAST_ROOM has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from guanaco.chat import Sender
from guanaco_server.lore.activation import BYTES_PER_TOKEN, tokens
from guanaco_server.prompts.layouts import Summary, Utterance

FIRST_PART = 0.6  # of the room: before anything is cut
DUE_PART = 0.4
SUMMARY_PART = 8  # a summary takes at most this part of the room
LEAST_ROOM = 64  # tokens
SENTENCE_END = re.compile(r"[.!?…][\"”']?\s|[\u3002\uff01\uff1f]")


@dataclass(frozen=True)
class Unsummarized:
    """Turns to write a summary of, with the one that they continue. It will cover the conversation up to ``until``."""

    previous: Summary | None
    turns: Sequence[Utterance]
    until: int


def unsummarized(
    turns: Sequence[Utterance], *, room: int, forgotten_until: int = 0, tried_until: int = 0
) -> Unsummarized | None:
    """Return what the next summary is to be made of; None while none is due.

    Args:
        turns: The whole conversation, with the newest message.
        room: The tokens that a whole prompt has for turns.
        forgotten_until: The position up to which the app had the memory erased.
        tried_until: The position up to which nothing worth telling was found.
    """
    if room < LEAST_ROOM:
        return None
    shown = last_shown(turns)
    part = FIRST_PART if shown is None else DUE_PART
    if not _has_grown(turns, part * room, tried_until):
        return None
    previous = shown.summary if shown is not None else None
    begin = max(forgotten_until, previous.until if previous is not None else 0)
    settled = turns[: _last_question(turns)]
    new = [turn for turn in settled if turn.position > begin]
    return Unsummarized(previous, new, new[-1].position) if new else None


def room_of(prompt_tokens: int, fixed_texts: Iterable[str]) -> int:
    """Estimate the tokens that a prompt has for turns beside its fixed texts."""
    return max(0, prompt_tokens - sum(map(tokens, fixed_texts)))


def summary_budget(prompt_tokens: int, fixed_texts: Iterable[str], wanted: int) -> int:
    """Return the tokens that one summary may take; ``wanted`` is the submission's own limit."""
    return min(wanted, room_of(prompt_tokens, fixed_texts) // SUMMARY_PART)


def within_budget(text: str, budget: int) -> str:
    """Cut a text to the budget, four bytes a token, at the end of a sentence or else of a word."""
    kept = text.encode()[: BYTES_PER_TOKEN * budget].decode(errors="ignore")
    if kept == text:
        return text
    ends = [found.end() for found in SENTENCE_END.finditer(kept)]
    if ends:
        return kept[: ends[-1]].rstrip()
    return kept.rpartition(" ")[0] or kept


def last_shown(turns: Sequence[Utterance]) -> Utterance | None:
    """Return the turn with the newest summary."""
    return next((turn for turn in reversed(turns) if turn.summary is not None), None)


def _has_grown(turns: Sequence[Utterance], limit: float, tried_until: int) -> bool:
    """Tell whether more than ``limit`` tokens were said since the newest summary was shown, or nothing to tell was found."""
    token_count = 0
    for turn in reversed(turns):
        if tried_until and turn.position <= tried_until:
            return False
        token_count += tokens(turn.content) + tokens(turn.passages)
        if token_count > limit:
            return True
        if turn.summary is not None:
            return False
    return False


def _last_question(turns: Sequence[Utterance]) -> int:
    """Return the place of the newest user's message: what follows it may still be replaced."""
    for place in range(len(turns) - 1, -1, -1):
        if turns[place].sender is Sender.USER:
            return place
    return 0
