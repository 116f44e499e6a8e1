"""Sends what reaches the platform over HTTP in `make bench-hostile`: innocent chats, a watch, fuzzed requests, bad connections.

The innocent chats and the watch are processes of their own, so that the attackers' work does not slow them down:

    python -m benchmarks.hostile.traffic chat URL KEY    a line of JSON with a latency for each message, until it is killed
    python -m benchmarks.hostile.traffic watch URL PID   a line for each /healthz, fifty a second
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

USERS = 8
PAUSE_S = 0.25
WATCH_S = 0.02
WORKERS = 16
ANSWER_S = 30.0
PART_OF_TIME = 0.9  # in which the fuzzed requests are sent, if the platform keeps up
READ_BYTES = 65_536
COMPETITION = "innocents"  # the fuzzed requests of admins end and freeze the open one
BOT = {"name": "Luna", "memory": "A keeper of a lighthouse."}
WORDS = [
    "The", "sea", "was", "calm", "that", "evening", "and", "nobody", "had", "seen", "a", "ship", "for", "days",
    "so", "we", "told", "each", "other", "stories",
]  # fmt: skip


async def chat(url: str, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=60, trust_env=False
    ) as http:
        await asyncio.gather(*(_innocent(http, number) for number in range(USERS)))


async def _innocent(http: httpx.AsyncClient, number: int) -> None:
    chance = random.Random(number)
    path = await _opened(http, number)
    await asyncio.sleep(number * PAUSE_S / USERS)
    while True:
        text = " ".join(chance.choices(WORDS, k=12))
        started = time.monotonic()
        try:
            status = (await http.post(path, json={"content": text})).status_code
        except httpx.HTTPError as error:
            status = 0
            print(f"innocent: {type(error).__name__}", file=sys.stderr, flush=True)
        print(
            json.dumps({"at": started, "s": time.monotonic() - started, "status": status}),
            flush=True,
        )
        await asyncio.sleep(PAUSE_S)


async def _opened(http: httpx.AsyncClient, number: int) -> str:
    """Open a conversation, and say so where that takes several tries."""
    user = f"innocent-{number}"
    body = {"user_id": user, "bot": BOT, "consent": True, "competition": COMPETITION}
    while True:
        try:
            answer = await http.post("/api/v1/conversations", json=body)
        except httpx.HTTPError as error:
            print(f"innocent: {type(error).__name__}", file=sys.stderr, flush=True)
        else:
            if answer.status_code == 201:
                return f"/api/v1/conversations/{answer.json()['conversation_id']}/messages"
            print(
                f"innocent: {answer.status_code} {answer.text[:200]}", file=sys.stderr, flush=True
            )
        await asyncio.sleep(PAUSE_S)


async def watch(url: str, pid: int) -> None:
    """Ask for /healthz on one connection. ``late`` is how late this process itself was woken, which is no stall.

    ``loop_queued`` and ``watch_queued`` are how long the platform's loop, which is its first thread, and this process were ready to run
    meanwhile and waited for a processor.
    """
    loop, own = Path(f"/proc/{pid}/task/{pid}/schedstat"), Path("/proc/self/schedstat")
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
        while True:
            wanted = time.monotonic() + WATCH_S
            await asyncio.sleep(WATCH_S)
            loop_before, own_before = _queued_s(loop), _queued_s(own)
            started = time.monotonic()
            with contextlib.suppress(httpx.HTTPError):
                await http.get("/healthz")
                seconds = time.monotonic() - started
                look = {
                    "at": started,
                    "s": seconds,
                    "late": started - wanted,
                    "loop_queued": _queued_s(loop) - loop_before,
                    "watch_queued": _queued_s(own) - own_before,
                }
                print(json.dumps(look), flush=True)


def _queued_s(schedstat: Path) -> float:
    """Return how long a thread has waited for a processor in its life: the second of the kernel's figures, in ns."""
    return int(schedstat.read_text().split()[1]) / 1e9


@dataclass(frozen=True)
class FuzzedRequest:
    operation: str
    method: str
    path: str
    type: str | None
    body: bytes

    @classmethod
    def read(cls, line: str) -> FuzzedRequest:
        found: dict[str, Any] = json.loads(line)
        found["body"] = base64.b64decode(found["body"])
        return cls(**found)

    def line(self) -> str:
        """Return the line that it was read from, as tests/fuzz/corpus/http keeps it."""
        return json.dumps(vars(self) | {"body": base64.b64encode(self.body).decode()}) + "\n"


@dataclass
class Answers:
    """Counts the answers to the fuzzed requests. ``failures`` are 5xx other than a 503 that says when to come back."""

    statuses: dict[int, int] = field(default_factory=dict)
    failures: list[tuple[int, str, FuzzedRequest, str]] = field(default_factory=list)
    unanswered: list[tuple[str, FuzzedRequest]] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)  # seconds to the status, by operation

    @property
    def sent(self) -> int:
        return sum(self.statuses.values()) + len(self.unanswered)


