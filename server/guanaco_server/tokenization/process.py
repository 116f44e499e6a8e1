"""One tokenizer in a process of its own, asked from the event loop, which never waits for it.

Questions that come while an answer is on its way share the next request, so a busy tokenizer costs fewer round trips.
A request that ends the process is taken apart: each of its texts is asked for alone, so that one text fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import weakref
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from guanaco_server.confinement import confined, priority
from guanaco_server.confinement.confined import Child, StartChild
from guanaco_server.confinement.frames import LENGTH, packed
from guanaco_server.runtime import threads
from guanaco_server.tokenization.declared import MEMORY_BYTES
from guanaco_server.tokenization.facts import TokenizerFacts, facts_of_json

CHILD = "guanaco_server.tokenization.child"  # not imported here: that would load the tokenizers
LOAD_CPU_S = 30.0  # Gemma's takes 3 s
TRY_CPU_S = 60.0  # the trials have their own limit, which is the same on every machine
COUNT_CPU_S = 0.5
COUNT_CPU_S_A_BYTE = 20e-6  # the dearest usual kind takes 2e-6
WALL_FACTOR = 10  # on a machine that is busy with other things
MAX_ANSWER_BYTES = 16_000_000  # of the breaks of a million characters of added tokens; it is read on the event loop
MAX_TOGETHER_BYTES = 1_000_000  # of several requests in one
READ_BYTES = 1_048_576

Json = dict[str, Any]


class TokenizerRefused(Exception):  # translated by the service, which knows whose fault it is
    """The file is no tokenizer that can be served; the text is a sentence."""


class TextFailed(Exception):  # as above
    """A text was not counted; the text is the end of a sentence. ``was_shared`` where it may be another one's fault."""

    def __init__(self, why: str, *, was_shared: bool = False) -> None:
        super().__init__(why)
        self.was_shared = was_shared


class TokenizerDied(TextFailed):
    """The process ended, by its limits or by itself."""


class UnreadableText(TextFailed):
    """The library has refused a text."""


@dataclass(eq=False)
class _PendingRequest:
    content: Json
    cpu_s: float
    answer: asyncio.Future[Json]
    texts: tuple[str, ...] = ()  # of a request that others may share
    is_alone: bool = False


