"""Chooses the replica that answers: the one that has the conversation's prefix in its cache, unless it is busy or ill.

Order is by rendezvous hashing of the conversation. A replica takes part while

    its load is bounded     sequences in flight < 1.25 times its fair share, or eight, which a model server answers as
                            quickly as one: the overflow goes to the next in order
                            (V. Mirrokni et al., "Consistent hashing with bounded loads", SODA 2018)
                            Where half of the measured capacity is wanted, also not more than its part of the places that
                            this process holds (chat/gateway/places/places.py): several gateways do not fill the same one.
    it has room             in flight < ``max_streams``, and the head of its queue has not waited for ``longest_queue_s``;
                            with no room anywhere the answer is Overloaded, at once
    it is well              three faults without a whole reply between them eject it, and so does a time to first token
                            of three times its peers' (after ten replies, and never the last one): for 1 s, doubling
                            up to 30 s until it has given ten whole replies

A conversation whose prompt begins with a persona of some length goes where that persona is cached already (prefixes.py),
within the same bounds.

After an ejection one reply at a time is tried: whole, it lets the others in again; failed, the next ejection begins.
The counts are this process's own: several gateways share nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from statistics import median
from typing import NamedTuple, Self

from guanaco.errors import Overloaded
from guanaco_server.routing.prefixes import SharedPrefix, SharedPrefixes

LOAD_FACTOR = 1.25
FREE_LOAD = 8
FAULTS_TO_EJECT = 3
SLOW_FACTOR = 3.0
SLOW_S = 0.5  # quicker than that is never too slow
SAMPLES = 10  # replies before a replica's speed, or its recovery, is believed
SMOOTHING = 0.2
EJECTION_S = 1.0
LONGEST_EJECTION_S = 30.0
MOST_EJECTIONS = 8  # that count for the duration
CACHE_TOKENS = 131_072.0  # of a replica's KV cache, until its replies tell
FORGOTTEN_AFTER = 4_096  # endpoints of servers long gone


class Replica:
    """One model server, as far as this process knows it. Times are of the chooser's clock, in seconds."""

    __slots__ = (
        "answered_at", "cache_tokens", "computed_tokens", "ejected_until", "ejections", "endpoint", "faults", "first_tokens", "in_flight",
        "is_on_trial", "probe", "served_up_to", "ttft_s", "waiting", "whole_replies",
    )  # fmt: skip

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.in_flight = 0
        self.computed_tokens = 0  # of prompts and replies, as far as this process knows
        self.cache_tokens = CACHE_TOKENS
        self.waiting: dict[Ask, None] = {}  # for first tokens, in the order in which they came
        self.served_up_to = self.answered_at = float("-inf")
        self.ttft_s = 0.0
        self.first_tokens = self.whole_replies = 0  # since the last ejection
        self.faults = 0  # since the last whole reply
        self.ejections = 0
        self.ejected_until = float("-inf")
        self.is_on_trial = False
        self.probe: Ask | None = None

    def is_well(self, now: float) -> bool:
        return self.ejected_until <= now and not (self.is_on_trial and self.probe is not None)

    def queued_s(self, now: float) -> float:
        """Return for how long the head of its queue has waited: whoever comes now waits at least as long. One that was overtaken is no head."""
        for ask in self.waiting:
            if ask.at > self.served_up_to:
                return now - ask.at
        return 0.0

    def eject(self, now: float) -> None:
        duration_s = min(LONGEST_EJECTION_S, EJECTION_S * 2**self.ejections)
        self.ejections = min(self.ejections + 1, MOST_EJECTIONS)
        self.ejected_until = now + duration_s
        self.is_on_trial = True
        self.faults = self.first_tokens = self.whole_replies = 0


