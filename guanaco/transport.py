"""Sends calls over httpx, with or without asyncio, and translates httpx' errors to ours.

Decisions that both transports share are in ``Following``, ``error_of`` and ``parsed``; nothing else translates errors.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import IO, Any, Generic, TypeVar
from urllib.parse import urlsplit

import httpx

from guanaco.calls.wire import NOT_TEXT, Call, Request, StreamCall
from guanaco.errors import (
    DatabaseUnavailable,
    GuanacoError,
    InvalidInput,
    RequestInProgress,
    ServerUnreachable,
    Unavailable,
)
from guanaco.sse import SseDecoder

S = TypeVar("S")
T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
DOWNLOAD_TIMEOUT_S = 60.0  # between two pieces
RETRY_DELAYS_S = (0.2, 0.6)
GATEWAY_FAULTS = frozenset({502, 503, 504})  # a proxy in front of a platform that restarts
OTHER_HINT = "Is that the URL of a Guanaco server? `guanaco login --url` names another."
FIRST_TRIES = 3
RESUME_DELAYS_S = (0.25, 0.5, 1, 2, 4, 5, 5, 5)  # 23 s: longer than a platform takes to restart
PASSING = (ServerUnreachable, DatabaseUnavailable)  # a stream that can be resumed waits for its end
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
TRUSTS_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP: reading the certificates that a client trusts takes 20 ms, and none is asked for."""


@dataclass(frozen=True)
class Address:
    """A server and the key that opens it."""

    url: str
    key: str | None

    def options(self) -> dict[str, Any]:
        """Return the options with which httpx reaches the server. A proxy from the environment is not used for this very machine."""
        authorization = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        parts = urlsplit(self.url)
        options = {
            "base_url": self.url,
            "headers": {"User-Agent": "guanaco", **authorization},
            "trust_env": parts.hostname not in LOOPBACK,
        }
        if parts.scheme == "http":
            options["verify"] = TRUSTS_NOBODY
        return options


class SyncTransport:
    def __init__(self, address: Address, transport: httpx.BaseTransport | None = None) -> None:
        self.address, self.url = address, address.url
        with translated(self.url):
            self._http = httpx.Client(**address.options(), transport=transport)

    def close(self) -> None:
        self._http.close()

    def run(self, call: Call[T]) -> T:
        """Return the call's answer; repeatable calls survive two broken connections."""
        for delay_s in _delays(call):
            try:
                return self._run_once(call)
            except (ServerUnreachable, RequestInProgress):
                time.sleep(delay_s)
        return self._run_once(call)

    def stream(self, call: StreamCall[T]) -> Generator[T, None, None]:
        """Yield the stream's items; a resumable stream survives broken connections, and a database that is away."""
        following = Following(call, self.url)
        while True:
            try:
                yield from self._connection(following)
                following.check_end()
                return
            except GuanacoError as error:
                time.sleep(following.pause_s(error))

    def download(self, request: Request, file: IO[bytes]) -> Mapping[str, str]:
        """Write the answer's body as it comes; gives its headers."""
        with (
            translated(self.url),
            self._http.stream(**_arguments(request, DOWNLOAD_TIMEOUT_S)) as response,
        ):
            if not response.is_success:
                response.read()
                raise error_of(response, self.url)
            for chunk in response.iter_bytes():
                file.write(chunk)
            return response.headers

    def _run_once(self, call: Call[T]) -> T:
        with translated(self.url):
            response = self._http.request(**_arguments(call, call.timeout_s))
        if not response.is_success:
            raise error_of(response, self.url)
        return parsed(call.parse, response.content, self.url)

    def _connection(self, following: Following[T]) -> Generator[T, None, None]:
        call = following.request()
        with (
            translated(self.url),
            self._http.stream(**_arguments(call, call.timeout_s)) as response,
        ):
            if not response.is_success:
                response.read()
                raise error_of(response, self.url)
            for chunk in response.iter_bytes():
                yield from following.take(chunk)


