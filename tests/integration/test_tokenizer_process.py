"""Hostile tokenizers: their process answers or is ended, and the platform's own goes on."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from guanaco.errors import (
    ArtifactLost,
    CorruptConfig,
    HubUnreachable,
    PromptFailed,
    UnsupportedTokenizer,
)
from guanaco_server.prompts.room import build_prompts
from guanaco_server.tokenization import process as processes
from guanaco_server.tokenization import service
from guanaco_server.tokenization.service import MAX_DEATHS, Tokenizers
from tests.fixtures.world import eventually

SMALL_PIECE = 50_000
WORDS: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"},
}
NESTED = {
    "type": "Split",
    "pattern": {"Regex": "(?:a|a|a)+b"},
    "behavior": "Isolated",
    "invert": False,
}
HOSTILE: dict[str, dict[str, Any]] = {
    "quadratic": {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a+(?=b|c)"}, "behavior": "Isolated", "invert": False}},
    "exponential": {"pre_tokenizer": NESTED},
    "without an unknown token": {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}},
    "long words": {"model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "b": 1}, "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 10**9}},
    "a table of megabytes": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(4) + b"x" * 1_500_000).decode()}},
    "a broken table": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "nested": {"normalizer": [[[[]]]]},
}  # fmt: skip


def content(changes: dict[str, Any]) -> bytes:
    return json.dumps(WORDS | changes).encode()


class Files:
    """Artifacts' tokenizers, by key."""

    def __init__(self) -> None:
        self.by_key = {"good": content({})}

    async def read(self, key: str, path: str) -> bytes:
        return self.by_key[key]

    async def pieces(self, key: str, path: str) -> AsyncIterator[bytes]:
        if key not in self.by_key:
            raise FileNotFoundError(path)
        yield self.by_key[key]


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
async def tokenizers(files: Files) -> AsyncIterator[Tokenizers]:
    made = build_prompts(files).tokenizers
    OTHERS.clear()
    OTHERS.update(child.pid for child in children())
    yield made
    made.close()


OTHERS: set[int] = set()
"""Processes of earlier tests' worlds, which end when those worlds are collected."""


async def in_pieces(data: bytes, size: int = 1_048_576) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if child.pid not in OTHERS and is_tokenizer(child)
    ]


