"""Sends calls over httpx, with or without asyncio. What is decided is in ``following`` and ``translation``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import httpx

from guanaco.errors import GuanacoError, ServerUnreachable
from guanaco.following import Following
from guanaco.translation import error_of, parsed, translated
from guanaco.wire import Call, Request, StreamCall

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
DOWNLOAD_TIMEOUT_S = 60.0  # between two pieces
RETRY_DELAYS_S = (0.2, 0.6)
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Address:
    """A server and the key that opens it."""

    url: str
    key: str | None

    def options(self) -> dict[str, Any]:
        """How httpx reaches it. A proxy from the environment has no business with this very machine."""
        authorization = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return {
            "base_url": self.url,
            "headers": {"User-Agent": "guanaco", **authorization},
            "trust_env": urlsplit(self.url).hostname not in LOOPBACK,
        }


class SyncTransport:
    def __init__(self, address: Address, transport: httpx.BaseTransport | None = None) -> None:
        self.address, self.url = address, address.url
        with translated(self.url):
            self._http = httpx.Client(**address.options(), transport=transport)

    def close(self) -> None:
        self._http.close()

    def run(self, call: Call[T]) -> T:
        """The call's answer; repeatable calls survive two broken connections."""
        for delay_s in _delays(call):
            try:
                return self._run_once(call)
            except ServerUnreachable:
                time.sleep(delay_s)
        return self._run_once(call)

    def stream(self, call: StreamCall[T]) -> Generator[T, None, None]:
        """The stream's items; a resumable stream survives broken connections."""
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
        """The call's answer; repeatable calls survive two broken connections."""
        for delay_s in _delays(call):
            try:
                return await self._run_once(call)
            except ServerUnreachable:
                await asyncio.sleep(delay_s)
        return await self._run_once(call)

    async def stream(self, call: StreamCall[T]) -> AsyncGenerator[T, None]:
        """The stream's items; a resumable stream survives broken connections."""
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
    return {
        "method": request.method,
        "url": request.path,
        "params": request.params,
        "json": request.json,
        "headers": request.headers,
        "timeout": httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
    }
