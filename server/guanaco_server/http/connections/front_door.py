"""Limits of the front door: how many connections there may be, in all and from one address, and for how long each may be idle.

Every listening process has one `FrontDoor`. Each connection (protocol.py) enters it and leaves it; a sweep once a second
ends those whose deadline is over. A sweep looks at every connection, which takes 1 ms for 20,000 and costs a request only
the setting of one number.
"""

from __future__ import annotations

import asyncio
import functools
import resource
from collections import Counter, OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.types import ASGIApp, Receive, Scope, Send

from guanaco.errors import TooManyConnections
from guanaco_server.http.connections.waiting import Connection, Holder, WaitingConnections
from guanaco_server.http.errors import ErrorForms
from guanaco_server.observability.metrics import Metrics
from guanaco_server.settings import Settings

SWEEP_S = 1.0
WIRE_FACTOR = 8  # of a body on the wire; a message may come in small chunks
UPLOAD_FACTOR = 2
RESERVED_FILES = 512  # for the database, the store, model servers' health, jobs, logs
FILES_A_STREAM = 2  # the client's socket, and the one to its model server
MOST_CONNECTIONS = 16_384  # an idle one takes 10 KB, one with an open stream 20 KB
MIN_CONNECTIONS = 64
SHARE_OF_AN_ADDRESS = 4  # a quarter of them
KNOWN_ADDRESSES = 4_096
LONGEST_ADDRESS = 64
RENEWAL_S = 4.0  # in which an address may open as many connections as it may have
LEAST_BURST = 256  # connections that an address may open at once
NETWORK_BITS = 64  # one customer of a provider has all addresses of an IPv6 network of this length


