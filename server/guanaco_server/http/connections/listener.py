"""Accepts connections: many in one pass of the event loop, and none of an address that opens them too fast.

The loop's own server accepts one connection in a pass. A flood then fills the kernel's queue, which drops the first packet
of everybody else, who tries again after 1, 3 and 7 s. A refused connection costs an accept, a short answer and a close: no
protocol object is made for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from guanaco.errors import TooManyConnections
from guanaco_server.http.connections.front_door import FrontDoor
from guanaco_server.http.connections.protocol import refusal_of
from guanaco_server.runtime.waiting import happens

ACCEPTED_AT_ONCE = 64  # in a pass of the loop: 6 ms
REFUSED_AT_ONCE = 256  # 20 ms on a slow core, however many connections there are
BACKLOG = 4_096  # connects at once that the kernel holds for us
RECEIVED_BYTES = (
    131_072  # that the kernel holds of a connection, and one read has; its own limit is megabytes
)
DATE_S = 1.0  # an answer's Date header has whole seconds
REST_S = 0.5  # after the process or the machine had no file left for one more
REFUSAL = refusal_of(TooManyConnections())
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """Takes connections from one listening socket. ``close`` stops that, and closes no connection."""

    def __init__(
        self,
        listening: socket.socket,
        door: FrontDoor,
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self._listening = listening
        self._door = door
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._starts: set[asyncio.Task[None]] = set()
        self._rest: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
        listening.listen(BACKLOG)
        self._begin()

    def close(self) -> None:
        self._loop.remove_reader(self._listening)
        if self._rest is not None:
            self._rest.cancel()

    def _begin(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        accepted = refused = 0
        while accepted < ACCEPTED_AT_ONCE and refused < REFUSED_AT_ONCE:
            try:
                connection, peer = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._loop.remove_reader(self._listening)
                    self._rest = self._loop.call_later(REST_S, self._begin)
                    return
                refused += 1  # that client has left again
                continue
            connection.setblocking(False)
            if self._door.admit(_address(peer)):
                accepted += 1
                self._start(connection)
            else:
                refused += 1
                _refuse(connection)

    def _start(self, connection: socket.socket) -> None:
        task = self._loop.create_task(self._connect(connection))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _connect(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has left meanwhile
            await self._loop.connect_accepted_socket(self._make_protocol, connection)


class GuardedServer(uvicorn.Server):
    """uvicorn's server behind a front door: its sockets are read by a `Listener` each."""

    def __init__(self, config: uvicorn.Config, door: FrontDoor) -> None:
        super().__init__(config)
        self._door = door
        self._listeners: list[Listener] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    async def main_loop(self) -> None:
        """Keep the Date header until a signal comes. uvicorn's own loop looks ten times a second whether one came."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            await happens(DATE_S, self._stopping)

    def stop(self) -> None:
        """Have `serve` end."""
        self.should_exit = True
        self._stopping.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        if not self.should_exit:
            self._listeners = [
                Listener(each, self._door, self._make_protocol) for each in sockets or []
            ]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self._listeners:
            listener.close()
        await super().shutdown(sockets)

    def _make_protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=None,
        )


def _address(peer: object) -> str | None:
    """Return the client's address; None of a socket that has no addresses."""
    return str(peer[0]) if isinstance(peer, tuple) and peer else None


def _refuse(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.send(REFUSAL)
    connection.close()
