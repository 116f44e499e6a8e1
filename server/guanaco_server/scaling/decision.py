"""How many replicas a deployment should have: a pure function of what was seen, the limits and the time.

    needed(sample) = ceil((running + waiting) / (capacity * target))
    up:   the least that any sample of the last ``up_window_s`` needed, at most ``up_step`` more at a time
    down: the most that any sample of the last ``down_window_s`` needed, at most ``down_step`` fewer at a time

What is needed does not depend on how many there are, so that a constant load has one answer and nothing
flaps. Without samples over the whole window nothing is decided: a controller that has just started knows nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Limits:
    """``target`` is the share of a replica's capacity that should be in use; the rest takes the next minute's growth."""

    min_replicas: int = 1
    max_replicas: int = 1
    target: float = 0.7
    up_window_s: float = 15.0
    down_window_s: float = 300.0
    up_step: int = 2
    down_step: int = 1
    up_cooldown_s: float = 30.0
    down_cooldown_s: float = 60.0

    @property
    def memory_s(self) -> float:
        """How long a sample matters."""
        return max(self.up_window_s, self.down_window_s)


@dataclass(frozen=True)
class Sample:
    """Requests that a deployment's replicas were working on, and those that waited for one."""

    at: datetime
    running: int
    waiting: int


@dataclass(frozen=True)
class Load:
    """What is known of a deployment. ``samples`` are in the order of time; ``busy_replicas`` have an open stream;
    ``capacity`` is how many requests one replica carries at once."""

    replicas: int
    capacity: int
    samples: tuple[Sample, ...] = ()
    busy_replicas: int = 0
    scaled_at: datetime | None = None


def decide(load: Load, limits: Limits, now: datetime) -> int:
    """The replicas to have. Never fewer than those with an open stream; otherwise within the limits."""
    wanted = load.replicas
    up = _needed(load, limits, now, limits.up_window_s)
    down = _needed(load, limits, now, limits.down_window_s)
    if up and min(up) > load.replicas and _has_cooled(load, now, limits.up_cooldown_s):
        wanted = min(min(up), load.replicas + limits.up_step)
    elif down and max(down) < load.replicas and _has_cooled(load, now, limits.down_cooldown_s):
        wanted = max(max(down), load.replicas - limits.down_step)
    wanted = min(max(wanted, limits.min_replicas), limits.max_replicas)
    return max(wanted, min(load.busy_replicas, load.replicas))


def _needed(load: Load, limits: Limits, now: datetime, window_s: float) -> list[int]:
    """What each sample within the window needed; nothing where the samples do not go back that far."""
    since = now - timedelta(seconds=window_s)
    if not load.samples or load.samples[0].at > since:
        return []
    a_replica = max(1, load.capacity) * limits.target
    return [
        max(limits.min_replicas, math.ceil((sample.running + sample.waiting) / a_replica))
        for sample in load.samples
        if sample.at >= since
    ]


def _has_cooled(load: Load, now: datetime, cooldown_s: float) -> bool:
    return load.scaled_at is None or now - load.scaled_at >= timedelta(seconds=cooldown_s)
