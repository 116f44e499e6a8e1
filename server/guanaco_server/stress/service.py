"""The stress check: a short load as real users would make it, and a verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from guanaco.submissions import GenerationParams, StressReport
from guanaco_server.deployments.model_server import Generation, ModelServer
from guanaco_server.runtime.clock import Clock
from guanaco_server.stress.load import (
    LoadProfile,
    Measure,
    RequestResult,
    measure_reply,
    measure_scores,
    run_load,
)
from guanaco_server.stress.verdict import Thresholds, judge

CANDIDATES = (" Yes.", " I do not know what to say.", " Of course, let us go!", " Why?")
SCORED_AT_ONCE = len(CANDIDATES)


class StressService:
    """``reward_timeout_s`` is what a reply waits for its candidates' scores, so that 95 % must come in that time."""

    def __init__(
        self,
        model_server: ModelServer,
        clock: Clock,
        profile: LoadProfile,
        thresholds: Thresholds,
        reward_timeout_s: float,
    ) -> None:
        self._model_server = model_server
        self._clock = clock
        self.profile = profile
        self._thresholds = thresholds
        self._reward_thresholds = replace(
            thresholds, max_e2e_p95_ms=reward_timeout_s * 1000, answer="scoring requests"
        )

    async def check(
        self, endpoint: str, model: str, prompts: Sequence[str], params: GenerationParams
    ) -> StressReport:
        async def measure(prompt: str, due: float) -> RequestResult:
            generation = Generation(model, prompt, params)
            return await measure_reply(self._model_server, endpoint, generation, due)

        return await self._judged(measure, prompts, self._thresholds)

    async def check_reward(self, endpoint: str, model: str, prompts: Sequence[str]) -> StressReport:
        """Each request scores the candidates of one reply."""

        async def measure(prompt: str, due: float) -> RequestResult:
            texts = [prompt + candidate for candidate in CANDIDATES]
            return await measure_scores(self._model_server, endpoint, model, texts, due)

        return await self._judged(measure, prompts, self._reward_thresholds)

    async def _judged(
        self, measure: Measure, prompts: Sequence[str], thresholds: Thresholds
    ) -> StressReport:
        at, started = self._clock.now(), time.perf_counter()
        samples = await run_load(measure, prompts, self.profile)
        return judge(samples, self.profile, thresholds, at, time.perf_counter() - started)
