"""The platform's own HTTP/1.1 client of model servers: over kept connections, the answer read as it comes.

Written on asyncio's transports, for a general client costs more per token than everything else that the gateway
does (docs/benchmarks.md). What it keeps to: one request at a time on a connection; a kept connection that the
server has closed meanwhile is replaced once, unnoticed; a reader that lags stops the socket from being read, so
that the server feels it; closing an answer before its end closes the connection, which ends the generation.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import httptools

from guanaco_server.formats.control import ARTIFACT_HEADER

OUR_HEADERS = b"x-guanaco-"  # the only ones of an answer that are kept
MAX_HEADER_BYTES = 65_536  # of ours, in one answer
READ_AHEAD_BYTES = 65_536
LEFTOVER_S = 5.0  # an answer that was read as far as it matters may take so long to end
KEPT_CONNECTIONS = 256  # idle ones, of one server


class UpstreamError(Exception):  # translated by the adapter that asked
    """The server cannot be reached, broke off, or did not speak HTTP; the text says which."""


@dataclass(frozen=True)
class Origin:
    host: str
    port: int
    is_tls: bool
    path: str
    header: bytes

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(endpoint: str) -> Origin:
        """Parse a base URL such as http://127.0.0.1:21000."""
        parts = urlsplit(endpoint)
        is_tls = parts.scheme == "https"
        return Origin(
            host=parts.hostname or "",
            port=parts.port or (443 if is_tls else 80),
            is_tls=is_tls,
            path=parts.path.rstrip("/"),
            header=parts.netloc.encode(),
        )


class Upstream:
    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._idle: defaultdict[Origin, list[_UpstreamConnection]] = defaultdict(list)
        self._connections: set[_UpstreamConnection] = set()
        self._is_closed = False
        self._tls: ssl.SSLContext | None = None

    async def post(
        self, endpoint: str, path: str, body: bytes, traceparent: str = "", artifact: str = ""
    ) -> UpstreamResponse:
        """Send the request and return the response once its headers are here. Raises UpstreamError."""
        origin = Origin.of(endpoint)
        trace = f"traceparent: {traceparent}\r\n".encode() if traceparent else b""
        if artifact:
            trace += f"{ARTIFACT_HEADER}: {artifact}\r\n".encode()
        request = (
            b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n"
            % ((origin.path + path).encode(), origin.header, len(body), trace)
        ) + body
        return await self._send(origin, request)

    async def get(self, endpoint: str, path: str) -> UpstreamResponse:
        """Ask for a page. Send a request as `post` does."""
        origin = Origin.of(endpoint)
        where = (origin.path + path).encode(), origin.header
        return await self._send(origin, b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % where)

    async def order(self, endpoint: str, path: str, body: bytes, token: str) -> UpstreamResponse:
        """Post with a token, over a connection of its own: an order is never sent twice by itself."""
        origin = Origin.of(endpoint)
        request = (
            b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nAuthorization: Bearer %b\r\n\r\n"
            % ((origin.path + path).encode(), origin.header, len(body), token.encode())
        ) + body
        return await (await self._connect(origin)).send(request).started()

    async def close(self) -> None:
        """Close every connection, also those on which an answer is coming."""
        self._is_closed = True
        self._idle.clear()
        for connection in tuple(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # in which the sockets are closed

    def note(self, connection: _UpstreamConnection, *, is_open: bool) -> None:
        """Note that the connection was opened or lost."""
        if is_open:
            self._connections.add(connection)
        else:
            self._connections.discard(connection)

    async def _send(self, origin: Origin, request: bytes) -> UpstreamResponse:
        while (kept := self._take(origin)) is not None:
            answer = kept.send(request)
            try:
                return await answer.started()
            except _StaleConnectionError:
                continue
        return await (await self._connect(origin)).send(request).started()

    def keep(self, connection: _UpstreamConnection) -> None:
        """Keep the connection for the next request, if there is room."""
        kept = self._idle[connection.origin]
        if len(kept) < KEPT_CONNECTIONS and not self._is_closed:
            kept.append(connection)
        else:
            connection.close()

    def _take(self, origin: Origin) -> _UpstreamConnection | None:
        kept = self._idle[origin]
        while kept:
            connection = kept.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self, origin: Origin) -> _UpstreamConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: _UpstreamConnection(self, origin),
                    origin.host,
                    origin.port,
                    ssl=self._tls_context() if origin.is_tls else None,
                )
        except TimeoutError:
            raise UpstreamError("it does not accept connections") from None
        except OSError as error:
            raise UpstreamError(error.strerror or "it does not accept connections") from None
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        self._tls = self._tls or ssl.create_default_context()
        return self._tls


