"""Asks a model for a shorter persona: what it is told, and whether what it wrote can be used."""

from __future__ import annotations

from guanaco.chat import Bot
from guanaco_server.chat.personas.compression import facts

WRITER = Bot(
    name="Editor",
    memory=(
        "You shorten descriptions of characters. Keep every name, number, place, relation and trait. "
        "Write short plain sentences in the language of the description. Add nothing."
    ),
)
WRITER_USER = "Author"
LEAST_OWN_PART = 0.6  # of the facts that the model tells, which stand in the original
WORDS_PER_TOKEN = 0.7


def request(name: str, text: str, budget: int) -> str:
    """Return the message that asks for a shorter description."""
    words = max(10, int(budget * WORDS_PER_TOKEN))
    return f"The description of {name}:\n{text.strip()}\n\nNow write it in at most {words} words, in one paragraph."


def usable(written: str, original: str) -> str:
    """Return the model's text on one line; empty where it tells what the original does not."""
    storable = written.replace("\x00", "").encode(errors="ignore").decode()
    text = " ".join(storable.split())
    told, known = facts(text), facts(original).keys()
    own = sum(weight for fact, weight in told.items() if fact in known)
    return text if told and own >= LEAST_OWN_PART * sum(told.values()) else ""
