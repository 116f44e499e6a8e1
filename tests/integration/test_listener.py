"""Connections are accepted many in a pass of the loop, but not all, and those of a flood cost no protocol object."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections import Counter
from collections.abc import Iterator

import pytest

from guanaco_server.http.connections import front_door
from guanaco_server.http.connections.front_door import (
    LEAST_BURST,
    RENEWAL_S,
    ConnectionRate,
    DoorLimits,
    FrontDoor,
)
from guanaco_server.http.connections.listener import ACCEPTED_AT_ONCE, Listener
from guanaco_server.observability.metrics import Metrics

CLIENTS = 3 * ACCEPTED_AT_ONCE


class CountedSocket(socket.socket):
    """Notes in which pass of the loop each connection is taken from it."""

    passes: list[int]
    now = 0

    def accept(self) -> tuple[socket.socket, object]:
        accepted = super().accept()
        self.passes.append(self.now)
        return accepted


@contextlib.contextmanager
def listening(count: int) -> Iterator[tuple[CountedSocket, list[socket.socket]]]:
    """Yield a socket to which this number of clients has connected, and the clients."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(CountedSocket())
        listener.passes = []
        listener.bind(("127.0.0.1", 0))
        listener.listen(4_096)
        address = listener.getsockname()
        yield (
            listener,
            [stack.enter_context(socket.create_connection(address)) for _ in range(count)],
        )


async def _until(listener: CountedSocket, accepted: int) -> None:
    while len(listener.passes) < accepted:
        listener.now += 1
        await asyncio.sleep(0)


async def test_many_connections_are_accepted_in_a_pass_but_not_all() -> None:
    made: list[asyncio.Protocol] = []

    def make() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[-1]

    with listening(CLIENTS) as (sock, _):
        listener = Listener(sock, FrontDoor(DoorLimits(), (), Metrics()), make)
        await _until(sock, CLIENTS)
        listener.close()
        while len(made) < CLIENTS:
            await asyncio.sleep(0)
    assert max(Counter(sock.passes).values()) == ACCEPTED_AT_ONCE


async def test_flood_of_one_address_is_refused_before_a_protocol_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(front_door, "RENEWAL_S", math.inf)  # however long the flood takes
    made: list[asyncio.Protocol] = []

    def make() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[-1]

    limits = DoorLimits(per_address=1)
    too_many = LEAST_BURST + CLIENTS
    with listening(too_many) as (sock, clients):
        listener = Listener(sock, FrontDoor(limits, (), Metrics()), make)
        await _until(sock, too_many)
        listener.close()
        last = clients[-1]
        assert last.recv(64).startswith(b"HTTP/1.1 503 ")
    assert len(made) < too_many, "the rest cost no protocol"


def test_an_address_opens_its_burst_and_then_at_its_rate() -> None:
    rate = ConnectionRate(LEAST_BURST)
    assert all(rate.take("192.0.2.1", 0.0) for _ in range(LEAST_BURST))
    assert not rate.take("192.0.2.1", 0.0)
    assert rate.take("192.0.2.2", 0.0), "another address is not concerned"
    again = [rate.take("192.0.2.1", RENEWAL_S / 2) for _ in range(LEAST_BURST)]
    assert sum(again) == LEAST_BURST // 2
