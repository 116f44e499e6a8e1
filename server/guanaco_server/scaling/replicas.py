"""Decides how many replicas a deployment should have, from how many requests one replica carries at once.

    needed(sample) = ceil((running + unplaced) * (1 + spare) / (capacity * target))
    unplaced       = those that wait, less the places of the replicas that are starting: they are for these
    up:   the least that any sample of the last ``up_window_s`` needed, at most ``up_step`` more at a time
    down: the most that any sample of the last ``down_window_s`` needed, at most ``down_step`` fewer at a time

The number needed does not depend on the number that serves, so a constant load has one answer and nothing flaps.
Without samples over the whole window nothing is decided: a controller that has just started knows nothing.

``decide`` is a pure function of the samples, the limits and the time. Capacity comes from the stress check, by
Little's law: a load of λ requests a second, each of which takes W seconds, is λ * W requests at once. The check's
load passed its thresholds, so a replica carries at least that; its short replies do not prove that it carries no
more, hence the floor. All counts are of sequences, as vLLM's are: a reply that is the best of several counts as often.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from guanaco.submissions import StressReport
from guanaco_server.deployments.overview import DeploymentOverview


@dataclass(frozen=True)
class ReplicaLimits:
    """``target`` is the share of a replica's capacity that should be in use; the rest takes the next minute's growth.

    ``spare`` is room beyond the load, as a share of it.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    target: float = 0.7
    spare: float = 0.0
    up_window_s: float = 15.0
    down_window_s: float = 300.0
    up_step: int = 2
    down_step: int = 1
    up_cooldown_s: float = 30.0
    down_cooldown_s: float = 60.0

    @property
    def memory_s(self) -> float:
        """Return how long a sample matters."""
        return max(self.up_window_s, self.down_window_s)


@dataclass(frozen=True)
class LoadSample:
    """Sequences that an engine's replicas were working on, and those that waited for one, while this number of replicas was starting."""

    at: datetime
    running: int
    waiting: int
    starting: int = 0


@dataclass(frozen=True)
class DeploymentLoad:
    """The load of a deployment. ``samples`` are in the order of time; ``busy_replicas`` have an open stream;
    ``capacity`` is how many sequences one replica carries at once."""

    replicas: int
    capacity: int
    samples: tuple[LoadSample, ...] = ()
    busy_replicas: int = 0
    scaled_at: datetime | None = None


def decide(load: DeploymentLoad, limits: ReplicaLimits, now: datetime) -> int:
    """Return how many replicas to have: within the limits, but never fewer than have an open stream."""
    wanted = load.replicas
    up = _needed(load, limits, now, limits.up_window_s)
    down = _needed(load, limits, now, limits.down_window_s)
    if up and min(up) > load.replicas and _is_past_cooldown(load, now, limits.up_cooldown_s):
        wanted = min(min(up), load.replicas + limits.up_step)
    elif (
        down and max(down) < load.replicas and _is_past_cooldown(load, now, limits.down_cooldown_s)
    ):
        wanted = max(max(down), load.replicas - limits.down_step)
    wanted = min(max(wanted, limits.min_replicas), limits.max_replicas)
    return max(wanted, min(load.busy_replicas, load.replicas))


def _needed(
    load: DeploymentLoad, limits: ReplicaLimits, now: datetime, window_s: float
) -> list[int]:
    """Return how many replicas each sample within the window needed; nothing if the samples do not go back that far."""
    since = now - timedelta(seconds=window_s)
    if not load.samples or load.samples[0].at > since:
        return []
    a_replica = max(1, load.capacity) * limits.target
    return [
        max(
            limits.min_replicas,
            _rounded_up(_turns(sample, load.capacity) * (1 + limits.spare) / a_replica),
        )
        for sample in load.samples
        if sample.at >= since
    ]


def _turns(sample: LoadSample, capacity: int) -> int:
    """Return the sequences that need a place which is not there yet, nor starting. A queue that grows during a start is no reason for more."""
    return sample.running + max(0, sample.waiting - sample.starting * max(1, capacity))


def _rounded_up(replicas: float) -> int:
    """Round up, but for what floating point has added."""
    return math.ceil(round(replicas, 9))


def _is_past_cooldown(load: DeploymentLoad, now: datetime, cooldown_s: float) -> bool:
    return load.scaled_at is None or now - load.scaled_at >= timedelta(seconds=cooldown_s)


VLLM_MAX_NUM_SEQS = 256  # vLLM 0.32's own default
LEAST_CAPACITY = 8


def capacity_shown(report: StressReport) -> int | None:
    """Return the capacity in sequences that a stress check showed; None if nothing was measured."""
    if report.capacity is not None:
        return max(LEAST_CAPACITY, report.capacity)
    if report.e2e_ms is None:
        return None
    replies = report.offered_rate * report.e2e_ms.p50 / 1_000
    return max(LEAST_CAPACITY, math.ceil(replies * report.candidates))


def max_num_seqs(engine_args: Sequence[str]) -> int:
    """Return the limit of concurrent sequences that the model servers are started with."""
    for name, value in pairwise([*engine_args, ""]):
        flag, _, joined = name.partition("=")
        if flag == "--max-num-seqs" and (joined or value).isdigit():
            return int(joined or value)
    return VLLM_MAX_NUM_SEQS


def capacity(shown: int | None, engine_args: Sequence[str]) -> int:
    """Return the capacity of one replica."""
    most = max_num_seqs(engine_args)
    return most if shown is None else min(shown, most)


@dataclass(frozen=True)
class EnginePlaces:
    """The sequences that all replicas of an engine carry at once, and the deployments that share them."""

    users: tuple[str, ...]
    places: int


class CapacityReader:
    """Reads what the engines that serve now carry. One that was never measured has no places."""

    def __init__(self, overview: DeploymentOverview, engine_args: Sequence[str]) -> None:
        self._overview = overview
        self._engine_args = engine_args
        self._known: dict[str, EnginePlaces] = {}

    def known(self, engine: str) -> int | None:
        """Return the places that the last ``read`` found."""
        found = self._known.get(engine)
        return found.places if found is not None else None

    async def read(self) -> Mapping[str, EnginePlaces]:
        self._known = {
            engine: EnginePlaces(
                found.users, found.replicas * capacity(found.capacity, self._engine_args)
            )
            for engine, found in (await self._overview.capacities()).items()
            if found.capacity is not None
        }
        return self._known
