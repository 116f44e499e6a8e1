"""vLLM's prefix cache under a lorebook, and under summaries: where Guanaco puts them, at the top as editors do, and none.

    make bench-lorebook ARGS='--conversations=4 --turns=50'

One real vLLM server with the demo's tiny model, and the platform's own prompts, cut to a budget as in production. In two of
five messages the user speaks of something that one of 20 entries tells about. At the top means: behind the persona stand
the entries whose keys were said in the newest 4 messages, or the newest summary. Summaries are the rule's, of 128 tokens at
most. Hits are vLLM's own count. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.prefix_cache import (  # noqa: E402
    KV_BYTES,
    LINES,
    MAX_MODEL_TOKENS,
    MODEL,
    counts,
    served,
    talk,
)
from guanaco.chat import Bot, Sender  # noqa: E402
from guanaco.lore import Lorebook, LoreEntry  # noqa: E402
from guanaco.prompts import PRESETS  # noqa: E402
from guanaco.submissions import GenerationParams  # noqa: E402
from guanaco_server.artifacts.stores.local import LocalStore  # noqa: E402
from guanaco_server.chat.memory.digest import digest  # noqa: E402
from guanaco_server.demo.hub_server import LocalHub  # noqa: E402
from guanaco_server.demo.tiny_repo import make_tiny_repo  # noqa: E402
from guanaco_server.deployments.model_servers.model_server import Generation  # noqa: E402
from guanaco_server.deployments.model_servers.vllm import VllmServer  # noqa: E402
from guanaco_server.lore.activation import tokens, triggered  # noqa: E402
from guanaco_server.prompts.history.lore import asked  # noqa: E402
from guanaco_server.prompts.history.summaries import unsummarized  # noqa: E402
from guanaco_server.prompts.layouts import Summary, Utterance  # noqa: E402
from guanaco_server.prompts.room import build_prompts  # noqa: E402
from guanaco_server.prompts.service import PromptService  # noqa: E402
from tests.fixtures.serializer_jobs import KEY, REPO, job_for, make_artifact  # noqa: E402

REPLY = GenerationParams(temperature=1.0, max_output_tokens=32)
BUDGET = MAX_MODEL_TOKENS - REPLY.max_output_tokens
THINGS = (
    *("lantern", "harbour", "compass", "anchor", "orchard", "chapel", "mill", "tower", "bridge"),
    *("garden", "library", "forge", "market", "tavern", "cellar", "meadow", "quarry", "ferry"),
    *("beacon", "archive"),
)
BOOK = Lorebook(
    entries=tuple(
        LoreEntry(keys=(thing,), content=f"The {thing} of the island: {LINES[place % len(LINES)]}")
        for place, thing in enumerate(THINGS)
    )
)
CHOICES = ("none", "lorebook", "top", "summary", "summary at the top")
SUMMARY_TOKENS = 128


@dataclass(frozen=True)
class Figures:
    """``of_none`` is the share of the cached tokens that there were without either; ``told`` counts entries and summaries."""

    choice: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    told: int
    of_none: float
    ttft_p50_ms: float


@dataclass
class LocalConversation:
    bot: Bot
    turns: list[Utterance] = field(default_factory=list)
    ttfts_ms: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    told: int = 0
    written: Summary | None = None  # and not shown yet
    newest: Summary | None = None


class Folder:
    """The small files of the tiny model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def read(self, key: str, path: str) -> bytes:
        return (self._folder / path).read_bytes()

    async def pieces(self, key: str, path: str) -> AsyncIterator[bytes]:
        yield await self.read(key, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--turns", type=int, default=50)
    options = parser.parse_args()
    figures = asyncio.run(bench(options.conversations, options.turns))
    show(figures)
    about = {"conversations": options.conversations, "turns": options.turns, "entries": len(THINGS)}
    machine = {"cores": os.cpu_count(), "kv_bytes": KV_BYTES}
    print(json.dumps({**about, **machine, **{each.choice: asdict(each) for each in figures}}))


async def bench(conversations: int, turns: int) -> list[Figures]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_tiny_repo(folder / "hub" / REPO)
        talk("serializing")
        store = LocalStore(folder / "artifacts")
        with LocalHub(folder / "hub") as hub:
            await make_artifact(store, job_for(hub))
        prompts = build_prompts(Folder(folder / "hub" / REPO)).service
        figures: list[Figures] = []
        try:
            async with served(folder, store.uri(KEY), 1) as (endpoint,):
                for choice in CHOICES:
                    none = figures[0].cached_tokens if figures else 0
                    figures.append(
                        await measure(choice, prompts, endpoint, conversations, turns, none)
                    )
        finally:
            await prompts.close()
        return figures


async def measure(
    choice: str,
    prompts: PromptService,
    endpoint: str,
    conversations: int,
    turns: int,
    none: int,
) -> Figures:
    """All conversations, turn by turn. What users say is the same for each choice; no two choices share a block."""
    vllm, dice = VllmServer(), random.Random(7)
    book = BOOK if choice == "lorebook" else None
    talks = [
        LocalConversation(
            Bot(name="Luna", memory=f"{choice} {number}: Luna keeps a lighthouse.", lorebook=book)
        )
        for number in range(conversations)
    ]
    before = await counts([endpoint])
    for turn in range(turns):
        talk(f"{choice}: turn {turn + 1} of {turns}")
        for one in talks:
            said = dice.choice(LINES)
            if dice.random() < 0.4:
                said += f" What of the {dice.choice(THINGS)}?"
            await say(choice, vllm, endpoint, prompts, one, said)
    done = await counts([endpoint]) - before
    await vllm.close()
    prompt_tokens = sum(one.prompt_tokens for one in talks)
    if done.queries != prompt_tokens:
        raise SystemExit(f"vLLM was asked {done.queries:g} tokens, and {prompt_tokens} were sent.")
    return Figures(
        choice,
        prompt_tokens,
        int(done.hits),
        int(done.queries - done.hits),
        sum(one.told for one in talks),
        round(done.hits / (none or done.hits), 4),
        round(statistics.median(ms for one in talks for ms in one.ttfts_ms), 1),
    )


async def say(
    choice: str,
    vllm: VllmServer,
    endpoint: str,
    prompts: PromptService,
    one: LocalConversation,
    said: str,
) -> None:
    question = asked(one.bot, one.turns, said)._replace(position=len(one.turns) + 1)
    if choice.startswith("summary"):
        one.told += one.written is not None
        question = question._replace(summary=one.written)
        one.written = None
    one.turns.append(question)
    one.told += len(question.lore)
    bot, turns = one.bot, one.turns
    if choice == "top":
        bot = at_the_top(one)
    if choice == "summary at the top":
        bot, turns = with_summary(one), [turn._replace(summary=None) for turn in one.turns]
    prompt = await prompts.render(
        formatter=PRESETS["pygmalion"],
        artifact_key=KEY,
        max_input_tokens=BUDGET,
        bot=bot,
        user_name="Kim",
        turns=turns,
    )
    started, first, reply = time.perf_counter(), 0.0, ""
    async for chunk in vllm.generate(endpoint, Generation(MODEL, prompt, REPLY)):
        first = first or time.perf_counter()
        reply += chunk.text
        one.prompt_tokens += chunk.prompt_tokens
    one.ttfts_ms.append((first - started) * 1_000)
    place = len(one.turns) + 1
    one.turns.append(Utterance(Sender.BOT, reply.strip() or "…", position=place))
    if choice.startswith("summary"):
        summarize(one)


def summarize(one: LocalConversation) -> None:
    """Write what is due, as the platform does after a turn."""
    due = unsummarized(one.turns, room=BUDGET - tokens(one.bot.memory))
    if due is not None:
        before = due.previous.text if due.previous else ""
        text = digest(before, due.turns, one.bot.name, SUMMARY_TOKENS)
        one.written = one.newest = Summary(text, due.until, "rule")


def with_summary(one: LocalConversation) -> Bot:
    """The bot with the newest summary behind the persona."""
    if one.newest is None:
        return one.bot
    return one.bot.model_copy(update={"memory": f"{one.bot.memory}\n{one.newest.text}"})


def at_the_top(one: LocalConversation) -> Bot:
    """The bot with what editors put behind the persona: what the newest messages speak of."""
    said: Sequence[str] = [turn.content for turn in one.turns]
    told = triggered(BOOK, said, ())
    one.told += len(told)
    lines = [one.bot.memory, *(BOOK.entries[place].content for place in told)]
    return one.bot.model_copy(update={"memory": "\n".join(lines)})


def show(figures: Sequence[Figures]) -> None:
    print(
        f"{'':<20}{'prompt tokens':>14}{'cached':>10}{'of none':>9}{'computed':>10}{'told':>6}{'TTFT p50':>10}"
    )
    for each in figures:
        print(
            f"{each.choice:<20}{each.prompt_tokens:>14,}{each.cached_tokens:>10,}{each.of_none:>9.1%}"
            f"{each.computed_tokens:>10,}{each.told:>6}{each.ttft_p50_ms:>7.1f} ms"
        )


if __name__ == "__main__":
    main()