async def replay(
    url: str,
    requests: Sequence[tuple[str, str, FuzzedRequest]],
    ids: dict[str, str],
    deadline: float,
    last: float,
) -> Answers:
    """Send requests at an even pace up to the deadline, each with its role and key, and collect the answers. Stop sending at ``last``."""
    answers, left = Answers(), iter(enumerate(requests))
    begun = time.monotonic()
    pace_s = max(0.0, deadline - begun) * PART_OF_TIME / max(1, len(requests))
    limits = httpx.Limits(max_connections=WORKERS, max_keepalive_connections=WORKERS)
    async with httpx.AsyncClient(
        base_url=url, timeout=ANSWER_S, trust_env=False, limits=limits, follow_redirects=False
    ) as http:

        async def work() -> None:
            for number, (role, key, request) in left:
                await asyncio.sleep(max(0.0, begun + number * pace_s - time.monotonic()))
                if time.monotonic() > last:
                    return
                await _send(http, role, key, request, ids, answers)

        await asyncio.gather(*(work() for _ in range(WORKERS)))
    return answers


async def _send(
    http: httpx.AsyncClient,
    role: str,
    key: str,
    request: FuzzedRequest,
    ids: dict[str, str],
    answers: Answers,
) -> None:
    path = request.path
    for name, value in ids.items():
        path = path.replace(f"@@{name}@@", value)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if request.type:
        headers["Content-Type"] = request.type
    started = time.monotonic()
    try:
        made = http.build_request(
            request.method, path, headers=headers, content=request.body or None
        )
        answer = await http.send(made, stream=True)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        answers.unanswered.append((type(error).__name__, request))
        return
    took_s = time.monotonic() - started
    answers.slowest[request.operation] = max(took_s, answers.slowest.get(request.operation, 0.0))
    text = b""
    try:
        async with asyncio.timeout(2):  # an event stream has no end
            async for chunk in answer.aiter_raw():
                text += chunk
                if len(text) > READ_BYTES:
                    break
    except (TimeoutError, httpx.HTTPError):
        pass
    with contextlib.suppress(httpx.HTTPError):
        await answer.aclose()
    answers.statuses[answer.status_code] = answers.statuses.get(answer.status_code, 0) + 1
    is_refusal = answer.status_code == 503 and "retry-after" in answer.headers
    if answer.status_code >= 500 and not is_refusal:
        answers.failures.append(
            (answer.status_code, role, request, text[:300].decode(errors="replace"))
        )


async def attack_connections(url: str, count: int, seconds: float, seed: int) -> dict[str, int]:
    """Open hostile connections at once and keep each for a while; return how many the platform had closed by then."""
    chance = random.Random(seed)
    kinds = list(CONNECTIONS)
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    chance.shuffle(chosen)
    ends = await asyncio.gather(*(_connection(url, kind, seconds) for kind in chosen))
    found: dict[str, int] = {}
    for kind, end in zip(chosen, ends, strict=True):
        found[f"{kind}: {end}"] = found.get(f"{kind}: {end}", 0) + 1
    return found


async def _push(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write on, until the platform closes the connection."""
    if writer.transport.is_closing():
        raise ConnectionResetError
    writer.write(data)
    await writer.drain()


async def _connection(url: str, kind: str, seconds: float) -> str:
    parts = urlsplit(url)
    try:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except OSError:
        return "refused"
    try:
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):
                await CONNECTIONS[kind](writer)
            status = await reader.read(64)
            while await reader.read(READ_BYTES):
                pass
            return f"closed with {status[9:12].decode(errors='replace')}" if status else "closed"
    except TimeoutError:
        return "still open"
    except ConnectionError:
        return "closed"
    finally:
        writer.transport.abort()


async def _huge_header(writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Big: ")
    for _ in range(800):
        await _push(writer, b"a" * 100_000)


async def _many_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
    for number in range(2_000):
        await _push(writer, b"X-%d: 1\r\n" % number * 100)


async def _slow_header(writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    while True:
        await _push(writer, b"a")
        await asyncio.sleep(1)


async def _slow_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"POST /api/v1/users/erase HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
    while True:
        await _push(writer, b" ")
        await asyncio.sleep(1)


async def _endless_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"POST /api/v1/submissions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    for _ in range(20_000):
        await _push(writer, b"1000\r\n" + b"a" * 4_096 + b"\r\n")


async def _idle(_writer: asyncio.StreamWriter) -> None:
    """Say nothing."""


async def _idle_after_a_request(writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")


async def _garbage(writer: asyncio.StreamWriter) -> None:
    writer.write(random.Random(5).randbytes(100_000))
    await writer.drain()


async def _smuggled(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n"
    )


async def _deaf(writer: asyncio.StreamWriter) -> None:
    """Ask much and read nothing."""
    for _ in range(2_000):
        await _push(writer, b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(3_600)


CONNECTIONS = {
    "huge header": _huge_header,
    "many headers": _many_headers,
    "slow header": _slow_header,
    "slow body": _slow_body,
    "endless chunks": _endless_chunks,
    "idle": _idle,
    "idle after a request": _idle_after_a_request,
    "garbage": _garbage,
    "smuggled": _smuggled,
    "deaf": _deaf,
}


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        if sys.argv[1] == "chat":
            asyncio.run(chat(sys.argv[2], sys.argv[3]))
        else:
            asyncio.run(watch(sys.argv[2], int(sys.argv[3])))