class ReplicaChooser:
    """``longest_queue_s``: whoever would wait longer for a first token is told so instead."""

    def __init__(
        self,
        max_streams: int,
        longest_queue_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.now = clock
        self._max_streams = max_streams
        self._longest_queue_s = longest_queue_s
        self._replicas: dict[str, Replica] = {}
        self._prefixes = SharedPrefixes(clock, rendezvous)

    def choose(
        self,
        key: str,
        endpoints: Sequence[str],
        tried: Collection[str] = (),
        places: int | None = None,
        prefix: SharedPrefix | None = None,
    ) -> str | None:
        """Return the replica for this conversation that was not tried yet; None when all were. Overloaded when none has room. ``places`` are those that this process holds at all of them, where that matters; ``prefix`` is what its prompts begin with."""
        if prefix is not None and not tried and (home := self._home(key, endpoints, places)):
            return home
        order = endpoints if len(endpoints) == 1 else rendezvous(key, endpoints)
        left = [self.of(endpoint) for endpoint in order if endpoint not in tried]
        if not left:
            return None
        now = self.now()
        roomy = [replica for replica in left if self._has_room(replica, now)]
        if not roomy:
            raise Overloaded
        well = [replica for replica in roomy if replica.is_well(now)]
        if not well:  # all are ill: the one that will be well first
            return min(roomy, key=lambda replica: replica.ejected_until).endpoint
        bound = self._bound(endpoints, places)
        open_ = [replica for replica in well if replica.in_flight < bound]
        if not open_:
            return well[0].endpoint
        if prefix is None or len(open_) == 1:
            return open_[0].endpoint
        return self._prefixes.choose(key, prefix, endpoints, open_).endpoint

    def ask(
        self,
        endpoint: str,
        endpoints: Sequence[str],
        candidates: int = 1,
        *,
        key: str = "",
        prefix: SharedPrefix | None = None,
    ) -> Ask:
        """Begin an ask of that replica, whose peers are among ``endpoints``. The best of several candidates comes whole, which says nothing about the queue. ``key`` and ``prefix`` are those with which it was chosen."""
        replica = self.of(endpoint)
        noted = None
        if prefix is not None and len(endpoints) > 1:
            noted = prefix, self._prefixes.begin(key, prefix, replica)
        return Ask(self, replica, endpoints, candidates, noted)

    def note_end(
        self, replica: Replica, noted: ConversationOutcome | None, used: ReplyUsage
    ) -> None:
        """Note what a reply took of the replica."""
        replica.computed_tokens += used.prompt_tokens - used.cached_tokens + used.completion_tokens
        if noted is not None:
            prefix, since = noted
            self._prefixes.end(prefix, replica, since, used.prompt_tokens, used.cached_tokens)

    def in_flight(self) -> dict[str, int]:
        """Return the sequences under way, by endpoint."""
        return {name: replica.in_flight for name, replica in self._replicas.items()}

    def of(self, endpoint: str) -> Replica:
        replica = self._replicas.get(endpoint)
        if replica is None:
            if len(self._replicas) >= FORGOTTEN_AFTER:
                self._replicas = {
                    name: known for name, known in self._replicas.items() if known.in_flight
                }
            replica = self._replicas[endpoint] = Replica(endpoint)
        return replica

    def _home(self, key: str, endpoints: Sequence[str], places: int | None) -> str | None:
        """Return where the conversation is, unless that replica is full, ill or over its bound."""
        home = self._prefixes.home(key, endpoints, self.of)
        if home is None or home.in_flight >= self._bound(endpoints, places):
            return None
        now = self.now()
        return home.endpoint if self._has_room(home, now) and home.is_well(now) else None

    def _bound(self, endpoints: Sequence[str], places: int | None) -> int:
        """Return the requests under way from which on a replica takes part only if all have as many."""
        total = sum([self.of(endpoint).in_flight for endpoint in endpoints])
        bound = max(FREE_LOAD, math.ceil(LOAD_FACTOR * (total + 1) / len(endpoints)))
        return bound if places is None else min(bound, math.ceil(places / len(endpoints)))

    def _has_room(self, replica: Replica, now: float) -> bool:
        return (
            replica.in_flight < self._max_streams and replica.queued_s(now) < self._longest_queue_s
        )


class ReplyUsage(NamedTuple):
    """The tokens of a reply, as the model server counted them; 0 where it did not end."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


NOTHING = ReplyUsage()
ConversationOutcome = tuple[
    SharedPrefix, int | None
]  # what the beginning of an ask noted, for its end


class Ask:
    """One reply, asked of one replica from the block's beginning to its end; whoever asks says how it goes."""

    __slots__ = ("_candidates", "_chooser", "_endpoints", "_noted", "_replica", "_used", "at")

    def __init__(
        self,
        chooser: ReplicaChooser,
        replica: Replica,
        endpoints: Sequence[str],
        candidates: int,
        noted: ConversationOutcome | None = None,
    ) -> None:
        self._noted = noted
        self._used = NOTHING
        self._candidates = candidates
        self._chooser = chooser
        self._replica = replica
        self._endpoints = endpoints
        self.at = chooser.now()

    def __enter__(self) -> Self:
        replica = self._replica
        replica.in_flight += self._candidates
        if self._candidates == 1:
            replica.waiting[self] = None
        if replica.is_on_trial and replica.probe is None and replica.ejected_until <= self.at:
            replica.probe = self
        return self

    def __exit__(self, *_: object) -> None:
        replica = self._replica
        replica.in_flight -= self._candidates
        replica.waiting.pop(self, None)
        if replica.probe is self:
            replica.probe = None
        self._chooser.note_end(replica, self._noted, self._used)

    @property
    def is_answering(self) -> bool:
        """Return whether the replica has answered anybody since: then it is busy, and not ill."""
        return self._replica.answered_at > self.at

    def note_first_token(self) -> None:
        """Among several, a replica that is slow is ejected."""
        replica, now = self._replica, self._chooser.now()
        ttft_s = now - self.at
        replica.waiting.pop(self, None)
        replica.served_up_to = max(replica.served_up_to, self.at)
        replica.answered_at = now
        replica.first_tokens += 1
        replica.ttft_s += (ttft_s - replica.ttft_s) * (
            SMOOTHING if replica.first_tokens > 1 else 1.0
        )
        if ttft_s <= SLOW_S or len(self._endpoints) < 2 or replica.ejected_until > now:
            return
        is_known = replica.first_tokens >= SAMPLES or replica.probe is self
        if is_known and self._is_slow(ttft_s if replica.probe is self else replica.ttft_s, now):
            replica.eject(now)

    def note_tokens(self, prompt: int, cached: int, completion: int) -> None:
        """The model server has counted the reply's tokens."""
        self._used = ReplyUsage(prompt, min(cached, prompt), completion)

    def note_end(self) -> None:
        """The reply is whole: faults are forgiven, and ejections after ten of them."""
        replica = self._replica
        replica.faults = 0
        replica.whole_replies += 1
        if replica.probe is self and replica.ejected_until <= self._chooser.now():
            replica.is_on_trial = False
        if replica.whole_replies >= SAMPLES:
            replica.ejections = 0

    def note_fault(self) -> None:
        """Count a fault; those of replies that were under way when it was ejected are the same one again."""
        replica, now = self._replica, self._chooser.now()
        if replica.ejected_until > now:
            return
        replica.faults += 1
        if replica.faults >= FAULTS_TO_EJECT or replica.probe is self:
            replica.eject(now)

    def _is_slow(self, ttft_s: float, now: float) -> bool:
        """Against its peers, of whom one must be well."""
        peers = [
            self._chooser.of(endpoint)
            for endpoint in self._endpoints
            if endpoint != self._replica.endpoint
        ]
        known = [peer.ttft_s for peer in peers if peer.first_tokens >= SAMPLES]
        is_slow = bool(known) and ttft_s > max(SLOW_S, SLOW_FACTOR * median(known))
        return is_slow and any(peer.is_well(now) for peer in peers)


def rendezvous(key: str, endpoints: Sequence[str]) -> list[str]:
    """Return the endpoints, best first for this key, of which every character counts."""
    if len(endpoints) < 2:
        return list(endpoints)
    keyed = blake2b(key.encode(), digest_size=8)

    def weight(endpoint: str) -> bytes:
        hashed = keyed.copy()  # so that the key is read once
        hashed.update(endpoint.encode())
        return hashed.digest()

    return sorted(endpoints, key=weight, reverse=True)
