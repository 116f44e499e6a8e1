"""So many attempts in so much time, counted in memory: a process that starts again forgets them."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Network, ip_address

from guanaco.errors import TooManyAttempts

MOST_NAMES = 10_000  # addresses remembered at once: a flood of new ones pushes out the oldest


HOME_BITS = 64  # of an IPv6 address: the rest one customer chooses freely


def network_of(address: str) -> str:
    """Return the part of an address that one customer of a provider has: an IPv4 address, or an IPv6 network."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return address
    return str(found.ipv4_mapped or IPv6Network((int(found), HOME_BITS), strict=False))


class Throttle:
    def __init__(
        self, attempts: int, within_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._attempts = attempts
        self._within_s = within_s
        self._now = now
        self._seen: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, name: str) -> None:
        """Count one attempt."""
        times = self._seen.setdefault(name, deque(maxlen=self._attempts))
        times.append(self._now())
        self._seen.move_to_end(name)
        if len(self._seen) > MOST_NAMES:
            self._seen.popitem(last=False)

    def require_room(self, name: str) -> None:
        """TooManyAttempts once all that are allowed were made within the time."""
        times = self._seen.get(name)
        if times is None or len(times) < self._attempts:
            return
        wait_s = times[0] + self._within_s - self._now()
        if wait_s > 0:
            raise TooManyAttempts(wait_s)