class UpstreamResponse:
    """A response whose body is read as it comes; ``close`` it in any case."""

    __slots__ = ("_buffer", "_buffered", "_connection", "_error", "_is_ended", "_is_left", "_waiter", "headers", "status")  # fmt: skip

    def __init__(self, connection: _UpstreamConnection) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}  # those that begin with OUR_HEADERS, in lower case
        self._connection: _UpstreamConnection | None = connection
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._is_ended = self._is_left = False
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def started(self) -> UpstreamResponse:
        try:
            while not self.status and self._error is None:
                await self._wait()
        except BaseException:
            self.close()
            raise
        if self._error is not None:
            raise self._error
        return self

    async def read(self) -> bytes:
        """Return what has come since the last call, at least a byte; nothing at the end. Raises UpstreamError."""
        while not self._buffer:
            if self._error is not None:
                raise self._error
            if self._is_ended:
                return b""
            await self._wait()
        data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        self._buffer.clear()
        self._buffered = 0
        if self._connection is not None:
            self._connection.resume()
        return data

    async def read_all(self, limit_bytes: int) -> bytes:
        """Return the whole body. Raises UpstreamError beyond the limit."""
        pieces, size = [], 0
        while data := await self.read():
            size += len(data)
            if size > limit_bytes:
                raise UpstreamError("its answer is too long")
            pieces.append(data)
        return b"".join(pieces)

    def close(self) -> None:
        """Close the response. If it has not ended, the server stops generating."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop(self)

    def leave(self) -> None:
        """Ignore the rest of the response. Its connection is kept if the rest is short and comes soon."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._is_left = True
            self._buffer.clear()
            asyncio.get_running_loop().call_later(LEFTOVER_S, connection.drop, self)

    def begin(self, status: int) -> None:
        self.status = status
        self._wake()

    def feed(self, data: bytes) -> int:
        """Take a piece of the body. Return how many bytes wait for their reader."""
        self._buffered += len(data)
        if not self._is_left:
            self._buffer.append(data)
            self._wake()
        return self._buffered

    def end(self, error: UpstreamError | None = None) -> None:
        self._connection = None
        self._is_ended = True
        self._error = error
        self._wake()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _StaleConnectionError(UpstreamError):
    """A kept connection was closed before it answered a byte."""


class _UpstreamConnection(asyncio.Protocol):
    __slots__ = ("_answer", "_body", "_has_answered", "_header_bytes", "_is_complete", "_is_kept", "_is_paused", "_is_used", "_parser", "_transport", "_upstream", "on_body", "origin")  # fmt: skip

    def __init__(self, upstream: Upstream, origin: Origin) -> None:
        self.origin = origin
        self._upstream = upstream
        self._transport: Any = None
        self._body: list[bytes] = []
        self.on_body = self._body.append  # called for every token: no line of Python
        self._parser = httptools.HttpResponseParser(self)
        self._answer: UpstreamResponse | None = None
        self._is_used = self._has_answered = self._is_paused = False
        self._is_complete = self._is_kept = False
        self._header_bytes = 0

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def send(self, request: bytes) -> UpstreamResponse:
        self._answer = UpstreamResponse(self)
        self._has_answered = False
        self._header_bytes = 0
        self._transport.write(request)
        return self._answer

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def drop(self, answer: UpstreamResponse) -> None:
        """Close the connection if this response has not ended meanwhile."""
        if self._answer is answer:
            self._answer = None
            self._transport.abort()

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._upstream.note(self, is_open=True)

    def data_received(self, data: bytes) -> None:
        self._has_answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail(UpstreamError("it does not speak HTTP"))
            self._transport.abort()
            return
        if self._body:
            self._feed_answer()
        if self._is_complete:
            self._complete()

    def connection_lost(self, error: Exception | None) -> None:
        del self._parser  # which holds this connection: a cycle
        self._upstream.note(self, is_open=False)
        if self._is_used and not self._has_answered:
            self._fail(_StaleConnectionError("it closed the connection"))
        else:
            self._fail(UpstreamError("it closed the connection"))

    # Called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is None or not name.lower().startswith(OUR_HEADERS):
            return
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise UpstreamError("its headers are too long")
        self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._is_complete:
            raise UpstreamError("it answers twice")
        if self._answer is not None:
            self._answer.begin(self._parser.get_status_code())

    def on_message_complete(self) -> None:
        self._is_complete = True
        self._is_kept = self._parser.should_keep_alive()  # which the parser forgets afterwards

    def _feed_answer(self) -> None:
        """Pass on what one read of the socket brought of the body."""
        body = b"".join(self._body)
        self._body.clear()
        if self._answer is not None and self._answer.feed(body) > READ_AHEAD_BYTES:
            self._is_paused = True  # one that was left stays paused until its time is over
            self._transport.pause_reading()

    def _complete(self) -> None:
        answer, self._answer = self._answer, None
        self._is_complete = False
        self._is_used = True
        if answer is not None:
            answer.end()
        self.resume()
        if self._is_kept and answer is not None:
            self._upstream.keep(self)
        else:
            self._transport.close()

    def _fail(self, error: UpstreamError) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.end(error)
