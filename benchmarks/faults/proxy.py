"""A proxy that passes bytes on, until it is told to be slow, to cut, or to refuse: for PostgreSQL, S3 and the Hub.

One for a TCP port or a Unix socket; each connection is checked again with every piece of data, so a fault reaches connections
that are open already.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

PIECE_BYTES = 65_536
Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@dataclass(frozen=True)
class Fault:
    """``delay_s`` holds each piece back; ``cut_after`` bytes of an answer the connection ends; ``status`` answers HTTP requests itself."""

    delay_s: float = 0.0
    cut_after: int | None = None
    status: int | None = None
    is_refusing: bool = False


NONE = Fault()


@dataclass
class FaultyProxy:
    connect: Connect
    fault: Fault = NONE
    hit: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self.fault.is_refusing:
                self.hit += 1
                return
            theirs, to_them = await self.connect()
            try:
                passing = [
                    asyncio.create_task(self._pass(reader, to_them, writer, is_answer=False)),
                    asyncio.create_task(self._pass(theirs, writer, writer, is_answer=True)),
                ]
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
                for task in passing:
                    task.cancel()
                await asyncio.gather(*passing, return_exceptions=True)
            finally:
                to_them.close()
        except (OSError, EOFError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def cut(self) -> int:
        """End every connection at once; how many."""
        count = len(self._writers)
        for writer in list(self._writers):
            writer.transport.abort()
        self.hit += count
        return count

    async def _pass(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        *,
        is_answer: bool,
    ) -> None:
        while piece := await source.read(PIECE_BYTES):
            fault = self.fault
            if fault.delay_s:
                self.hit += 1
                await asyncio.sleep(fault.delay_s)
            if is_answer and fault.cut_after is not None:
                self.hit += 1
                client.write(piece[: fault.cut_after])
                with contextlib.suppress(OSError):
                    await client.drain()
                return
            if not is_answer and fault.status is not None:
                self.hit += 1
                client.write(
                    f"HTTP/1.1 {fault.status} Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
                )
                await client.drain()
                return
            target.write(piece)
            await target.drain()


@asynccontextmanager
async def in_front_of_port(port: int, at: int) -> AsyncIterator[FaultyProxy]:
    """Listen on the port ``at`` of this machine."""
    proxy = FaultyProxy(lambda: asyncio.open_connection("127.0.0.1", port))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", at)
    async with _serving(server, proxy):
        yield proxy


@asynccontextmanager
async def in_front_of_socket(path: str, at: str) -> AsyncIterator[FaultyProxy]:
    """Listen on the Unix socket ``at``."""
    proxy = FaultyProxy(lambda: asyncio.open_unix_connection(path))
    server = await asyncio.start_unix_server(proxy.serve, at)
    async with _serving(server, proxy):
        yield proxy


@asynccontextmanager
async def _serving(server: asyncio.Server, proxy: FaultyProxy) -> AsyncIterator[None]:
    try:
        yield
    finally:
        server.close()
        proxy.cut()
