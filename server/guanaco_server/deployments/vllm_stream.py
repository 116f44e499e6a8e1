"""vLLM's streamed completions, decoded as they arrive: whatever is in one read of the socket is one Chunk."""

from __future__ import annotations

import math
from itertools import takewhile
from typing import Annotated, Any

import msgspec

from guanaco_server.deployments.model_server import Chunk, ModelServerFault, Token
from guanaco_server.deployments.vllm_wire import FINISH_REASON, MAX_TOKENS, error_text, nonsense

MAX_EVENT_BYTES = 1_048_576
SPARE_PIECES = 64  # over max_output_tokens: the ends, and what a tokenizer holds back


_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class _Choice(msgspec.Struct, gc=False):
    text: str
    finish_reason: Annotated[str, msgspec.Meta(pattern=FINISH_REASON)] | None = None
    logprobs: dict[str, Any] | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: _Count
    completion_tokens: _Count


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode
_decode_lines = msgspec.json.Decoder(_Event).decode_lines


class StreamReader:
    """The last chunk waits for the token counts, which vLLM sends after the text; a server that sends none has its pieces counted."""

    def __init__(self, max_output_tokens: int) -> None:
        self._max_pieces = max_output_tokens + SPARE_PIECES
        self._rest = b""
        self._pieces = 0
        self._finish_reason: str | None = None
        self._usage: _Usage | None = None

    def feed(self, data: bytes) -> Chunk | None:
        """What is complete now; None when nothing is."""
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise nonsense(self._rest)
        if not newline:
            return None
        texts: list[str] = []
        tokens: list[Token] = []
        events, is_done = _decode_lines_of(whole)
        for event in events:
            if event.choices:
                choice = event.choices[0]
                if choice.text:
                    texts.append(choice.text)
                if choice.finish_reason:
                    self._finish_reason = choice.finish_reason
                if choice.logprobs:
                    tokens.extend(_tokens(choice.logprobs))
            if event.usage is not None:
                self._usage = event.usage
        if is_done or (self._usage is not None and self._finish_reason is not None):
            return self._end(texts, tokens)
        self._pieces += len(texts)
        if self._pieces > self._max_pieces:
            raise ModelServerFault("The model server goes on beyond the tokens it was asked for.")
        return Chunk(tuple(texts), tokens=tuple(tokens)) if texts or tokens else None

    def broken_off(self) -> ModelServerFault:
        """For a server that has nothing more to send."""
        return ModelServerFault("The model server broke off before the reply was complete.")

    def _end(self, texts: list[str], tokens: list[Token]) -> Chunk:
        if self._finish_reason is None:
            raise self.broken_off()
        usage = self._usage or _Usage(0, self._pieces + len(texts))
        return Chunk(
            tuple(texts),
            self._finish_reason,
            usage.prompt_tokens,
            usage.completion_tokens,
            tuple(tokens),
        )


def _decode_lines_of(whole: bytes) -> tuple[list[_Event], bool]:
    """The events of whole lines, and whether the last one was among them. What vLLM sends is decoded at once, anything else line by line."""
    said, done, _ = (b"\n" + whole).partition(b"\ndata: [DONE]")
    try:
        events, is_done = _decode_lines(said.replace(b"\ndata: ", b"\n")), bool(done)
    except (msgspec.DecodeError, UnicodeDecodeError):
        data = [line[5:].strip() for line in whole.split(b"\n") if line[:5] == b"data:"]
        is_done = b"[DONE]" in data
        events = [_decode_event(one) for one in takewhile(lambda one: one != b"[DONE]", data)]
    for event in events:
        if event.error:
            why = error_text({"error": event.error})
            raise ModelServerFault(f"The model server failed: {why}")
    return events, is_done


def _decode_event(data: bytes) -> _Event:
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        said = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise nonsense(data) from None
    why = error_text(said)
    raise ModelServerFault(f"The model server failed: {why}") if why else nonsense(said)


def _tokens(logprobs: dict[str, Any]) -> list[Token]:
    """In a stream vLLM writes NaN as null."""
    match logprobs:
        case {"tokens": list(texts), "token_logprobs": list(values)}:
            pairs = zip(texts, values, strict=False)
            return [Token(str(text), math.nan if value is None else value) for text, value in pairs]
    return []
