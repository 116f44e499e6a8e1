"""Plans for traffic that a developer asks the server for: of a preset, or of a repo that passes the check."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import SecretStr

from guanaco.errors import HubUnreachable, TooManyAttempts, UnsupportedArchitecture
from guanaco.plans import PlanComparison, PlanRequest
from guanaco_server.accounts.service import Account
from guanaco_server.recipes.comparison import compare_gpus, quantized_model
from guanaco_server.recipes.hardware import find_gpus
from guanaco_server.recipes.memory import Model
from guanaco_server.recipes.model_shape import read_shape
from guanaco_server.recipes.presets import find_preset, require_repo
from guanaco_server.recipes.prices import PriceTable
from guanaco_server.runtime import threads
from guanaco_server.submissions.pipeline.stages import StageParts, hub_of

AT_ONCE = 2  # for all developers
LONGEST_S = 60.0
RETRY_S = 5.0


class TrafficPlans:
    """Makes one plan at a time for each developer."""

    def __init__(self, parts: StageParts, prices: PriceTable, gpus_per_machine: int) -> None:
        self._parts = parts
        self._prices = prices
        self._gpus_per_machine = gpus_per_machine
        self._places = asyncio.Semaphore(AT_ONCE)
        self._busy: set[str] = set()

    async def compare(
        self, account: Account, request: PlanRequest, hub_token: SecretStr | None = None
    ) -> PlanComparison:
        """Compare types of GPU for the traffic.

        Raises:
            InvalidInput, NoSuchGpu: What the request names is not there, or no model could be asked for it.
            SubmissionFailure: What the repo's check found.
            TooManyAttempts: Another plan of this developer is not done yet.
        """
        find_gpus(request.gpus)
        async with self._place(account):
            model = await self._model(request, hub_token)
            return await threads.PAGES.run(
                compare_gpus, model, request, self._prices, self._gpus_per_machine
            )

    @asynccontextmanager
    async def _place(self, account: Account) -> AsyncIterator[None]:
        if account.id in self._busy:
            raise TooManyAttempts(RETRY_S)
        self._busy.add(account.id)
        try:
            async with self._places:
                yield
        finally:
            self._busy.discard(account.id)

    async def _model(self, request: PlanRequest, hub_token: SecretStr | None) -> Model:
        preset = find_preset(request.model)
        if preset is not None:
            return quantized_model(request.model, read_shape(preset), None, request.quantization)
        hub = hub_of(self._parts, hub_token)
        repo = require_repo(request.model)
        try:
            async with asyncio.timeout(LONGEST_S):
                snapshot = await hub.resolve(repo, None)
                checked = await self._parts.checker.check(hub, snapshot, self._parts.limits)
        except TimeoutError:
            raise HubUnreachable(
                f"{repo} was not read after {LONGEST_S:.0f} s.", hint="Try again later."
            ) from None
        if checked.shape is None:
            raise UnsupportedArchitecture(
                f"The memory of {repo} cannot be worked out: its family is not known, or its config.json lacks a number."
            )
        size = checked.weight_bytes
        return quantized_model(request.model, checked.shape, size, request.quantization)
