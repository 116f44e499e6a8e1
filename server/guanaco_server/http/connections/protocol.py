"""uvicorn's HTTP protocol with limits, and with an extension: an application may close a connection at once.

    idle ─first byte─▶ header ─complete─▶ body ─complete─▶ working ─answer sent─▶ idle
      └── too late, too long ──▶ closing ◀──┘                 (or draining, if it was sent before the body had come)

A header has ``header_bytes`` and ``header_s``, a body ``body_s``; between two requests there may be ``idle_s``. While the
platform works on an answer there is no limit, unless the client leaves what was sent unread for ``write_s``. The door sweeps
once a second, so a limit may be a second late. A client that is refused gets its answer, half of the connection is closed,
and what it still sends is thrown away for a moment, so that the answer is not lost to a reset.

It overrides methods of uvicorn's class and reads its attributes, which uvicorn does not promise to keep. It was made for
uvicorn 0.54; pyproject.toml allows no later minor version, and tests/unit/test_http_protocol.py says what to look at
before that changes.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NoReturn, cast

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from guanaco.errors import (
    GuanacoError,
    HeaderTooLarge,
    MalformedRequest,
    RequestTimedOut,
    TooManyConnections,
)
from guanaco_server.http.connections.front_door import FrontDoor
from guanaco_server.http.errors import RETRY_AFTER_S, status_of

MADE_FOR = "0.54"
ABORT = "guanaco.abort"
PIECE_BYTES = 16_384  # of a body, parsed in one pass of the loop: a read may have 256 KB
HEADER_PIECE_BYTES = 4_096  # of anything else: 350 header lines, or 90 requests, take 0.4 ms
PIPELINED = 32  # requests that may wait for the answer to an earlier one
HEADER_LINES = 1_000
BODY_CHUNKS = 4_096  # each costs 3 µs, however short it is
DRAINED_BYTES = 1_048_576  # that a client may send after the answer to them, before it is cut off

NEVER = math.inf


# Plain numbers: a member of an Enum takes a request 0.1 µs each time it is named.
IDLE, HEADER, BODY, WORKING, DRAINING, CLOSING = range(6)
PHASES = ("idle", "header", "body", "working", "draining", "closing")


class _RefusedConnection(Exception):
    """Raised within a callback of the parser, which makes an HttpParserError of it."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection. Adds ABORT to the extensions of each request's scope."""

    def __init__(self, door: FrontDoor, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self.deadline = NEVER
        self._door = door
        self._limits = door.limits
        self._phase = IDLE
        self._bytes = 0  # of this header or body, as they came
        self._rest = b""  # that has come, and waits for its turn
        self._held_bytes = 0  # of a request that has not come to its end
        self._chunks = 0
        self._refusal: GuanacoError | None = None
        self._unsent_bytes = 0  # at the last deadline

    @property
    def is_idle(self) -> bool:
        return self._phase == IDLE and self.transport.get_write_buffer_size() == 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._door.enter(self, self.client[0] if self.client else None):
            self._wait(IDLE, self._limits.header_s)
        else:
            self._phase = CLOSING
            transport.write(refusal_of(TooManyConnections()))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self)
        self._release()
        self._rest = b""
        self._phase, self.deadline = CLOSING, NEVER
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
        elif len(data) <= HEADER_PIECE_BYTES and self._phase != CLOSING:
            self._feed(data)
        else:
            self._rest = data
            self._go_on()

    def _go_on(self) -> None:
        """Parse one piece and leave the rest to the next pass: two hundred clients that send much hold nobody up."""
        rest, self._rest = self._rest, b""
        if self.transport.is_closing():
            return
        if self._phase == CLOSING:
            self._discard(len(rest))
        elif rest:
            size = PIECE_BYTES if self._phase == BODY else HEADER_PIECE_BYTES
            self._rest = rest[size:]
            self._feed(rest[:size])
        if self.transport.is_closing():
            self._rest = b""
        elif self._rest or (rest and self._phase == CLOSING):
            self.transport.pause_reading()
            self.loop.call_soon(self._go_on)
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        add_extension(cast(Scope, self.scope), ABORT, self.transport.abort)
        self._phase, self._bytes = HEADER, 0

    def on_headers_complete(self) -> None:
        if self._bytes > self._limits.header_bytes - 2 * PIECE_BYTES:
            self._require_small_header()
        if len(self.headers) > HEADER_LINES:
            self._door.note("header_bytes")
            self._refuse_within(HeaderTooLarge(self._limits.header_bytes))
        if len(self.pipeline) >= PIPELINED:
            self._refuse_within(MalformedRequest("There are too many requests on one connection."))
        self._door.note_busy(self)
        self._phase, self._bytes, self._chunks = BODY, 0, 0
        super().on_headers_complete()
        self.headers = []  # for trailers, which nobody reads

    def on_chunk_header(self) -> None:
        """Called by httptools for each chunk of a body that comes in chunks."""
        self._chunks += 1
        if self._chunks > BODY_CHUNKS:
            self._refuse_within(MalformedRequest("The request's body comes in too many chunks."))

    def on_message_complete(self) -> None:
        if self._held_bytes:
            self._release()
        if self._phase == BODY:
            self._phase, self.deadline = WORKING, NEVER
        elif self._phase == DRAINING:
            self._wait_for_request()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Do as uvicorn's does, but without its timer: the door's sweep ends idle connections."""
        if self.transport.is_closing():
            super().on_response_complete()
            self._wait_for_end()
        elif self.pipeline:
            super().on_response_complete()  # which begins the next one
        else:
            self.server_state.total_requests += 1
            self.flow.resume_reading()
            if self._phase == WORKING:
                self._wait_for_request()
            elif self._phase == BODY:
                self._wait(DRAINING, self._limits.linger_s)
            elif self._phase == HEADER:
                self._door.note_begun(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._phase == WORKING:
            self._wait(WORKING, self._limits.write_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._phase == WORKING:
            self.deadline = NEVER

    def time_out(self) -> None:
        """End what has taken too long."""
        if self.flow.read_paused and self._phase in (HEADER, BODY):
            self.deadline = self.loop.time() + self._limits.body_s  # the client waits for us
        elif self._has_read_more():
            self.deadline = self.loop.time() + self._limits.write_s
        else:
            self._door.note(PHASES[self._phase])
            self._end()

    def hang_up(self) -> None:
        """Close the connection once what was written is sent."""
        self.transport.close()
        self._wait_for_end()

    def _end(self) -> None:
        if self._phase == HEADER:
            self._refuse(RequestTimedOut("header"))
        elif self._phase == BODY:
            self._refuse(RequestTimedOut("body"))
        elif self._phase == IDLE and not self._unsent_bytes:
            self.hang_up()
        else:
            self.transport.abort()

    def _has_read_more(self) -> bool:
        """Tell whether the client has read more of what was written since the last look."""
        before, self._unsent_bytes = self._unsent_bytes, self.transport.get_write_buffer_size()
        return self._unsent_bytes > 0 and (before == 0 or self._unsent_bytes < before)

    def _wait_for_request(self) -> None:
        self._wait(IDLE, self._limits.idle_s)
        self._door.note_idle(self)

    def _wait_for_end(self) -> None:
        is_sent = self.transport.get_write_buffer_size() == 0
        self._wait(CLOSING, self._limits.linger_s if is_sent else self._limits.write_s)

    def _wait(self, phase: int, longest_s: float) -> None:
        self._phase = phase
        self.deadline = self.loop.time() + longest_s

    def _feed(self, piece: bytes) -> None:
        before = self._phase
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self.cycle.keep_alive = False  # there is nothing to upgrade to: it is answered as it is
        except httptools.HttpParserError:
            self._refuse(self._refusal or MalformedRequest("This is not an HTTP request."))
            return
        if self._phase != WORKING:
            self._count(before, len(piece))

    def _count(self, before: int, size: int) -> None:
        """Count a piece to the header or body that it has left unfinished."""
        phase = self._phase
        if phase in (HEADER, BODY):
            self._held_bytes += size
            if not self._door.hold(size):
                self._door.note("memory")
                self._refuse(TooManyConnections())
                return
        if phase == HEADER:
            if before in (IDLE, HEADER):
                self._bytes += size
            if before != HEADER:
                self._wait(phase, self._limits.header_s)
                if before == IDLE:
                    self._door.note_begun(self)
            if self._bytes > self._limits.header_bytes or len(self.headers) > HEADER_LINES:
                self._door.note("header_bytes")
                self._refuse(HeaderTooLarge(self._limits.header_bytes))
        elif phase == BODY:
            self._bytes += size
            if before != BODY:
                self._wait(phase, self._limits.body_s)
            if self._bytes > self._limits.wire_bytes:
                self.transport.abort()
        elif phase == DRAINING:
            self._bytes += size
            if self._bytes > DRAINED_BYTES:
                self.hang_up()

    def _release(self) -> None:
        self._door.release(self._held_bytes)
        self._held_bytes = 0

    def _require_small_header(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.header_bytes:
            self._door.note("header_bytes")
            self._refuse_within(HeaderTooLarge(self._limits.header_bytes))

    def _refuse_within(self, error: GuanacoError) -> NoReturn:
        """Refuse from within a callback of the parser."""
        self._refusal = error
        raise _RefusedConnection

    def _refuse(self, error: GuanacoError) -> None:
        """Answer in the application's place, unless it has begun to answer, and close the connection."""
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        if is_answering and (cycle.response_started or self._phase != BODY):
            self.transport.abort()
            return
        if is_answering:  # the application waits for the body: it hears that the client has left
            cycle.disconnected = True
            cycle.message_event.set()
        self._wait(CLOSING, self._limits.linger_s)
        self._release()
        self._bytes = 0
        self.flow.resume_reading()
        if not self.transport.is_closing():
            self.transport.write(refusal_of(error))
            self.transport.write_eof()

    def _discard(self, size: int) -> None:
        self._bytes += size
        if self._bytes > DRAINED_BYTES:
            self.transport.abort()


def protocol_of(door: FrontDoor) -> Any:
    """Return a protocol class for uvicorn's ``http`` option whose connections go through this door."""
    return functools.partial(GuardedProtocol, door)


def refusal_of(error: GuanacoError) -> bytes:
    """Return the whole answer, as it goes to a client whose connection is closed after it."""
    status = HTTPStatus(status_of(error))
    body = json.dumps(error.to_wire()).encode()
    retry = RETRY_AFTER_S.get(status)
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *([f"retry-after: {retry}"] if retry else []),
        "connection: close",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


def add_extension(asgi: Scope, name: str, extension: Any) -> None:
    """Add an extension to the scope and keep those that the server offers."""
    asgi["extensions"] = {**(asgi.get("extensions") or {}), name: extension}


def abort_of(asgi: Scope) -> Callable[[], None] | None:
    """Return the function that closes the request's connection at once; None under another server."""
    found: Callable[[], None] | None = (asgi.get("extensions") or {}).get(ABORT)
    return found
