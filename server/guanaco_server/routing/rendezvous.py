"""Rendezvous hashing: every process puts the replicas into the same order for a key, without talking.

D. Thaler and C. Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM ToN 6 (1998). A replica that
comes or goes moves only the keys of which it is the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b


def rendezvous(key: str, endpoints: Sequence[str]) -> list[str]:
    """The endpoints, best first for this key."""
    if len(endpoints) < 2:
        return list(endpoints)
    return sorted(endpoints, key=lambda endpoint: _weight(key, endpoint), reverse=True)


def _weight(key: str, endpoint: str) -> bytes:
    return blake2b(endpoint.encode(), key=key.encode()[:64], digest_size=8).digest()
