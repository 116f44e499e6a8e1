"""Chooses the replica for a conversation whose prompt begins like those of others: with the persona of one character.

A replica that computed a persona has it in its KV cache, and answers the character's next conversation sooner. Each replica scores

    hit - β·load      hit   the tokens of the shared prefix, where the replica probably holds it
                      load  its requests under way
                      β     LOAD_TOKENS: the tokens that one request under way is worth

    known here        the conversation stays where its last turn was, until that replica is gone, over its load bound,
                      or has computed so much since that the conversation is evicted
    not known here    of the holders whose score no other replica beats, the conversation's own by rendezvous hashing
    no such holder    the next replica in the character's order, by rendezvous hashing, becomes a holder too

The first in the character's order always counts as a holder: other gateway processes have the same order, so they meet
there. A further holder is forgotten when the character's load has needed none for KEPT_S, or its copy is evicted.

The content of a replica's cache is estimated from the replies: each tells how many tokens were computed and how many were cached.
A persona that is found, or not found, after a number of tokens tells how large the replica's cache is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol, TypeVar

from guanaco.chat import Bot
from guanaco_server.lore.activation import tokens
from guanaco_server.prompts.layouts import persona

LOAD_TOKENS = 128
MOST_SPARE = 8  # requests by which a holder may be busier than the least busy replica
LEAST_TOKENS = (
    64  # a shorter prefix is not worth a choice: two blocks of vLLM on a CPU, four on a GPU
)
KEPT_S = 60.0
MOST_KEPT = 16_384  # of each table: some 4 MB
HOMES = 2  # replicas of one conversation: its own submission's, and a rival's in battles
LEAST_CACHE_TOKENS = 4_096
FOUND_PART = 0.5  # of a prefix, from which on it counts as found


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The beginning of a prompt. Conversations of one ``key`` have the same one, of about ``tokens`` tokens."""

    key: str
    tokens: int


def shared_prefix(account_id: str, bot: Bot) -> SharedPrefix | None:
    """Return what an account's conversations with a bot begin with; None where it is too short to matter."""
    text = f"{persona(bot)}\n{bot.prompt}"
    size = tokens(text)
    if size < LEAST_TOKENS:
        return None
    return SharedPrefix(blake2b(f"{account_id}\n{text}".encode(), digest_size=16).hexdigest(), size)


class Server(Protocol):
    """A replica, as far as the choice needs to know it. ``computed_tokens`` and ``cache_tokens`` are kept here."""

    endpoint: str
    in_flight: int
    computed_tokens: int
    cache_tokens: float


S = TypeVar("S", bound=Server)
Order = Callable[[str, Sequence[str]], list[str]]


class _PrefixCopy:
    """A prefix at a replica; ``used_at`` in tokens that the replica had computed then."""

    __slots__ = ("in_flight", "needed_at", "used_at")

    def __init__(self, needed_at: float) -> None:
        self.in_flight = 0
        self.needed_at = needed_at
        self.used_at = -1


