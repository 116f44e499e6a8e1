"""Every entry as often as its weight says."""

from __future__ import annotations

from collections.abc import Sequence

from guanaco_server.routing.policies.shares import Shares
from guanaco_server.routing.policy import Entry


def uniform(entries: Sequence[Entry]) -> Shares:
    return Shares([entry.id for entry in entries], [entry.weight for entry in entries])
