"""vLLM's streamed completions, decoded as they arrive: whatever is in one read of the socket is one Chunk."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from typing import Any, Protocol

import msgspec

from guanaco_server.deployments.model_server import Chunk, Generation, ModelServerFault, Token
from guanaco_server.deployments.vllm_wire import error_text, nonsense

MAX_EVENT_BYTES = 1_048_576
SPARE_PIECES = 64  # over max_output_tokens: the ends, and what a tokenizer holds back


class Body(Protocol):
    async def read(self) -> bytes: ...


class _Choice(msgspec.Struct, gc=False):
    text: str
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


async def read_stream(body: Body, generation: Generation) -> AsyncGenerator[Chunk, None]:
    """The reply as it comes; ModelServerFault if it breaks off, or goes on beyond what was asked for."""
    reader = StreamReader(generation.params.max_output_tokens + SPARE_PIECES)
    while data := await body.read():
        chunk = reader.feed(data)
        if chunk is not None:
            yield chunk
            if chunk.finish_reason is not None:
                return
    raise ModelServerFault("The model server broke off before the reply was complete.")


class StreamReader:
    """The last chunk waits for the token counts, which vLLM sends after the text; a server that sends none has its pieces counted."""

    def __init__(self, max_pieces: int) -> None:
        self._max_pieces = max_pieces
        self._rest = b""
        self._pieces = 0
        self._finish_reason: str | None = None
        self._usage: _Usage | None = None

    def feed(self, data: bytes) -> Chunk | None:
        """What is complete now; None when nothing is."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise nonsense(self._rest)
        texts: list[str] = []
        tokens: list[Token] = []
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            if line[5:].strip() == b"[DONE]":
                return self._end(texts, tokens)
            self._take(line[5:], texts, tokens)
            if self._finish_reason is not None and self._usage is not None:
                return self._end(texts, tokens)
        self._pieces += len(texts)
        if self._pieces > self._max_pieces:
            raise ModelServerFault("The model server goes on beyond the tokens it was asked for.")
        return Chunk(tuple(texts), tokens=tuple(tokens)) if texts else None

    def _take(self, data: bytes, texts: list[str], tokens: list[Token]) -> None:
        try:
            event = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self._problem(data) from None
        if event.error:
            raise self._problem(data)
        if event.choices:
            choice = event.choices[0]
            self._finish_reason = choice.finish_reason or self._finish_reason
            if choice.text:
                texts.append(choice.text)
            if choice.logprobs:
                tokens.extend(_tokens(choice.logprobs))
        if event.usage is not None:
            self._usage = event.usage

    def _end(self, texts: list[str], tokens: list[Token]) -> Chunk:
        if self._finish_reason is None:
            raise ModelServerFault("The model server broke off before the reply was complete.")
        usage = self._usage or _Usage(0, self._pieces + len(texts))
        return Chunk(
            tuple(texts),
            self._finish_reason,
            usage.prompt_tokens,
            usage.completion_tokens,
            tuple(tokens),
        )

    @staticmethod
    def _problem(data: bytes) -> ModelServerFault:
        try:
            said = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return nonsense(data)
        why = error_text(said)
        return ModelServerFault(f"The model server failed: {why}") if why else nonsense(said)


def _tokens(logprobs: dict[str, Any]) -> list[Token]:
    """In a stream vLLM writes NaN as null."""
    match logprobs:
        case {"tokens": list(texts), "token_logprobs": list(values)}:
            pairs = zip(texts, values, strict=False)
            return [Token(str(text), math.nan if value is None else value) for text, value in pairs]
    return []