def is_tokenizer(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[-2:] == ["-m", "guanaco_server.tokenization.child"]
    except psutil.Error:  # it has just ended
        return False


async def test_texts_are_counted_in_the_order_asked(
    tokenizers: Tokenizers,
) -> None:
    asked = [tokenizers.counts("good", ["a " * n, "a"]) for n in range(50)]
    assert await asyncio.gather(*asked) == [[n, 1] for n in range(50)]
    assert await tokenizers.whole("good", "a b c") == 3
    assert await tokenizers.characters_of("good", "a b c", 2) == 3
    assert await tokenizers.respelled("good", ["a", "zebra"]) == [None, "[UNK]"]
    assert len(children()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_tokenizer_is_refused_when_it_is_submitted(
    tokenizers: Tokenizers, kind: str
) -> None:
    with pytest.raises((CorruptConfig, UnsupportedTokenizer)) as refused:
        await tokenizers.examine(in_pieces(content(HOSTILE[kind])))
    assert "\n" not in refused.value.detail
    assert await tokenizers.counts("good", ["a a"]) == [2]


async def test_a_good_tokenizer_is_tried_once(
    tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = await tokenizers.examine(in_pieces(content({})))
    assert (facts.entries, facts.highest, facts.highest_token) == (2, 1, "a")
    monkeypatch.setattr(service, "TokenizerProcess", None)
    assert await tokenizers.examine(in_pieces(content({}))) is facts


async def test_file_is_passed_on_in_pieces_and_must_be_whole(
    tokenizers: Tokenizers,
) -> None:
    words = content(
        {
            "model": WORDS["model"]
            | {"vocab": {"[UNK]": 0} | {f"w{n}": n + 1 for n in range(20_000)}}
        }
    )
    assert len(words) > 4 * SMALL_PIECE
    facts = await tokenizers.examine(in_pieces(words, SMALL_PIECE))
    assert facts.entries > 20_000
    assert await tokenizers.examine(in_pieces(words, 3 * SMALL_PIECE)) is facts

    async def cut() -> AsyncIterator[bytes]:
        yield words[:SMALL_PIECE]
        yield words[SMALL_PIECE : 2 * SMALL_PIECE]
        yield words[2 * SMALL_PIECE : 3 * SMALL_PIECE]
        raise HubUnreachable("The Hub answered 503.")

    with pytest.raises(HubUnreachable):
        await tokenizers.examine(cut())

    async def has_ended() -> bool:
        return children() == []

    await eventually(has_ended)


async def test_who_chats_does_not_wait_for_a_trial(tokenizers: Tokenizers) -> None:
    comes = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield content({})[:10]
        await comes.wait()
        yield content({})[10:]

    trial = asyncio.create_task(tokenizers.examine(slow()))
    await asyncio.sleep(0)  # it has begun
    assert await tokenizers.counts("good", ["a a"]) == [2]
    assert not trial.done()

    comes.set()
    assert (await trial).entries == 2


async def test_text_that_kills_the_process_fails_alone(
    tokenizers: Tokenizers, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.by_key["slow"] = content(HOSTILE["quadratic"])
    monkeypatch.setattr(processes, "COUNT_CPU_S", 0.05)
    monkeypatch.setattr(processes, "COUNT_CPU_S_A_BYTE", 0.0)
    await tokenizers.facts("slow")
    asked = [tokenizers.counts("slow", [text]) for text in ("cc", "a" * 20_000, "ab", "cb")]
    first, bad, third, fourth = await asyncio.gather(*asked, return_exceptions=True)
    assert (first, third, fourth) == ([1], [2], [1])
    assert isinstance(bad, PromptFailed)
    assert "CPU time" in bad.detail


async def test_tokenizer_that_keeps_dying_is_left_alone_for_a_while(
    tokenizers: Tokenizers,
) -> None:
    for _ in range(MAX_DEATHS):
        assert await tokenizers.counts("good", ["a"]) == [1]
        for child in children():
            child.suspend()  # so that it cannot have counted before it is killed
        asked = asyncio.create_task(tokenizers.counts("good", ["a " * 400_000]))
        await asyncio.sleep(0.05)
        while not asked.done():
            for child in children():
                child.kill()
            await asyncio.sleep(0.01)
        with pytest.raises(PromptFailed):
            await asked
    with pytest.raises(PromptFailed, match="died 3 times within a minute"):
        await tokenizers.counts("good", ["a"])


async def test_file_that_is_no_tokenizer_fails_conversations_with_a_sentence(
    tokenizers: Tokenizers, files: Files
) -> None:
    files.by_key["bad"] = b"{}"
    with pytest.raises(PromptFailed, match=r"tokenizer.json has no model"):
        await tokenizers.counts("bad", ["a"])


async def test_a_lost_artifact_is_named_until_it_is_back(
    tokenizers: Tokenizers, files: Files
) -> None:
    with pytest.raises(ArtifactLost):
        await tokenizers.counts("lost", ["a"])
    files.by_key["lost"] = content({})
    assert await tokenizers.counts("lost", ["a"]) == [1]


async def test_processes_that_hold_too_much_together_are_ended(
    tokenizers: Tokenizers, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.by_key |= {f"good {number}": content({}) for number in range(4)}
    monkeypatch.setattr(service, "KEPT_BYTES", 60_000_000)  # of two
    for key in files.by_key:
        assert await tokenizers.counts(key, ["a"]) == [1]
    assert len([child for child in children() if child.status() != psutil.STATUS_ZOMBIE]) <= 2
    assert await tokenizers.counts("good", ["a"]) == [1]
