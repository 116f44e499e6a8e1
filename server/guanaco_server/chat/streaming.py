"""A reply over ASGI, whole or as server-sent events, without a framework between: this is the hot path.

The status waits for the first token, so that an early fault has one of its own; if that takes longer than a heartbeat,
the stream begins without it. A client that leaves ends the generation; one that reads slowly slows it down, for
``send`` waits while the socket's buffer is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guanaco.chat import Reply
from guanaco.errors import GuanacoError
from guanaco_server.chat.generation import Pieces
from guanaco_server.http_errors import as_guanaco_error
from guanaco_server.sse import HEARTBEAT

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

Events = AsyncGenerator[Pieces | Reply, None]


@dataclass(frozen=True)
class Encoder:
    """How a protocol writes a reply: ``whole`` as JSON, pieces, end and error as server-sent events; ``problem`` answers in the reply's place."""

    pieces: Callable[[Pieces], bytes]
    end: Callable[[Reply], bytes]
    error: Callable[[GuanacoError], bytes]
    whole: Callable[[Reply], bytes]
    problem: Callable[[GuanacoError], ASGIApp]


class ReplyResponse:
    """One response. ``heartbeat_s`` is the longest silence of a stream."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, encoder: Encoder, heartbeat_s: float
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._encoder = encoder
        self._heartbeat_s = heartbeat_s
        self._is_stream = self._has_begun = self._is_sending = False
        self._sent_at = time.monotonic()

    async def stream(self, events: Coroutine[Any, Any, Events]) -> None:
        self._is_stream = True
        await self._while_connected(self._stream(events))

    async def whole(self, events: Coroutine[Any, Any, Events]) -> None:
        await self._while_connected(self._whole(events))

    async def _stream(self, events: Coroutine[Any, Any, Events]) -> None:
        encoder = self._encoder
        try:
            async with aclosing(await events) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Reply):
                        await self._write(encoder.end(piece), is_last=True)
                        return
                    await self._write(encoder.pieces(piece))
        except Exception as fault:  # noqa: BLE001 - every fault has an answer
            error = as_guanaco_error("a streamed reply", fault)
            if self._has_begun:
                await self._write(encoder.error(error), is_last=True)
            else:
                await self._encoder.problem(error)(self._scope, self._receive, self._send)

    async def _whole(self, events: Coroutine[Any, Any, Events]) -> None:
        try:
            async with aclosing(await events) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Reply):
                        await self._json(self._encoder.whole(piece))
        except Exception as fault:  # noqa: BLE001 - every fault has an answer
            error = as_guanaco_error("a reply", fault)
            await self._encoder.problem(error)(self._scope, self._receive, self._send)

    async def _write(self, data: bytes, is_last: bool = False) -> None:
        self._is_sending = True
        if not self._has_begun:
            self._has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
        self._is_sending = False
        self._sent_at = time.monotonic()

    async def _json(self, body: bytes) -> None:
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Until it is done, or the client has left: then the work is cancelled."""
        task = asyncio.current_task()
        assert task is not None
        watch = _Watch(self._receive, task, self._beat, self._heartbeat_s)
        watcher = asyncio.create_task(watch.run())
        try:
            await work
        except asyncio.CancelledError:
            if not watch.has_left:
                raise
            task.uncancel()
        finally:
            watcher.cancel()

    async def _beat(self) -> None:
        is_quiet = time.monotonic() - self._sent_at >= self._heartbeat_s * 0.9
        if self._is_stream and is_quiet and not self._is_sending:
            with contextlib.suppress(OSError):
                await self._write(HEARTBEAT)


class _Watch:
    """Listens for the client's leaving, and beats while it does not."""

    def __init__(
        self,
        receive: Receive,
        task: asyncio.Task[Any],
        beat: Callable[[], Coroutine[Any, Any, None]],
        heartbeat_s: float,
    ) -> None:
        self._receive = receive
        self._task = task
        self._beat = beat
        self._heartbeat_s = heartbeat_s
        self.has_left = False

    async def run(self) -> None:
        while True:
            message: Message | None = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_s):
                    message = await self._receive()
            if message is None:
                await self._beat()
            elif message["type"] == "http.disconnect":
                self.has_left = True
                self._task.cancel()
                return