class AsyncTransport:
    def __init__(self, address: Address, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.address, self.url = address, address.url
        with translated(self.url):
            self._http = httpx.AsyncClient(**address.options(), transport=transport)

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, call: Call[T]) -> T:
        """Return the call's answer; repeatable calls survive two broken connections."""
        for delay_s in _delays(call):
            try:
                return await self._run_once(call)
            except (ServerUnreachable, RequestInProgress):
                await asyncio.sleep(delay_s)
        return await self._run_once(call)

    async def stream(self, call: StreamCall[T]) -> AsyncGenerator[T, None]:
        """Yield the stream's items; a resumable stream survives broken connections, and a database that is away."""
        following = Following(call, self.url)
        while True:
            try:
                async with aclosing(self._connection(following)) as items:
                    async for item in items:
                        yield item
                following.check_end()
                return
            except GuanacoError as error:
                await asyncio.sleep(following.pause_s(error))

    async def download(self, request: Request, file: IO[bytes]) -> Mapping[str, str]:
        """Write the answer's body as it comes; gives its headers."""
        with translated(self.url):
            async with self._http.stream(**_arguments(request, DOWNLOAD_TIMEOUT_S)) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response, self.url)
                async for chunk in response.aiter_bytes():
                    file.write(chunk)
                return response.headers

    async def _run_once(self, call: Call[T]) -> T:
        with translated(self.url):
            response = await self._http.request(**_arguments(call, call.timeout_s))
        if not response.is_success:
            raise error_of(response, self.url)
        return parsed(call.parse, response.content, self.url)

    async def _connection(self, following: Following[T]) -> AsyncGenerator[T, None]:
        call = following.request()
        with translated(self.url):
            async with self._http.stream(**_arguments(call, call.timeout_s)) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response, self.url)
                async for chunk in response.aiter_bytes():
                    for item in following.take(chunk):
                        yield item


def _delays(call: Call[T]) -> tuple[float, ...]:
    return RETRY_DELAYS_S if call.is_repeatable else ()


def _arguments(request: Request, timeout_s: float) -> Mapping[str, Any]:
    for name, value in request.headers.items():
        if not (value.isascii() and value.isprintable()):
            raise InvalidInput(f"{name} can only have ASCII letters, digits and signs.")
    return {
        "method": request.method,
        "url": request.path,
        "params": request.params,
        "json": request.json,
        "content": request.content,
        "headers": request.headers,
        "timeout": httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
    }


class Following(Generic[T]):
    def __init__(self, call: StreamCall[T], url: str) -> None:
        self._call = call
        self._url = url
        self._decoder = SseDecoder()
        self._has_begun = False
        self._failures = 0
        self._last_event = ""

    def request(self) -> StreamCall[T]:
        """Return the request for all that has not come yet."""
        self._decoder.reset()
        if self._decoder.last_id is None:
            return self._call
        headers = {**self._call.headers, "Last-Event-ID": self._decoder.last_id}
        return replace(self._call, headers=headers)

    def take(self, chunk: bytes) -> list[T]:
        """The items that this chunk completes."""
        self._has_begun = True
        items: list[T] = []
        for event in self._decoder.feed(chunk):
            self._failures = 0
            self._last_event = event.event
            item = parsed(self._call.parse, event, self._url)
            if item is not None:
                items.append(item)
        return items

    def check_end(self) -> None:
        """The stream has ended in good order: was it complete?"""
        wanted = self._call.must_end_with
        if wanted is not None and self._last_event != wanted:
            raise self._cut_off()

    def pause_s(self, error: GuanacoError) -> float:
        """Return how long to wait before connecting again; raise the error if a retry cannot help."""
        if not isinstance(error, PASSING):
            raise error
        if not self._call.is_resumable:
            raise self._cut_off() if self._has_begun else error
        tries = len(RESUME_DELAYS_S) if self._has_begun else FIRST_TRIES - 1
        if self._failures >= tries:
            raise error
        self._failures += 1
        return RESUME_DELAYS_S[self._failures - 1]

    def _cut_off(self) -> Unavailable:
        return Unavailable(
            f"The connection to {self._url} broke before the reply was complete.",
            hint="Read the conversation again, or regenerate the reply.",
        )


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Turn whatever keeps a request from being answered within the block into ServerUnreachable; InvalidInput for what cannot be sent."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise InvalidInput(
            f"{url} is not a URL.", hint="It begins with http:// or https://."
        ) from None
    except UnicodeEncodeError:
        raise InvalidInput(NOT_TEXT) from None
    except (httpx.RequestError, httpx.StreamError) as error:
        raise ServerUnreachable(url) from error


def error_of(response: httpx.Response, url: str) -> GuanacoError:
    """Return the error that an answer other than 2xx stands for. Its body has been read."""
    body = _json_object(response.content)
    if isinstance(body.get("error"), str) and isinstance(body.get("detail"), str):
        return GuanacoError.from_wire(body)
    if response.status_code in GATEWAY_FAULTS:
        return ServerUnreachable(url)
    return GuanacoError(
        f"{url} answered {response.status_code} {response.reason_phrase}, but not as Guanaco does.",
        hint=OTHER_HINT,
    )


def parsed(parse: Callable[[S], T], answer: S, url: str) -> T:
    """Parse the answer; a GuanacoError when it is none that this version knows."""
    try:
        return parse(answer)
    except ValueError as error:  # pydantic's ValidationError is one
        raise GuanacoError(
            f"{url} answered something that this version of guanaco does not understand.",
            hint=f"{OTHER_HINT} Or upgrade: pip install --upgrade guanaco-platform.",
        ) from error


def _json_object(content: bytes) -> dict[str, object]:
    try:
        body = json.loads(content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
