"""Which replica answers: the one that has the conversation's prefix in its cache, unless it is busy or ill.

Order is by rendezvous hashing of the conversation. A replica takes part while

    its load is bounded     in flight < 1.25 times its fair share, or eight, which a model server answers as
                            quickly as one: the overflow goes to the next in order
                            (V. Mirrokni et al., "Consistent hashing with bounded loads", SODA 2018)
    it has room             in flight < ``max_streams``; with no room anywhere the answer is Overloaded, at once
    it is well              three faults in a row eject it, and so does a time to first token of three times
                            its peers' (after ten replies, and never the last one): for 1 s, doubling up to 30 s

The counts are this process's own: several gateways share nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from guanaco.errors import Overloaded
from guanaco_server.routing.rendezvous import rendezvous

LOAD_FACTOR = 1.25
FREE_LOAD = 8
FAULTS_TO_EJECT = 3
SLOW_FACTOR = 3.0
SLOW_S = 0.5  # quicker than that is never too slow
SLOW_SAMPLES = 10
SMOOTHING = 0.2
EJECTION_S = 1.0
LONGEST_EJECTION_S = 30.0
FORGOTTEN_AFTER = 4_096  # endpoints of servers long gone


@dataclass(slots=True)
class Replica:
    """What this process knows of one model server. Times are of the monotonic clock, in seconds."""

    endpoint: str
    in_flight: int = 0
    faults: int = 0
    ejections: int = 0
    ejected_until: float = 0.0
    ttft_s: float = 0.0
    replies: int = 0


class ReplicaChooser:
    def __init__(self, max_streams: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_streams = max_streams
        self._clock = clock
        self._replicas: dict[str, Replica] = {}

    def choose(self, key: str, endpoints: Sequence[str], tried: Collection[str] = ()) -> str | None:
        """The replica for this conversation that was not tried yet; None when all were. Overloaded when none has room."""
        order = endpoints if len(endpoints) == 1 else rendezvous(key, endpoints)
        left = [self._of(endpoint) for endpoint in order if endpoint not in tried]
        if not left:
            return None
        roomy = [replica for replica in left if replica.in_flight < self._max_streams]
        if not roomy:
            raise Overloaded
        now = self._clock()
        well = [replica for replica in roomy if replica.ejected_until <= now]
        if not well:  # all are ill: the one that will be well first
            return min(roomy, key=lambda replica: replica.ejected_until).endpoint
        total = sum(self._of(endpoint).in_flight for endpoint in endpoints)
        bound = max(FREE_LOAD, math.ceil(LOAD_FACTOR * (total + 1) / len(endpoints)))
        for replica in well:
            if replica.in_flight < bound:
                return replica.endpoint
        return well[0].endpoint

    @contextmanager
    def use(self, endpoint: str) -> Iterator[Replica]:
        """Count a reply in flight."""
        replica = self._of(endpoint)
        replica.in_flight += 1
        try:
            yield replica
        finally:
            replica.in_flight -= 1

    def note_first_token(self, replica: Replica, ttft_s: float, endpoints: Sequence[str]) -> None:
        """It answers: its faults are forgiven. Among several, one that is slow is ejected."""
        replica.faults = 0
        replica.replies += 1
        replica.ttft_s += (ttft_s - replica.ttft_s) * (SMOOTHING if replica.replies > 1 else 1.0)
        if ttft_s <= SLOW_S or len(endpoints) < 2 or replica.replies < SLOW_SAMPLES:
            replica.ejections = 0 if replica.ejected_until <= self._clock() else replica.ejections
            return
        peers = [self._of(endpoint) for endpoint in endpoints if endpoint != replica.endpoint]
        known = [peer.ttft_s for peer in peers if peer.replies >= SLOW_SAMPLES]
        is_slow = known and replica.ttft_s > max(SLOW_S, SLOW_FACTOR * median(known))
        if is_slow and any(peer.ejected_until <= self._clock() for peer in peers):
            self._eject(replica)

    def note_fault(self, replica: Replica) -> None:
        replica.faults += 1
        if replica.faults >= FAULTS_TO_EJECT:
            self._eject(replica)

    def in_flight(self) -> dict[str, int]:
        """By endpoint."""
        return {name: replica.in_flight for name, replica in self._replicas.items()}

    def _eject(self, replica: Replica) -> None:
        duration_s = min(LONGEST_EJECTION_S, EJECTION_S * 2**replica.ejections)
        replica.ejections = min(replica.ejections + 1, 8)
        replica.faults = replica.replies = 0
        replica.ejected_until = self._clock() + duration_s

    def _of(self, endpoint: str) -> Replica:
        replica = self._replicas.get(endpoint)
        if replica is None:
            if len(self._replicas) >= FORGOTTEN_AFTER:
                self._replicas = {
                    name: known for name, known in self._replicas.items() if known.in_flight
                }
            replica = self._replicas[endpoint] = Replica(endpoint)
        return replica