class SharedPrefixes:
    """The places of prefixes and conversations, as far as this process knows them. ``order`` is rendezvous hashing."""

    def __init__(self, clock: Callable[[], float], order: Order) -> None:
        self._now = clock
        self._order = order
        self._copies: OrderedDict[tuple[str, str], _PrefixCopy] = OrderedDict()
        self._homes: OrderedDict[str, tuple[tuple[str, int], ...]] = OrderedDict()

    def home(self, conversation: str, endpoints: Sequence[str], of: Callable[[str], S]) -> S | None:
        """Return the replica that had the conversation's last turn and probably holds it."""
        for endpoint, used_at in self._homes.get(conversation, ()):
            if endpoint in endpoints:
                replica = of(endpoint)
                return None if _is_evicted(replica, used_at) else replica
        return None

    def choose(
        self, conversation: str, prefix: SharedPrefix, endpoints: Sequence[str], open_: Sequence[S]
    ) -> S:
        """Choose for a conversation without a home among the replicas in ``open_``, which are within their bounds; they are in the conversation's order."""
        by_endpoint = {replica.endpoint: replica for replica in open_}
        least = min(replica.in_flight for replica in open_)
        limit = least + min(MOST_SPARE, prefix.tokens // LOAD_TOKENS)
        order = [name for name in self._order(prefix.key, endpoints) if name in by_endpoint]
        holders = self._holders(prefix, [by_endpoint[name] for name in order])
        self._note_need(prefix, holders, max(1, limit))
        for replica in open_:
            if replica.endpoint in holders and replica.in_flight <= limit:
                return replica
        new = next(
            by_endpoint[name]
            for name in order
            if name not in holders and by_endpoint[name].in_flight <= limit
        )
        self._copy(prefix, new.endpoint).needed_at = self._now()
        return new

    def begin(self, conversation: str, prefix: SharedPrefix, replica: Server) -> int | None:
        """Note that the replica is asked for the conversation's next reply. Return how many tokens it has computed since it used the prefix; None if it never did."""
        copy = self._copy(prefix, replica.endpoint)
        since = replica.computed_tokens - copy.used_at if copy.used_at >= 0 else None
        copy.in_flight += 1
        others = tuple(
            home for home in self._homes.get(conversation, ()) if home[0] != replica.endpoint
        )
        self._homes[conversation] = (
            (replica.endpoint, replica.computed_tokens),
            *others[: HOMES - 1],
        )
        self._homes.move_to_end(conversation)
        if len(self._homes) > MOST_KEPT:
            self._homes.popitem(last=False)
        return since

    def end(
        self,
        prefix: SharedPrefix,
        replica: Server,
        since: int | None,
        prompt_tokens: int,
        cached_tokens: int,
    ) -> None:
        """Note how the reply went; no ``prompt_tokens`` where it failed. ``since`` is what ``begin`` returned."""
        copy = self._copy(prefix, replica.endpoint)
        copy.in_flight = max(0, copy.in_flight - 1)
        if not prompt_tokens:
            return
        if since is not None and cached_tokens >= FOUND_PART * prefix.tokens:
            replica.cache_tokens = max(replica.cache_tokens, since)
        elif since:
            smaller = max(since, replica.cache_tokens / 2)  # one miss may be a server's new start
            replica.cache_tokens = max(LEAST_CACHE_TOKENS, min(replica.cache_tokens, smaller))
        copy.used_at = replica.computed_tokens

    def _holders(
        self, prefix: SharedPrefix, in_order: Sequence[S]
    ) -> dict[str, _PrefixCopy | None]:
        """Return the replicas that hold the prefix or soon will, in the prefix's order."""
        now = self._now()
        found: dict[str, _PrefixCopy | None] = {}
        for place, replica in enumerate(in_order):
            copy = self._copies.get((prefix.key, replica.endpoint))
            if place == 0 or (copy is not None and self._is_held(copy, replica, now)):
                found[replica.endpoint] = copy
        return found

    @staticmethod
    def _is_held(copy: _PrefixCopy, replica: Server, now: float) -> bool:
        if now - copy.needed_at > KEPT_S:
            return False
        return copy.in_flight > 0 or not _is_evicted(replica, copy.used_at)

    def _note_need(
        self, prefix: SharedPrefix, holders: dict[str, _PrefixCopy | None], limit: int
    ) -> None:
        """Keep as many holders as the character's requests under way need, at ``limit`` each."""
        under_way = 1 + sum(copy.in_flight for copy in holders.values() if copy is not None)
        now = self._now()
        for place, copy in enumerate(holders.values()):
            if copy is not None and under_way > place * limit:
                copy.needed_at = now

    def _copy(self, prefix: SharedPrefix, endpoint: str) -> _PrefixCopy:
        key = (prefix.key, endpoint)
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = _PrefixCopy(self._now())
            if len(self._copies) > MOST_KEPT:
                self._copies.popitem(last=False)
        else:
            self._copies.move_to_end(key)
        return copy


def _is_evicted(replica: Server, used_at: int) -> bool:
    """Tell whether the replica has probably computed too much since then to still hold it, or was forgotten meanwhile."""
    since = replica.computed_tokens - used_at
    return since < 0 or since > replica.cache_tokens