class TokenizerProcess:
    """Started by ``start``; ended by ``close``, by its limits, or with this object. Belongs to one event loop."""

    def __init__(self, process: Child) -> None:
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        self._process = process
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_PendingRequest] = deque()
        self._together: list[_PendingRequest] = []  # what is being answered
        self._unsent = memoryview(b"")
        self._has_sent = asyncio.Event()
        self._received = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self.is_closed = False
        self.resident_bytes = 0
        for pipe in (self._to, self._from):
            os.set_blocking(pipe, False)
        self._finalizer = weakref.finalize(self, confined.end, process)
        self._loop.add_reader(self._from, self._read)

    @property
    def is_busy(self) -> bool:
        return bool(self._together or self._waiting)

    @classmethod
    async def start(cls, start_child: StartChild, *, is_trial: bool = False) -> TokenizerProcess:
        """``is_trial`` for a process that only tells whether a tokenizer can be served, and gives way to those that do."""
        start = partial(_started, start_child, is_trial)
        return cls(await threads.PROCESSES.start(start, confined.end))

    async def load(self, pieces: AsyncIterator[bytes]) -> TokenizerFacts:
        """Load the file that the pieces make up. Nothing else is asked meanwhile."""
        asked = _PendingRequest({"do": "load"}, LOAD_CPU_S, self._loop.create_future())
        answer = asyncio.ensure_future(self._queued(asked))
        try:
            async for piece in pieces:
                await self._send_piece(piece)
            await self._send_piece(b"")
        except BaseException:
            answer.cancel()
            raise
        self._restart_timer(asked)  # for whoever sends the pieces may be slow
        return facts_of_json((await answer)["facts"])

    async def attempt(self) -> None:
        """Try texts that are hard for tokenizers. Raise TokenizerRefused if one takes too much work."""
        await self._ask({"do": "try"}, TRY_CPU_S)

    async def respelled(self, words: Sequence[str]) -> list[str | None]:
        """Return, for each word, None if a sequence of tokens spells it, else what becomes of it."""
        answer = await self._ask({"do": "spell", "words": list(words)}, LOAD_CPU_S)
        return list(answer["spelled"])

    async def characters_of(self, text: str, tokens: int) -> int:
        """Return how many characters of the text its first ``tokens`` tokens cover."""
        answer = await self._ask({"do": "cut", "text": text, "tokens": tokens}, LOAD_CPU_S)
        return int(answer["chars"])

    async def whole(self, text: str) -> int:
        """Count a text with the special tokens around it."""
        answer = await self._ask({"do": "count", "texts": [], "wholes": [text]}, _cpu_s([text]))
        return int(answer["wholes"][0])

    async def counts(self, texts: Sequence[str], *, is_alone: bool = False) -> list[int]:
        """Count texts without special tokens; ``is_alone`` in a request of their own."""
        asked = _PendingRequest(
            {}, 0.0, self._loop.create_future(), texts=tuple(texts), is_alone=is_alone
        )
        return list((await self._queued(asked))["counts"])

    def close(self) -> None:
        """End the process. What is asked fails."""
        if self.is_closed:
            return
        self.is_closed = True
        self._has_sent.set()
        self._loop.remove_reader(self._from)
        self._loop.remove_writer(self._to)
        if self._timer is not None:
            self._timer.cancel()
        self._process.kill()
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and the finalizer waits
            threads.PROCESSES.begin(self._wait_for_end)
        was_shared = len(self._together) > 1
        for asked in self._together:
            _fail([asked], TokenizerDied(_why(asked), was_shared=was_shared))
        for asked in self._waiting:
            _fail([asked], TokenizerDied(_why(asked), was_shared=True))
        self._together, self._waiting = [], deque()

    def _wait_for_end(self) -> None:
        """Wait in a thread, which holds this object until then: else its last user would wait, on the event loop."""
        self._finalizer()

    async def _send_piece(self, piece: bytes) -> None:
        """Wait until what was sent before is on its way, and send a piece. Nothing if the process has ended."""
        await asyncio.sleep(0)
        while self._unsent and not self.is_closed:
            self._has_sent.clear()
            await self._has_sent.wait()
        if not self.is_closed:
            self._unsent = memoryview(LENGTH.pack(len(piece)) + piece)
            self._write()

    def _restart_timer(self, asked: _PendingRequest) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(WALL_FACTOR * max(1.0, asked.cpu_s), self.close)

    async def _ask(self, content: Json, cpu_s: float) -> Json:
        return await self._queued(_PendingRequest(content, cpu_s, self._loop.create_future()))

    async def _queued(self, asked: _PendingRequest) -> Json:
        if self.is_closed:
            raise TokenizerDied(_why(asked), was_shared=True)
        self._waiting.append(asked)
        if not self._together:
            self._send_next()
        return await asked.answer

    def _send_next(self) -> None:
        while self._waiting and self._waiting[0].answer.done():  # nobody waits for it any more
            self._waiting.popleft()
        if not self._waiting:
            return
        self._together = [self._waiting.popleft()]
        first = self._together[0]
        content, cpu_s = first.content, first.cpu_s
        if first.texts:
            texts = self._shared_texts()
            content, cpu_s = {"do": "count", "texts": texts, "wholes": []}, _cpu_s(texts)
        self._timer = self._loop.call_later(WALL_FACTOR * max(1.0, cpu_s), self.close)
        self._unsent = memoryview(packed({**content, "cpu_s": cpu_s}))
        self._write()

    def _shared_texts(self) -> list[str]:
        texts = list(self._together[0].texts)
        size = sum(map(len, texts))
        while self._waiting and not self._together[0].is_alone:
            following = self._waiting[0]
            size += sum(map(len, following.texts))
            if not following.texts or following.is_alone or size > MAX_TOGETHER_BYTES:
                break
            self._together.append(self._waiting.popleft())
            texts += following.texts
        return texts

    def _write(self) -> None:
        try:
            sent = os.write(self._to, self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add_writer(self._to, self._write)
        else:
            self._loop.remove_writer(self._to)
            self._has_sent.set()

    def _read(self) -> None:
        try:
            data = os.read(self._from, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        length = int.from_bytes(self._received[: LENGTH.size], "big")
        if not data or length > MAX_ANSWER_BYTES or not self._together:
            self.close()
        elif len(self._received) >= LENGTH.size + length:
            message, self._received = self._received[LENGTH.size :], bytearray()
            self._take(bytes(message))

    def _take(self, message: bytes) -> None:
        together, self._together = self._together, []
        assert self._timer is not None, "something was asked"
        self._timer.cancel()
        try:
            answer = json.loads(message)
            self.resident_bytes = int(answer.get("resident_bytes", 0))
            _give(together, answer)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            # A child that was taken over.
            self._together = together
            self.close()
            return
        self._send_next()


def _give(together: list[_PendingRequest], answer: Json) -> None:
    if (refused := answer.get("refused")) is not None:
        _fail(together, TokenizerRefused(str(refused)))
    elif (fault := answer.get("fault")) is not None:
        _fail(together, UnreadableText(str(fault), was_shared=len(together) > 1))
    elif not together[0].texts:
        _set(together[0], answer)
    else:
        counts = [int(count) for count in answer["counts"]]
        if len(counts) != sum(len(asked.texts) for asked in together):
            raise ValueError("the answer is too short")
        for asked in together:
            mine, counts = counts[: len(asked.texts)], counts[len(asked.texts) :]
            _set(asked, {"counts": mine})


def _set(asked: _PendingRequest, answer: Json) -> None:
    if not asked.answer.done():
        asked.answer.set_result(answer)


def _fail(together: list[_PendingRequest], error: Exception) -> None:
    for asked in together:
        if not asked.answer.done():
            asked.answer.set_exception(error)


def _cpu_s(texts: Sequence[str]) -> float:
    return COUNT_CPU_S + COUNT_CPU_S_A_BYTE * 4 * sum(map(len, texts))


def _why(asked: _PendingRequest) -> str:
    limit_s = asked.cpu_s or _cpu_s(asked.texts)
    memory = f"{MEMORY_BYTES // 10**6:,} MB of memory"
    return f"it takes more than {limit_s:.3g} s of CPU time or {memory}, or it crashed"


def _started(start_child: StartChild, is_trial: bool) -> Child:
    process = start_child(CHILD)
    if is_trial:
        priority.lower(process.pid)
    return process
