"""Rendezvous hashing: every process puts the replicas into the same order for a key, without talking.

D. Thaler and C. Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM ToN 6 (1998). A replica that
comes or goes moves only the keys of which it is the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b


def rendezvous(key: str, endpoints: Sequence[str]) -> list[str]:
    """The endpoints, best first for this key, of which every character counts."""
    if len(endpoints) < 2:
        return list(endpoints)
    keyed = blake2b(key.encode(), digest_size=8)

    def weight(endpoint: str) -> bytes:
        hashed = keyed.copy()  # so that the key is read once
        hashed.update(endpoint.encode())
        return hashed.digest()

    return sorted(endpoints, key=weight, reverse=True)
