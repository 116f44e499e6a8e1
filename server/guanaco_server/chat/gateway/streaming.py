"""A reply over ASGI, whole or as server-sent events, without a framework between: this is the hot path.

The status waits for the first token, so that an early fault has one of its own; if that takes longer than a heartbeat,
the stream begins without it. A client that leaves ends the generation; one that reads slowly slows it down, for
``send`` waits while the socket's buffer is full. If it still waits when the reply's time is over, the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from guanaco.chat import Reply
from guanaco.errors import GuanacoError
from guanaco_server.http.asgi import note_failure
from guanaco_server.http.connections.protocol import abort_of
from guanaco_server.http.errors import as_guanaco_error
from guanaco_server.http.sse import HEARTBEAT
from guanaco_server.idempotency.keeping import KeptAnswer, current_keeper
from guanaco_server.idempotency.requests import kept_answer
from guanaco_server.observability.http import ABANDONED, HEADER, TRACE_ID_HEADER, labelled
from guanaco_server.observability.scope import RequestIds

SSE_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
JSON_HEADER = (b"content-type", b"application/json")
WATCH_AFTER_S = 0.05  # whether the client has left: a reply that is over sooner need not know

logger = logging.getLogger(__name__)

Events = AsyncGenerator[Any, None]
"""Pieces of text, in a form that the encoder knows, and at last the whole reply, which is a model."""


@dataclass(frozen=True)
class Encoder:
    """Writes a reply as a protocol has it: ``whole`` as JSON, pieces, end and error as server-sent events; ``problem`` answers in the reply's place, and ``reply`` is the whole's model."""

    pieces: Callable[[Any], bytes]
    end: Callable[[Any], bytes]
    error: Callable[[GuanacoError], bytes]
    whole: Callable[[Any], bytes]
    problem: Callable[[GuanacoError], ASGIApp]
    reply: type[BaseModel] = Reply


class ReplyResponse:
    """One response, whose header carries the request's ids. ``heartbeat_s`` is the longest silence of a stream.

    ``status`` is what was sent. ``is_whole`` says that the reply was written to its end; ``error`` is what came in its place.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, ids: RequestIds, heartbeat_s: float
    ) -> None:
        self.status = ABANDONED
        self.is_whole = False
        self.error: GuanacoError | None = None
        self._scope = scope
        self._receive = receive
        self._send = send
        self._id_headers = (
            (HEADER.encode(), ids.request_id.encode()),
            (TRACE_ID_HEADER.encode(), ids.trace_id.encode()),
        )
        self._ids = ids
        self._heartbeat_s = heartbeat_s
        self._abort = abort_of(scope)
        self._is_stream = self._is_sending = False
        self._sent_at = time.monotonic()
        self._kept: list[bytes] | None = None  # of a stream whose answer is to be kept

    async def stream(self, events: Coroutine[Any, Any, Events], encoder: Encoder) -> None:
        self._is_stream = True
        if (keeper := current_keeper()) is not None:
            kept = self._kept = []

            def whole_stream(reply: BaseModel) -> KeptAnswer | None:
                if not isinstance(reply, encoder.reply):
                    return None
                return kept_answer(200, SSE_HEADERS, b"".join((*kept, encoder.end(reply))))

            keeper.form = whole_stream
        await self._while_connected(self._stream(events, encoder))

    async def whole(self, events: Coroutine[Any, Any, Events], encoder: Encoder) -> None:
        if (keeper := current_keeper()) is not None:

            def one_object(reply: BaseModel) -> KeptAnswer | None:
                if not isinstance(reply, encoder.reply):
                    return None
                return kept_answer(200, (JSON_HEADER,), encoder.whole(reply))

            keeper.form = one_object
        await self._while_connected(self._whole(events, encoder))

    async def refuse(self, error: GuanacoError, problem: Callable[[GuanacoError], ASGIApp]) -> None:
        """Answer with an error, as ``problem`` writes it."""
        self.error = error

        def note(status: int) -> None:
            self.status = status

        await problem(error)(self._scope, self._receive, labelled(self._send, self._ids, note))

    async def _stream(self, events: Coroutine[Any, Any, Events], encoder: Encoder) -> None:
        try:
            async with aclosing(await events) as pieces:
                async for piece in pieces:
                    if isinstance(piece, encoder.reply):
                        await self._write(encoder.end(piece), is_last=True)
                        self.is_whole = True
                        return
                    await self._write(encoder.pieces(piece))
        except Exception as fault:  # noqa: BLE001 - every fault has an answer
            error = as_guanaco_error("a streamed reply", fault)
            if self.status == ABANDONED:
                await self.refuse(error, encoder.problem)
            else:
                self.error = error
                note_failure(self._scope)
                await self._write(encoder.error(error), is_last=True)

    async def _whole(self, events: Coroutine[Any, Any, Events], encoder: Encoder) -> None:
        try:
            async with aclosing(await events) as pieces:
                async for piece in pieces:
                    if isinstance(piece, encoder.reply):
                        await self._json(encoder.whole(piece))
                        self.is_whole = True
        except Exception as fault:  # noqa: BLE001 - every fault has an answer
            await self.refuse(as_guanaco_error("a reply", fault), encoder.problem)

    async def _write(self, data: bytes, is_last: bool = False) -> None:
        self._is_sending = True
        if self.status == ABANDONED:
            await self._begin(*SSE_HEADERS)
        if self._kept is not None:
            self._kept.append(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
        self._is_sending = False
        self._sent_at = time.monotonic()

    async def _json(self, body: bytes) -> None:
        await self._begin(
            JSON_HEADER,
            (b"content-length", str(len(body)).encode()),
        )
        await self._send({"type": "http.response.body", "body": body})

    async def _begin(self, *headers: tuple[bytes, bytes]) -> None:
        self.status = 200
        start = {"type": "http.response.start", "status": 200}
        await self._send({**start, "headers": [*headers, *self._id_headers]})

    async def _while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait until the work is done. If the client leaves before, cancel it."""
        task = asyncio.current_task()
        assert task is not None
        watch = _Watch(self._receive, task, self._beat, self._heartbeat_s)
        try:
            await work
        except asyncio.CancelledError:
            if watch.has_left:
                task.uncancel()
            elif task.cancelling() or self._abort is None:
                raise
            else:  # the reply's deadline has come while ``send`` waited for a client that does not read
                watch.end()
                await self._abort_slow_client(self._abort)
        finally:
            watch.end()

    async def _abort_slow_client(self, abort: Callable[[], None]) -> None:
        """An error event could not be written either."""
        logger.info("a client did not read its reply in time")
        abort()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _beat(self) -> None:
        is_quiet = time.monotonic() - self._sent_at >= self._heartbeat_s * 0.9
        if self._is_stream and is_quiet and not self._is_sending:
            with contextlib.suppress(OSError):
                await self._write(HEARTBEAT)


class _Watch:
    """Cancels a task once its client has left, and beats for it meanwhile. Begins by itself, ``end`` ends it."""

    def __init__(
        self,
        receive: Receive,
        task: asyncio.Task[Any],
        beat: Callable[[], Coroutine[Any, Any, None]],
        heartbeat_s: float,
    ) -> None:
        self.has_left = False
        self._receive = receive
        self._task = task
        self._beat = beat
        self._heartbeat_s = heartbeat_s
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[None]] = set()
        self._timer = self._loop.call_later(WATCH_AFTER_S, self._begin)

    def end(self) -> None:
        self._timer.cancel()
        for task in self._running:
            task.cancel()

    def _begin(self) -> None:
        self._start(self._wait_for_leaving())
        self._timer = self._loop.call_later(self._heartbeat_s, self._begin_beat)

    def _begin_beat(self) -> None:
        self._start(self._beat())
        self._timer = self._loop.call_later(self._heartbeat_s, self._begin_beat)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _wait_for_leaving(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.has_left = True
        self._task.cancel()
