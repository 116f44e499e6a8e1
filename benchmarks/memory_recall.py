"""The share of planted facts that are in the prompt when they are asked for, within a fixed budget.

    make bench-memory ARGS='--turns=400 --seeds=0,1,2'

A made set in the manner of LongMemEval: facts are told at seeded places among small talk, and each is asked for at the end,
once in the fact's own words and once in others, which no search by words can find. A fact is there where its sentence
is in the platform's own prompt; a word is a token. Summaries are written by the rule, as they are where no model can be
asked, in the turns in which the platform would write them. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from guanaco.chat import Bot, Sender  # noqa: E402
from guanaco.prompts import PRESETS  # noqa: E402
from guanaco_server.chat.memory.digest import digest  # noqa: E402
from guanaco_server.demo.corpus import CORPUS  # noqa: E402
from guanaco_server.lore.activation import tokens  # noqa: E402
from guanaco_server.prompts.history.recall import WORD, passages, recalled  # noqa: E402
from guanaco_server.prompts.history.summaries import unsummarized  # noqa: E402
from guanaco_server.prompts.layouts import Summary, Utterance  # noqa: E402
from guanaco_server.prompts.room import build_prompts  # noqa: E402
from guanaco_server.prompts.sample import SAMPLE  # noqa: E402
from guanaco_server.prompts.service import PromptService  # noqa: E402

BOT = Bot(name="Ada", memory="An owl who keeps a library.")
LINES = CORPUS.strip().splitlines()
PROMPT_TOKENS, RECALL_TOKENS, SUMMARY_TOKENS, FULL_TOKENS = 1_024, 128, 128, 131_072
FACTS = (  # the fact, a question in its words, a question in others
    ("My ferret is called Quillon.", "What is my ferret called?", "Who is my pet?"),
    ("I was born in Trieste.", "Where was I born?", "Which town do I come from?"),
    ("My sister plays the oboe.", "What does my sister play?", "Is anybody musical at home?"),
    ("I am allergic to walnuts.", "What am I allergic to?", "Which food makes me ill?"),
    ("My bicycle is painted orange.", "What colour is my bicycle?", "How does what I ride look?"),
    ("I studied geology at university.", "What I studied, which was it?", "What is my degree?"),
    ("My dentist is Doctor Okafor.", "Who is my dentist?", "Who looks after my teeth?"),
    ("Our wedding was in October.", "When was our wedding?", "When did we marry?"),
    ("I collect antique barometers.", "What do I collect?", "What is my hobby?"),
    ("My landlord raised the rent twice.", "What of my landlord?", "Did my flat get dearer?"),
)

Choice = Callable[[Sequence[Utterance], str], tuple[int, ...]]


@dataclass(frozen=True)
class Figures:
    """Shares of the facts, and what the search adds to a turn."""

    choice: str
    in_its_words: float
    in_others: float
    ms_p50: float
    ms_max: float
    writing_ms_p50: float


def nothing(turns: Sequence[Utterance], asked: str) -> tuple[int, ...]:
    return ()


ROOM = PROMPT_TOKENS - tokens(BOT.memory)


def by_bm25(turns: Sequence[Utterance], asked: str) -> tuple[int, ...]:
    return recalled(turns, asked, room=ROOM, budget=RECALL_TOKENS)


def summarized(turns: Sequence[Utterance], took_ms: list[float]) -> list[Utterance]:
    """Return the turns with the summaries that the platform would have shown, each one exchange after it was due."""
    said: list[Utterance] = []
    written: Summary | None = None
    for turn in turns:
        if turn.sender is Sender.USER:
            said.append(turn._replace(summary=written))
            written = None
            continue
        said.append(turn)
        if due := unsummarized(said, room=ROOM):
            began = time.perf_counter()
            before = due.previous.text if due.previous else ""
            text = digest(before, due.turns, BOT.name, SUMMARY_TOKENS)
            took_ms.append(1_000 * (time.perf_counter() - began))
            written = Summary(text, due.until, "rule") if text else None
    return said


def by_keywords(turns: Sequence[Utterance], asked: str) -> tuple[int, ...]:
    """The turns with the most words of the question, the newest first, within the same budget."""
    words = set(WORD.findall(asked.casefold()))
    shared = [(len(words & set(WORD.findall(turn.content.casefold()))), turn) for turn in turns]
    chosen, left = [], RECALL_TOKENS
    for count, turn in sorted(shared, key=lambda one: (-one[0], -one[1].position)):
        if count and (size := tokens(turn.content) + 8) <= left:
            left -= size
            chosen.append(turn.position)
    return tuple(sorted(chosen))


CHOICES: dict[str, tuple[Choice, int]] = {
    "truncation": (nothing, PROMPT_TOKENS),
    "keyword search": (by_keywords, PROMPT_TOKENS),
    "recall": (by_bm25, PROMPT_TOKENS),
    "summary": (nothing, PROMPT_TOKENS),
    "summary and recall": (by_bm25, PROMPT_TOKENS),
    "full context": (nothing, FULL_TOKENS),
}


class NoFiles:
    async def read(self, key: str, path: str) -> bytes:
        raise FileNotFoundError(path)

    async def pieces(self, key: str, path: str) -> AsyncIterator[bytes]:
        yield await self.read(key, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    found = asyncio.run(measure(options.turns, seeds))
    print("| choice | in its words | in other words | added p50 | max | in the background |")
    print("| --- | --- | --- | --- | --- | --- |")
    for one in found:
        shares = f"{one.in_its_words:.0%} | {one.in_others:.0%}"
        times = f"{one.ms_p50:.1f} ms | {one.ms_max:.1f} ms | {one.writing_ms_p50:.1f} ms"
        print(f"| {one.choice} | {shares} | {times} |")
    print(json.dumps([asdict(one) for one in found]))


async def measure(turns: int, seeds: Sequence[int]) -> list[Figures]:
    service = build_prompts(NoFiles()).service
    try:
        return [await figures(service, name, turns, seeds) for name in CHOICES]
    finally:
        await service.close()


async def figures(service: PromptService, name: str, turns: int, seeds: Sequence[int]) -> Figures:
    choose, budget = CHOICES[name]
    hits: tuple[list[bool], list[bool]] = ([], [])
    took_ms: list[float] = []
    writing_ms: list[float] = []
    has_summary = name.startswith("summary")
    for seed in seeds:
        said = conversation(turns, seed)
        if has_summary:
            said = summarized(said, writing_ms)
        for fact, *questions in FACTS:
            for kind, question in enumerate(questions):
                began = time.perf_counter()
                chosen = choose(said, question)
                if has_summary:
                    unsummarized(said, room=ROOM)
                took_ms.append(1_000 * (time.perf_counter() - began))
                text = passages(BOT, said, chosen)
                asked = Utterance(Sender.USER, question, passages=text)
                prompt = await rendered(service, [*said, asked], budget)
                hits[kind].append(fact in prompt)
    own, others = map(statistics.fmean, hits)
    writing = statistics.median(writing_ms or [0.0])
    return Figures(name, own, others, statistics.median(took_ms), max(took_ms), writing)


def conversation(turns: int, seed: int) -> list[Utterance]:
    """Small talk with the facts at seeded places among the user's messages."""
    chance = random.Random(seed)
    places = chance.sample(range(0, turns, 2), len(FACTS))
    told = {place: fact[0] for place, fact in zip(places, FACTS, strict=True)}
    return [
        Utterance(
            Sender.BOT if place % 2 else Sender.USER,
            told.get(place) or chance.choice(LINES),
            position=place + 1,
        )
        for place in range(turns)
    ]


async def rendered(service: PromptService, turns: Sequence[Utterance], budget: int) -> str:
    return await service.render(
        formatter=PRESETS["pygmalion"],
        artifact_key=SAMPLE,
        max_input_tokens=budget,
        bot=BOT,
        user_name="Kim",
        turns=turns,
    )


if __name__ == "__main__":
    main()