@dataclass(frozen=True)
class DoorLimits:
    """``header_s`` and ``body_s`` are the longest that each may take to arrive, ``idle_s`` the longest between two requests.

    ``write_s`` is how long a client may leave an answer unread before its connection is closed, and ``linger_s`` how long a
    connection that is being closed may take to send what is left.
    """

    connections: int = 1_024
    per_address: int = 256
    header_bytes: int = 65_536
    body_bytes: int = 262_144
    upload_bytes: int = 0  # of a body on a path that takes uploads
    held_bytes: int = 134_217_728  # of all requests that are still arriving
    header_s: float = 20.0
    body_s: float = 30.0
    idle_s: float = 75.0  # longer than nginx keeps its connections to us (60 s), so that it never uses a closed one
    write_s: float = 150.0
    linger_s: float = 2.0

    @property
    def wire_bytes(self) -> int:
        """The most that a body may take on the wire, with what is between its chunks."""
        return max(WIRE_FACTOR * self.body_bytes, UPLOAD_FACTOR * self.upload_bytes)

    @classmethod
    def of(cls, settings: Settings, body_bytes: int) -> DoorLimits:
        """Return what the settings say, or else what the limit of open files allows."""
        connections = settings.max_connections or _connections_for(open_files())
        share = max(MIN_CONNECTIONS // 2, connections // SHARE_OF_AN_ADDRESS)
        return cls(
            connections=connections,
            per_address=settings.max_connections_per_address or share,
            body_bytes=body_bytes,
            upload_bytes=settings.character_max_bytes,
            write_s=settings.reply_timeout_s + 30,  # the gateway ends a reply that nobody reads
        )


def open_files() -> int:
    """Return the limit of this process's open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def _connections_for(files: int) -> int:
    reserved = min(RESERVED_FILES, files // 2)
    return max(MIN_CONNECTIONS, min((files - reserved) // FILES_A_STREAM, MOST_CONNECTIONS))


class TrustedAddresses:
    """The addresses of the proxies in front."""

    def __init__(self, networks: tuple[str, ...]) -> None:
        self._networks = [ip_network(network) for network in networks]
        self._is_within = functools.lru_cache(KNOWN_ADDRESSES)(self._look_up)

    def __contains__(self, address: str) -> bool:
        return self._is_within(address[:LONGEST_ADDRESS])

    def _look_up(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._networks)


class AddressCount:
    """Counts what each address has at once. Addresses of trusted proxies have no limit."""

    def __init__(self, limit: int, trusted_proxies: tuple[str, ...]) -> None:
        self._limit = limit
        self._trusted = TrustedAddresses(trusted_proxies)
        self._counts: Counter[str] = Counter()

    def enter(self, address: str | None) -> str | None:
        """Count one more of the address; the name to `leave` with. OverLimit where it has all that it may have."""
        network = self.network_of(address)
        if network is None:
            return None
        if self.is_full(network):
            raise OverLimit(network)
        self._counts[network] += 1
        return network

    def network_of(self, address: str | None) -> str | None:
        """Return the name by which the address is counted; None for a trusted proxy, which has no limit."""
        if address is None or address in self._trusted:
            return None
        return network_of(address)

    def is_full(self, network: str) -> bool:
        return self._counts.get(network, 0) >= self._limit

    def leave(self, network: str | None) -> None:
        if network is None:
            return
        self._counts[network] -= 1
        if self._counts[network] <= 0:
            del self._counts[network]

    def is_proxy(self, address: str | None) -> bool:
        return address is not None and address in self._trusted

    def client_of(self, forwarded_for: str) -> str:
        """Return the client that X-Forwarded-For of a trusted proxy names: the last address that is no trusted proxy's."""
        hops = [host_of(hop) for hop in forwarded_for.split(",")]
        return next((hop for hop in reversed(hops) if hop not in self._trusted), hops[0])


class OverLimit(Exception):
    """There is no room for one more of this address."""

    def __init__(self, network: str) -> None:
        super().__init__(network)
        self.network = network


def network_of(address: str) -> str:
    """Return what is counted as one address: an IPv4 address, or the /64 network of an IPv6 one."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Address(int(found) >> NETWORK_BITS << NETWORK_BITS))


class ProxiedRequests:
    """Limits the requests at once of each client that comes through a trusted proxy."""

    def __init__(self, addresses: AddressCount, forms: ErrorForms) -> None:
        self._addresses = addresses
        self._forms = forms

    def client_of(self, scope: Scope) -> str | None:
        """Return the client for which a trusted proxy has passed this request on; None if it came without one."""
        client = scope.get("client")
        if client is None or not self._addresses.is_proxy(client[0]):
            return None
        lines = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        return self._addresses.client_of(b", ".join(lines).decode("latin-1")) if lines else None

    async def answer(
        self, client: str, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            network = self._addresses.enter(client)
        except OverLimit:
            refusal = self._forms.of(scope["path"]).answer(TooManyConnections())
            await refusal(scope, receive, send)
            return
        try:
            await app(scope, receive, send)
        finally:
            self._addresses.leave(network)


def host_of(hop: str) -> str:
    """Return the address in one entry of X-Forwarded-For, which may have a port: 192.0.2.1:80 or [2001:db8::1]:80."""
    hop = hop.strip()
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


class ConnectionRate:
    """Limits how fast each address opens connections: a token bucket for each of those that were here last."""

    def __init__(self, burst: int) -> None:
        self._burst = float(max(LEAST_BURST, burst))
        self._a_second = self._burst / RENEWAL_S
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()  # left, and when

    def take(self, network: str, now: float) -> bool:
        """Count one more connection. Return whether the address may open it."""
        left, then = self._tokens.pop(network, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._a_second)
        is_allowed = left >= 1
        self._tokens[network] = (left - is_allowed, now)
        if len(self._tokens) > KNOWN_ADDRESSES:
            self._tokens.popitem(last=False)
        return is_allowed


class FrontDoor:
    """Lets connections in and ends those that take too long."""

    def __init__(
        self,
        limits: DoorLimits,
        trusted_proxies: tuple[str, ...],
        metrics: Metrics,
    ) -> None:
        self.limits = limits
        self._addresses = AddressCount(limits.per_address, trusted_proxies)
        self._rate = ConnectionRate(limits.per_address)
        self._metrics = metrics
        self._inside: dict[Connection, Holder] = {}
        self._waiting = WaitingConnections()
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def admit(self, address: str | None) -> bool:
        """Tell whether this address may open a connection now, before anything is made for it. Waiting ones make room.

        The cost does not grow with the number of connections.
        """
        network = self._addresses.network_of(address)
        now = asyncio.get_running_loop().time()
        if network is not None and not self._rate.take(network, now):
            self.note("rate")
            return False
        return self._has_room(network)

    def enter(self, connection: Connection, address: str | None) -> bool:
        """Tell whether the connection may stay. It is idle at first."""
        if not self._has_room(self._addresses.network_of(address)):
            return False
        holder = self._waiting.enter(self._addresses.enter(address))
        self._inside[connection] = holder
        self._waiting.note_idle(holder, connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        return True

    def leave(self, connection: Connection) -> None:
        """Also for one that was not let in."""
        if (holder := self._inside.pop(connection, None)) is not None:
            self._addresses.leave(holder.network)
            self._waiting.leave(holder, connection)

    def note_idle(self, connection: Connection) -> None:
        """Note that its answer is sent: from now on it may be closed to make room."""
        if (holder := self._inside.get(connection)) is not None:
            self._waiting.note_idle(holder, connection)

    def note_begun(self, connection: Connection) -> None:
        """Note that a header has begun to come, and is not complete."""
        if (holder := self._inside.get(connection)) is not None:
            self._waiting.note_begun(holder, connection)

    def note_busy(self, connection: Connection) -> None:
        """Note that its header is complete: it is closed for no other one."""
        if (holder := self._inside.get(connection)) is not None:
            self._waiting.note_busy(holder, connection)

    def hold(self, size: int) -> bool:
        """Count bytes of a request that is still arriving. Return whether there is room for them; they must be released in either case."""
        self._held_bytes += size
        return self._held_bytes <= self.limits.held_bytes

    def release(self, size: int) -> None:
        self._held_bytes -= size

    def note(self, reason: str) -> None:
        """Count a connection that was refused or ended for this reason."""
        self._metrics.note_connection_ended(reason)

    def _has_room(self, network: str | None) -> bool:
        """Tell whether there is a place, in total and for this address. A waiting connection is closed where there is none."""
        if len(self._inside) >= self.limits.connections and not self._end(self._waiting.choose()):
            self.note("full")
            return False
        if network is None or not self._addresses.is_full(network):
            return True
        if self._end(self._waiting.choose_of(network)):
            return True
        self.note("address")
        return False

    def _end(self, chosen: tuple[Holder, Connection] | None) -> bool:
        if chosen is None:
            return False
        holder, connection = chosen
        self.note("idle" if connection in holder.idle else "header")
        self.leave(connection)
        connection.hang_up()
        return True

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = [one for one in self._inside if one.deadline < now]
        for connection in late:
            connection.time_out()
        self._metrics.note_connections(len(self._inside))
        self._timer = loop.call_later(SWEEP_S, self._sweep) if self._inside else None
