"""The stress check: a short load as real users would make it, and a verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence

from guanaco.submissions import GenerationParams, StressReport
from guanaco_server.clock import Clock
from guanaco_server.deployments.model_server import ModelServer
from guanaco_server.stress.load import LoadProfile, run_load
from guanaco_server.stress.verdict import Thresholds, judge


class StressService:
    def __init__(
        self, model_server: ModelServer, clock: Clock, profile: LoadProfile, thresholds: Thresholds
    ) -> None:
        self._model_server = model_server
        self._clock = clock
        self.profile = profile
        self._thresholds = thresholds

    async def check(
        self, endpoint: str, model: str, prompts: Sequence[str], params: GenerationParams
    ) -> StressReport:
        at, started = self._clock.now(), time.perf_counter()
        samples = await run_load(self._model_server, endpoint, model, prompts, params, self.profile)
        return judge(samples, self.profile, self._thresholds, at, time.perf_counter() - started)
