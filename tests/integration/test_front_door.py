"""Tests what hostile and clumsy clients meet at the front door, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from guanaco_server.http.connections.front_door import (
    AddressCount,
    DoorLimits,
    FrontDoor,
    ProxiedRequests,
)
from guanaco_server.http.connections.listener import RECEIVED_BYTES, Listener
from guanaco_server.http.connections.protocol import HEADER_PIECE_BYTES, GuardedProtocol
from guanaco_server.http.errors import ErrorForms
from guanaco_server.observability.exposition import serving
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.waiting import happens
from tests.fixtures.ports import free_port
from tests.fixtures.served_app import served

pytestmark = pytest.mark.slow

SHORT = DoorLimits(header_s=0.3, body_s=0.3, idle_s=0.3, write_s=0.3, linger_s=0.3)
LONG = DoorLimits(header_s=300, body_s=300, idle_s=300, write_s=300, linger_s=300)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
BLOCK = b"a" * 65_536


class Echo:
    """Answers with the body's size; ``left`` are the requests whose client left before its end."""

    def __init__(self) -> None:
        self.left = 0
        self.asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        size, has_more = 0, True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left += 1
                return
            size += len(message.get("body", b""))
            has_more = message.get("more_body", False)
        await respond(send, b"%d" % size)


async def respond(send: Send, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *pieces: bytes) -> int:
        """Send pieces, and return how many the server took."""
        for number, piece in enumerate(pieces):
            try:
                self._writer.write(piece)
                await self._writer.drain()
            except OSError:
                return number
        return len(pieces)

    async def read(self, size: int) -> bytes:
        return await self._reader.readexactly(size)

    async def rest(self) -> bytes:
        """All until the server ends the connection."""
        received = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while piece := await self._reader.read(65_536):
                received += piece
        return bytes(received)

    async def answer(self) -> bytes:
        """One answer with a length of one digit."""
        return await self._reader.readuntil(b"\r\n\r\n") + await self._reader.readexactly(1)

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    parsed = httpx.URL(url)
    client = Client(*await asyncio.open_connection(parsed.host, parsed.port))
    try:
        yield client
    finally:
        client.close()


def lines(count: int) -> list[bytes]:
    return [b"X-Line-%d: " % number + b"v" * 1_000 + b"\r\n" for number in range(count)]


HUGE_HEADERS = [
    pytest.param([b"GET / HTTP/1.1\r\nX: ", *[BLOCK] * 1_000], id="one endless line"),
    pytest.param([b"GET / HTTP/1.1\r\n", *lines(100) * 500], id="endless lines"),
    pytest.param([b"GET /", *[BLOCK] * 1_000], id="an endless path"),
    pytest.param([b"GET / HTTP/1.1\r\n", *lines(66), b"\r\n"], id="complete, and too long"),
    pytest.param([b"GET / HTTP/1.1\r\n", b"a:\r\n" * 2_000, b"\r\n"], id="too many lines"),
]


@pytest.mark.parametrize("pieces", HUGE_HEADERS)
async def test_header_over_64_kb_is_refused_before_it_is_read(pieces: list[bytes]) -> None:
    app = Echo()
    async with served(app, LONG) as url, connected(url) as client:
        taken = asyncio.create_task(client.send(*pieces))
        answer = await client.rest()
        assert await taken < len(pieces) / 2 or len(pieces) < 100, "the server does not read on"
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b"header_too_large" in answer
        assert app.asked == 0


async def test_each_connection_parses_one_piece_per_loop_pass() -> None:
    loop = asyncio.get_running_loop()
    fed: list[tuple[int, int]] = []  # in which pass, how many bytes
    now, is_over = 0, False

    class Watched(GuardedProtocol):
        def _feed(self, piece: bytes) -> None:
            fed.append((now, len(piece)))
            super()._feed(piece)

    def count() -> None:
        nonlocal now
        now += 1
        if not is_over:
            loop.call_soon(count)

    listener = socket.create_server(("127.0.0.1", 0))
    door = FrontDoor(LONG, (), Metrics())
    config = uvicorn.Config(Echo(), log_config=None, lifespan="off", ws="none")
    config.load()

    def make() -> asyncio.Protocol:
        return Watched(door, config=config, server_state=ServerState(), app_state={}, _loop=loop)

    server = await loop.create_server(make, sock=listener)
    loop.call_soon(count)
    async with connected(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: 1234567\r\n" * 900 + b"\r\n")
        assert (await client.answer()).endswith(b"0")
    is_over = True
    server.close()
    by_pass = Counter[int]()
    for when, size in fed:
        by_pass[when] += size
    assert sum(by_pass.values()) > 12_000
    assert max(by_pass.values()) <= HEADER_PIECE_BYTES


def test_a_refused_client_is_read_once_per_loop_pass() -> None:
    """uvloop reads a connection up to 32 times in a pass, with 256 KB each: a hundred of them once stopped it for 400 ms."""
    discarded = Counter[int]()  # by pass
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_discard_a_flood(discarded))
    assert sum(discarded.values()) > 2 * RECEIVED_BYTES
    assert max(discarded.values()) <= 2 * RECEIVED_BYTES, "the kernel holds up to twice as much"


