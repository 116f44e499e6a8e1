"""Clients that send or read slowly, or not at all, on real sockets, through the whole gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Any

import httpx
import pytest

from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.upstream import READ_AHEAD_BYTES, UpstreamResponse
from guanaco_server.deployments.model_servers.vllm import VllmServer
from tests.fixtures.rogue_server import END, HEAD, chunk, event, rogue, well
from tests.fixtures.rogue_world import Patient, said, talking
from tests.fixtures.world import World, eventually

pytestmark = pytest.mark.slow

PIECE = "word " * 13_000
PIECES = 800  # 52 MB: more than the system keeps for four sockets
ONE_READ_BYTES = 262_144  # of asyncio's
BODY = b'{"content": "Hello", "stream": true}'


class Hasty(World):
    changes = {"first_token_timeout_s": 3, "reply_timeout_s": 4}


class Fast:
    """A model server that sends a reply of megabytes as fast as it is taken; ``sent`` are its bytes so far."""

    sent = 0

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for _ in range(PIECES):
            writer.write(chunk(event(PIECE)))
            await writer.drain()
            self.sent += len(PIECE)
        writer.write(chunk(event("the end.", "stop")) + END)


class Noting(VllmServer):
    """Keeps the answers that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[UpstreamResponse] = []
        post = self._upstream.post

        async def noted(*request: Any) -> UpstreamResponse:
            self.answers.append(await post(*request))
            return self.answers[-1]

        self._upstream.post = noted  # type: ignore[method-assign]


def asking(http: httpx.AsyncClient, path: str) -> bytes:
    return (
        f"POST /api/v1{path}/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Authorization: {http.headers['authorization']}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    ).encode()


async def connect(http: httpx.AsyncClient) -> socket.socket:
    """A client that reads when it is told to, and for which the system keeps little."""
    url = httpx.URL(str(http.base_url))
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, (url.host, url.port))
    return client


async def read_on(client: socket.socket) -> bytes:
    """Read until the other side has ended it, one way or another."""
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(60):
            while data := await asyncio.get_running_loop().sock_recv(client, 65_536):
                received += data
    return bytes(received)


async def test_unread_stream_pauses_its_model_server_and_nobody_else(
    database: Database,
) -> None:
    fast, vllm = Fast(), Noting()
    async with (
        rogue(fast, well) as endpoint,
        talking(database, endpoint, make=Patient, vllm=vllm, max_output_tokens=PIECES) as (
            http,
            path,
            world,
        ),
    ):
        loop = asyncio.get_running_loop()
        client = await connect(http)
        await loop.sock_sendall(client, asking(http, path) + BODY)
        await eventually(lambda: begun(fast))
        await standstill(fast)
        assert fast.sent < PIECES * len(PIECE), "it has not sent all"
        assert READ_AHEAD_BYTES < vllm.answers[0]._buffered < READ_AHEAD_BYTES + ONE_READ_BYTES
        waiting = [transport.get_write_buffer_size() for transport in loop._transports.values()]  # type: ignore[attr-defined]
        assert max(waiting) < 4 * len(PIECE), "and nothing is kept for it elsewhere"

        other = await world.open(http)
        answer = await http.post(f"/conversations/{other}/messages", json={"content": "Hi"})
        assert answer.status_code == 200

        received = await read_on(client)
        client.close()
        assert received.count(b"word ") >= PIECES * 13_000 - PIECES, "but for what chunks cut"
        assert b"event: done" in received
        assert fast.sent == PIECES * len(PIECE)


async def begun(server: Fast) -> bool:
    return server.sent > 0


async def standstill(server: Fast) -> None:
    """Wait until it has sent nothing while everybody else had a thousand turns."""
    seen, turns = -1, 0
    while turns < 1_000:
        await asyncio.sleep(0)
        turns = turns + 1 if server.sent == seen else 0
        seen = server.sent


async def test_unread_reply_is_disconnected_at_its_deadline(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        rogue(Fast(), well) as endpoint,
        talking(database, endpoint, make=Hasty, max_output_tokens=PIECES) as (http, path, world),
    ):
        client = await connect(http)
        await asyncio.get_running_loop().sock_sendall(client, asking(http, path) + BODY)
        await eventually(lambda: is_stored(http, path))
        received = await read_on(client)
        client.close()
        assert b"event: token" in received
        assert b"event: done" not in received
        assert sum(world.replicas.in_flight().values()) == 0
        assert (await http.post(f"{path}/regenerate")).json()["content"] == "All well."
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def is_stored(http: httpx.AsyncClient, path: str) -> bool:
    return await said(http, path) == [("user", "Hello")]
