"""Sends a message to a webhook's URL: once, without redirects, and only to an address that was checked."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpcore

from guanaco.errors import InvalidInput
from guanaco_server.notifications.addresses import AddressRefused, is_public, require_allowed_url

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a host to its addresses, as text."""


@dataclass(frozen=True)
class DeliveryResult:
    """The result of one try. ``status`` is None without an answer; the developer reads ``result``."""

    status: int | None
    result: str

    @property
    def is_accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_final(self) -> bool:
        """Tell whether the receiver wants no more of the message (410 Gone)."""
        return self.status == 410


async def resolve(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class WebhookClient:
    def __init__(
        self, *, allow_private: bool, timeout_s: float, resolve: Resolve = resolve
    ) -> None:
        self._allow_private = allow_private
        self._timeout_s = timeout_s
        self._network = CheckedNetwork(resolve, allow_private)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Load the system's certificates; it takes 50 ms, so the first message to an https URL does it."""
        return ssl.create_default_context()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryResult:
        """Send once. The result tells what went wrong."""
        try:
            require_allowed_url(url, allow_private=self._allow_private)
            async with asyncio.timeout(self._timeout_s):
                status = await self._send(url, headers, body)
        except InvalidInput as error:
            return DeliveryResult(None, error.detail)
        except AddressRefused as error:
            return DeliveryResult(None, str(error))
        except (TimeoutError, httpcore.TimeoutException):
            return DeliveryResult(None, f"no answer within {self._timeout_s:g} s")
        except (socket.gaierror, UnicodeError):  # UnicodeError: a label over 63 characters
            return DeliveryResult(None, "the host has no address")
        except (httpcore.NetworkError, OSError):
            return DeliveryResult(None, "no connection, or it broke off")
        except (httpcore.ProtocolError, httpcore.UnsupportedProtocol):
            return DeliveryResult(None, "no HTTP answer")
        moved = ", and redirects are not followed" if 300 <= status < 400 else ""
        return DeliveryResult(status, f"answered {status}{moved}")

    async def _send(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        async with (
            httpcore.AsyncConnectionPool(
                ssl_context=self._tls, network_backend=self._network
            ) as pool,
            pool.stream("POST", url, headers=list(headers.items()), content=body) as response,
        ):
            status: int = response.status
            return status


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Resolves a host, checks every address, and connects to a checked one, so that a name cannot change in between."""

    def __init__(self, resolve: Resolve, allow_private: bool) -> None:
        self._resolve = resolve
        self._allow_private = allow_private
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._resolve(host, port)
        if not self._allow_private and not all(map(is_public, addresses)):
            raise AddressRefused("the host's address is not a public one")
        for address in addresses[:-1]:
            try:
                return await self._connect(address, port)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        if not addresses:
            raise AddressRefused("the host has no address")
        return await self._connect(addresses[-1], port)

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        raise AddressRefused("a webhook goes to a host")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _connect(self, address: str, port: int) -> httpcore.AsyncNetworkStream:
        return await self._inner.connect_tcp(address, port)
