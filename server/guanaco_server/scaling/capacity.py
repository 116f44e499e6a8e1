"""How many requests at once a replica carries: what its stress check showed, within what its server allows.

By Little's law a load of λ requests a second, each of which takes W seconds, is λ * W requests at once. The
check's load passed its thresholds, so that a replica carries at least that; its short replies are no proof
that it carries no more, hence the floor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from guanaco.submissions import StressReport
from guanaco_server.database.database import Database
from guanaco_server.deployments import queries

VLLM_MAX_NUM_SEQS = 256  # vLLM 0.32's own default
LEAST_CAPACITY = 8


def capacity_shown(report: StressReport) -> int | None:
    """None where nothing was measured."""
    if report.e2e_ms is None:
        return None
    return max(LEAST_CAPACITY, math.ceil(report.offered_rate * report.e2e_ms.p50 / 1_000))


def max_num_seqs(engine_args: Sequence[str]) -> int:
    """What the model servers are started with."""
    for name, value in pairwise([*engine_args, ""]):
        flag, _, joined = name.partition("=")
        if flag == "--max-num-seqs" and (joined or value).isdigit():
            return int(joined or value)
    return VLLM_MAX_NUM_SEQS


def capacity(shown: int | None, engine_args: Sequence[str]) -> int:
    """Of one replica."""
    most = max_num_seqs(engine_args)
    return most if shown is None else min(shown, most)


class CapacityReader:
    """Over all replicas, of what is ready; a submission that was never measured has none."""

    def __init__(self, database: Database, engine_args: Sequence[str]) -> None:
        self._database = database
        self._engine_args = engine_args

    async def read(self) -> dict[str, int]:
        async with self._database.read() as session:
            rows = await queries.capacities(session)
        return {
            submission_id: replicas * capacity(shown, self._engine_args)
            for submission_id, replicas, shown in rows
            if shown is not None
        }
