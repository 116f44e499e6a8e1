"""Tests what a confined process that a stranger's file has taken over can do by what it says: nothing."""

from __future__ import annotations

import asyncio
import io
import json
import os

import pytest

from guanaco_server.confinement.confined import Child, ProcessLimits, _reason
from guanaco_server.confinement.frames import LENGTH, receive
from guanaco_server.tokenization.process import MAX_ANSWER_BYTES, TokenizerDied, TokenizerProcess

DEEP = b"[" * 20_000  # fits into a pipe


def framed(message: bytes) -> bytes:
    return LENGTH.pack(len(message)) + message


class TakenOver:
    """A child in whose place a test writes."""

    pid = 0

    def __init__(self) -> None:
        (asked, to), (said, from_) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(from_, "wb", 0), os.fdopen(asked, "rb", 0)
        self.hears, self.says = said, to

    def kill(self) -> None:
        """Do nothing: it is no process."""

    def wait(self) -> int:
        for end in (self.hears, self.says):
            os.close(end)
        return 0


@pytest.mark.parametrize(
    "answer",
    [DEEP, b"{", b"[]", b"\xff", b'{"counts": "x"}', json.dumps({"counts": []}).encode()],
    ids=["deep", "cut", "list", "no text", "no numbers", "too few"],
)
async def test_a_tokenizers_nonsense_fails_what_it_counts(answer: bytes) -> None:
    child = TakenOver()
    as_child: Child = child  # type: ignore[assignment]
    process = TokenizerProcess(as_child)
    asked = asyncio.ensure_future(process.counts(["a"]))
    await asyncio.sleep(0)
    os.write(child.says, framed(answer))
    with pytest.raises(TokenizerDied):
        await asked
    assert process.is_closed


async def test_a_tokenizers_answer_has_a_limit() -> None:
    child = TakenOver()
    as_child: Child = child  # type: ignore[assignment]
    process = TokenizerProcess(as_child)
    asked = asyncio.ensure_future(process.counts(["a"]))
    await asyncio.sleep(0)
    os.write(child.says, LENGTH.pack(MAX_ANSWER_BYTES + 1))
    with pytest.raises(TokenizerDied):
        await asked


def test_a_message_that_is_nested_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="too deep"):
        receive(io.BytesIO(framed(DEEP)))


def test_a_verdict_that_is_nested_deeply_is_one() -> None:
    assert _reason(0, DEEP, ProcessLimits(1, 1, 1, 1)) == "it is corrupt"