async def _discard_a_flood(discarded: Counter[int]) -> None:
    loop = asyncio.get_running_loop()
    now, is_over = 0, asyncio.Event()

    class Watched(GuardedProtocol):
        def _discard(self, size: int) -> None:
            discarded[now] += size
            super()._discard(size)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            is_over.set()

    def count() -> None:
        nonlocal now
        now += 1
        if not is_over.is_set():
            loop.call_soon(count)

    door = FrontDoor(LONG, (), Metrics())
    config = uvicorn.Config(Echo(), log_config=None, lifespan="off", ws="none")
    config.load()

    def make() -> asyncio.Protocol:
        return Watched(door, config=config, server_state=ServerState(), app_state={}, _loop=loop)

    with socket.socket() as listening, socket.socket() as client:
        listening.bind(("127.0.0.1", 0))
        listener = Listener(listening, door, make)
        client.connect(listening.getsockname())
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:  # until the kernel holds all that it takes
                client.send(BLOCK)
        loop.call_soon(count)
        await is_over.wait()
        listener.close()


async def test_a_header_of_just_under_64_kb_is_read() -> None:
    async with served(Echo(), LONG) as url, connected(url) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n", *lines(62), b"\r\n")
        assert (await client.answer()).startswith(b"HTTP/1.1 200 ")


async def test_what_is_not_http_is_refused_in_the_platforms_form() -> None:
    async with served(Echo(), LONG) as url, connected(url) as client:
        await client.send(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
        answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"error": "malformed_request"' in answer


@pytest.mark.parametrize(
    ("begun", "status"), [(b"", b""), (b"GET / HT", b"408"), (POST + b"four", b"408")]
)
async def test_a_request_that_does_not_arrive_in_time_ends(begun: bytes, status: bytes) -> None:
    app = Echo()
    async with served(app, SHORT) as url, connected(url) as client:
        await client.send(begun)
        answer = await client.rest()
    assert answer[9:12] == status
    assert app.left == app.asked, "an application that waits for the body hears of it"


async def test_a_byte_now_and_then_does_not_prolong_a_deadline() -> None:
    async with served(Echo(), SHORT) as url, connected(url) as client:
        await client.send(b"GET / HTTP/1.1\r\n")

        async def drip() -> None:
            while await client.send(b"x"):
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        assert (await client.rest())[9:12] == b"408"
        dripping.cancel()


async def test_an_idle_connection_is_closed_without_a_word() -> None:
    async with served(Echo(), SHORT) as url, connected(url) as client:
        await client.send(GET)
        assert (await client.answer()).endswith(b"0")
        assert await client.rest() == b""


async def test_an_answer_that_takes_long_or_streams_is_not_cut() -> None:
    finish = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await finish.wait()
        await send({"type": "http.response.body", "body": b"ended"})

    async with served(app, SHORT) as url, connected(url) as client, connected(url) as idle:
        await client.send(GET)
        assert await idle.rest() == b"", "a deadline has passed meanwhile"
        finish.set()
        assert b"ended" in await client.rest()


async def test_a_client_that_reads_nothing_is_let_go() -> None:
    left = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with asyncio.timeout(60):
            while not await sent(send, receive):
                pass
        left.set()

    async def sent(send: Send, receive: Receive) -> bool:
        """Send until the client has left, and return whether it has."""
        waiting = asyncio.create_task(receive_all(receive))
        writing = asyncio.ensure_future(
            send({"type": "http.response.body", "body": BLOCK, "more_body": True})
        )
        done, _ = await asyncio.wait({waiting, writing}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        writing.cancel()
        return waiting in done

    async with served(app, SHORT) as url, connected(url) as client:
        await client.send(GET)
        assert await happens(60, left)


async def receive_all(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_body_of_long_chunk_extensions_ends_at_its_wire_size() -> None:
    limits = replace(LONG, body_bytes=65_536)
    app = Echo()
    async with served(app, limits) as url, connected(url) as client:
        await client.send(CHUNKED, *[b"1;" + b"x" * 1_000 + b"\r\na\r\n"] * 1_000)
        assert await client.rest() == b""
    assert app.left == 1


async def test_a_body_of_very_many_chunks_is_refused() -> None:
    app = Echo()
    async with served(app, LONG) as url, connected(url) as client:
        await client.send(CHUNKED, b"1\r\na\r\n" * 5_000)
        assert b"malformed_request" in await client.rest()
    assert app.left == 1


async def test_a_trailer_is_not_read_as_a_header() -> None:
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        seen.extend(name for name, _ in scope["headers"])
        await respond(send, b"1")

    async with served(app, LONG) as url, connected(url) as client:
        await client.send(CHUNKED + b"1\r\na\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
        assert (await client.answer()).endswith(b"1")
    assert seen == [b"host", b"transfer-encoding"]


async def test_requests_on_one_connection_are_answered_in_turn_and_limited() -> None:
    async with served(Echo(), LONG) as url, connected(url) as client:
        await client.send(GET + POST + b"nine char" + GET)
        bodies = [(await client.answer())[-1:] for _ in range(3)]
        assert bodies == [b"0", b"9", b"0"]
        await client.send(GET * 1_000)
        assert (await client.rest()).count(b"200 OK") < 100


async def test_early_answer_ends_the_connection_only_without_the_rest() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"1")

    async with served(app, LONG) as url, connected(url) as client:
        await client.send(POST)
        assert (await client.answer()).endswith(b"1")
        await client.send(b"nine char" + GET)
        assert (await client.answer()).endswith(b"1"), "the connection goes on"
    async with served(app, SHORT) as url, connected(url) as client:
        await client.send(POST)
        assert (await client.answer()).endswith(b"1")
        assert await client.rest() == b""


async def test_requests_that_are_still_arriving_share_their_memory() -> None:
    limits = replace(LONG, held_bytes=50_000)
    async with served(Echo(), limits) as url, connected(url) as slow, connected(url) as large:
        for client in (slow, large):
            await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n", *lines(30))
        done, waiting = await asyncio.wait(
            [asyncio.create_task(client.rest()) for client in (slow, large)],
            return_when=asyncio.FIRST_COMPLETED,
        )
        (refused,) = done
        assert refused.result().startswith(b"HTTP/1.1 503 ")
        async with connected(url) as other:
            await other.send(b"GET / HTTP/1.1\r\nHost: x\r\n", *lines(10), b"\r\n")
            assert (await other.answer()).endswith(b"0"), "what was refused is given back"
        for task in waiting:
            task.cancel()


@pytest.mark.parametrize(
    "limits", [replace(LONG, connections=3, per_address=9), replace(LONG, per_address=3)]
)
async def test_an_idle_connection_makes_room_for_a_new_one(limits: DoorLimits) -> None:
    async with served(Echo(), limits) as url, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(url)) for _ in range(3)]
        await clients[0].send(GET)
        assert (await clients[0].answer()).endswith(b"0")
        newcomer = await stack.enter_async_context(connected(url))
        await newcomer.send(GET)
        assert (await newcomer.answer()).endswith(b"0")


async def test_headers_that_only_begin_keep_nobody_out() -> None:
    hold, held = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/held":
            held.set()
            await hold.wait()
        await respond(send, b"1")

    for limits in (replace(LONG, connections=4), replace(LONG, per_address=4)):
        hold.clear()
        held.clear()
        async with served(app, limits) as url, contextlib.AsyncExitStack() as stack:
            working = await stack.enter_async_context(connected(url))
            await working.send(GET.replace(b"/", b"/held", 1))
            await held.wait()
            for _ in range(12):
                await (await stack.enter_async_context(connected(url))).send(b"G")
            honest = await stack.enter_async_context(connected(url))
            await honest.send(GET)
            assert (await honest.answer()).endswith(b"1")
            hold.set()
            assert (await working.answer()).endswith(b"1"), "what is worked on is not cut"


async def test_connections_over_the_limit_get_503() -> None:
    hold = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await hold.wait()
        await respond(send, b"1")

    for limits in (replace(LONG, connections=2), replace(LONG, per_address=2)):
        hold.clear()
        async with served(app, limits) as url, contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(url)) for _ in range(2)]
            for client in clients:
                await client.send(GET)
            async with connected(url) as refused:
                answer = await refused.rest()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: " in answer
            hold.set()
            for client in clients:
                assert (await client.answer()).endswith(b"1")
                client.close()


