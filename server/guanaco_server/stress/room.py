"""Builds the stress room: the loads and the verdict on them."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.deployments.model_servers.model_server import ModelServer
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings
from guanaco_server.stress.service import LoadPlan, StressService
from guanaco_server.stress.verdict import Thresholds


@dataclass(frozen=True)
class StressRoom:
    service: StressService


def build_stress(clock: Clock, model_server: ModelServer, *, settings: Settings) -> StressRoom:
    plan = LoadPlan(
        rate=settings.stress_rate,
        duration_s=settings.stress_duration_s,
        requests=settings.stress_requests,
    )
    thresholds = Thresholds(
        max_ttft_p95_ms=settings.stress_max_ttft_p95_ms,
        max_tpot_p95_ms=settings.stress_max_tpot_p95_ms,
        max_e2e_p95_ms=settings.stress_max_e2e_p95_ms,
    )
    return StressRoom(
        StressService(model_server, clock, plan, thresholds, settings.reward_timeout_s)
    )
