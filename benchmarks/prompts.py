"""Measures what rendering a prompt costs: going on with a kept one, rendering all again, and bisecting the whole prompt as it once was.

    make bench-prompts

A byte-level BPE tokenizer trained on the demo's corpus, turns of 100 characters, the default formatter. The best of
several rounds, for other processes share the machine. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from pathlib import Path

from tokenizers import Tokenizer

from guanaco.chat import Bot, Sender
from guanaco.prompts import PromptFormatter
from guanaco_server.demo.tiny_repo import make_tiny_repo
from guanaco_server.prompts.counting import Counters, TokenCounter
from guanaco_server.prompts.history.transcript import Transcript
from guanaco_server.prompts.layouts import Layout, Utterance, formatter_layout
from guanaco_server.prompts.rendering import render
from guanaco_server.prompts.room import build_prompts
from guanaco_server.prompts.service import chat_layout
from guanaco_server.prompts.templates.chat_templates import ChatTemplate, ChatTemplateCounter
from guanaco_server.prompts.templates.files import TemplateFile
from guanaco_server.prompts.templates.process import TemplateProcess

ROUNDS = 60
SEEDS = count(1_000)
WORDS = [
    "the",
    "sea",
    "is",
    "wide",
    "and",
    "I",
    "have",
    "been",
    "there",
    "once",
    "you",
    "know",
    "what",
    "makes",
    "me",
    "smile",
    "old",
    "maps",
]
BOT = Bot(name="Nia", memory="Nia keeps a lighthouse. " * 10, prompt="You: Hi\nNia: Hello there.")
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
COLUMNS = {"kept": "kept", "kept_new": "kept, new", "cached": "cached", "new": "new turn", "cold": "cold", "bisection": "bisection"}  # fmt: skip
BUDGETS = {"20 turns, all fit": (20, 4_096), "20 turns, cut": (20, 700), "200 turns, cut": (200, 4_096)}  # fmt: skip


def main() -> None:
    with _process() as new_counter:
        _run(new_counter)


def _run(new_counter: Callable[[], TokenCounter]) -> None:
    tokenizer = _tokenizer()
    turns = _conversation(204)
    layout = formatter_layout(PromptFormatter(), BOT, "Sam")
    figures = {
        name: _figures(layout, turns, length, budget, tokenizer, new_counter())
        for name, (length, budget) in BUDGETS.items()
    }
    figures["chat template, 20 turns"] = _chat_template(turns, new_counter())
    print(f"{'µs':28} {' '.join(f'{title:>9}' for title in COLUMNS.values())}")
    for name, row in figures.items():
        cells = (f"{row[key]:>9,.0f}" if key in row else " " * 9 for key in COLUMNS)
        print(f"{name:28} {' '.join(cells)}")
    print(json.dumps({"microseconds": figures}))


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def read(self, key: str, path: str) -> bytes:
        return (self._folder / key / path).read_bytes()

    async def pieces(self, key: str, path: str) -> AsyncIterator[bytes]:
        yield await self.read(key, path)


@contextmanager
def _process() -> Iterator[Callable[[], TokenCounter]]:
    """Counters without anything kept, over one tokenizer's process; this thread waits for what they count."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        make_tiny_repo(Path(folder) / "sample")
        loop = runner.get_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        tokenizers = build_prompts(_Folder(Path(folder))).tokenizers

        def new_counter() -> TokenCounter:
            made = Counters(tokenizers).counter("sample")
            return asyncio.run_coroutine_threadsafe(made, loop).result()

        try:
            yield new_counter
        finally:
            loop.call_soon_threadsafe(tokenizers.close)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


def _figures(
    layout: Layout,
    turns: Sequence[Utterance],
    length: int,
    budget: int,
    tokenizer: Tokenizer,
    counter: TokenCounter,
) -> dict[str, float]:
    said = turns[: length + 1]
    cold = _seconds(lambda: render(layout, said, counter, budget))
    cached = _best(lambda: render(layout, said, counter, budget))
    new = []
    for end in range(length - 19, length + 1):  # each adds a reply and a message
        fresh = [*said[:end], *_conversation(2, seed=end)]
        new.append(_seconds(lambda fresh=fresh: render(layout, fresh, counter, budget)))  # type: ignore[misc]
    old = _best(lambda: _bisected(layout, said, tokenizer, budget), repeats=3)
    figures = {"cached": cached, "new": min(new), "cold": cold, "bisection": old}
    for name, are_new in {"kept": False, "kept_new": True}.items():
        figures[name] = min(_kept(layout, said, counter, budget, are_new) for _ in range(ROUNDS))
    return {name: round(seconds * 1e6, 1) for name, seconds in figures.items()}


def _kept(
    layout: Layout, said: Sequence[Utterance], counter: TokenCounter, budget: int, are_new: bool
) -> float:
    """A reply and a message more than was rendered the last time; ``are_new`` where they never were counted."""
    transcript = Transcript()
    render(layout, said[:-2], counter, budget, transcript)
    last = _conversation(2, seed=next(SEEDS)) if are_new else said[-2:]
    reply, message = (Utterance(a.sender, b.content) for a, b in zip(said[-2:], last, strict=True))
    turns = [*said[:-2], reply, message]
    began = time.perf_counter()
    prompt = transcript.next_prompt(layout, turns, counter, budget)
    seconds = time.perf_counter() - began
    assert prompt is not None
    return seconds


def _chat_template(turns: Sequence[Utterance], counter: TokenCounter) -> dict[str, float]:
    process = TemplateProcess()
    try:
        template = ChatTemplateCounter(ChatTemplate(TemplateFile(CHATML, {}), process), counter)
        layout, said = chat_layout(BOT), turns[:21]
        cold = _seconds(lambda: template.render(layout, said, 4_096))
        cached = _best(lambda: template.render(layout, said, 4_096))
        return {"cached": round(cached * 1e6, 1), "cold": round(cold * 1e6, 1)}
    finally:
        process.close()


def _bisected(layout: Layout, turns: Sequence[Utterance], tokenizer: Tokenizer, budget: int) -> str:
    """Cut a prompt as it was cut before: to the most turns that fit, each try tokenized as a whole."""
    rendered = [layout.turn_text(turn) for turn in turns]
    before, after = ("".join(part.text for part in parts) for parts in layout.kept(0))
    low, high = 0, len(rendered) - 1
    while low < high:
        middle = (low + high) // 2
        if len(tokenizer.encode(before + "".join(rendered[middle:]) + after)) <= budget:
            high = middle
        else:
            low = middle + 1
    return before + "".join(rendered[low:]) + after


@lru_cache
def _tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        make_tiny_repo(Path(folder))
        return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


def _conversation(length: int, seed: int = 0) -> list[Utterance]:
    words, senders = random.Random(seed), (Sender.USER, Sender.BOT)
    texts = (" ".join(words.choices(WORDS, k=40))[:100] for _ in range(length))
    return [Utterance(senders[n % 2], text) for n, text in enumerate(texts)]


def _best(work: Callable[[], object], repeats: int = 10) -> float:
    return min(_seconds(work, repeats) for _ in range(ROUNDS))


def _seconds(work: Callable[[], object], repeats: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - began) / repeats


if __name__ == "__main__":
    main()