async def test_client_of_a_trusted_proxy_has_its_own_limit() -> None:
    hold, held = asyncio.Event(), asyncio.Event()
    proxied = ProxiedRequests(AddressCount(1, ("127.0.0.1",)), ErrorForms())

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        held.set()
        await hold.wait()
        await respond(send, b"1")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        client = proxied.client_of(scope)
        assert client is not None
        await proxied.answer(client, slow, scope, receive, send)

    def coming(address: str) -> dict[str, str]:
        return {"x-forwarded-for": f"203.0.113.9, {address}"}

    async with served(app, LONG) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        first = asyncio.create_task(http.get("/", headers=coming("192.0.2.1")))
        await held.wait()
        assert (await http.get("/", headers=coming("192.0.2.1"))).status_code == 503
        other = asyncio.create_task(http.get("/", headers=coming("192.0.2.2")))
        hold.set()
        assert (await first).status_code == (await other).status_code == 200
        assert (await http.get("/", headers=coming("192.0.2.1"))).status_code == 200


async def test_the_port_of_the_metrics_has_limits_too() -> None:
    port = free_port()
    metrics = Metrics()
    with serving(metrics, "127.0.0.1", port, longest_s=0.3):
        url = f"http://127.0.0.1:{port}"
        async with contextlib.AsyncExitStack() as stack:
            idle = [await stack.enter_async_context(connected(url)) for _ in range(50)]
            for client in idle:
                assert await client.rest() == b""
        async with httpx.AsyncClient(timeout=60) as http:
            assert "guanaco_http_connections" in (await http.get(f"{url}/metrics")).text
