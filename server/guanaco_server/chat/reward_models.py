"""Which reward model picks for a submission, and where it answers now."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError

from guanaco.submissions import NO_REWARD
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.scaling.traffic import Traffic
from guanaco_server.submissions.rewards import RewardService, ServingReward
from guanaco_server.submissions.service import ServingSubmission

REFRESH_S = 1.0  # how late a published or withdrawn reward model is noticed

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewardModel:
    """``endpoints`` are where it answers, nearest first; none while it does not run."""

    serving: ServingReward
    endpoints: tuple[str, ...]


class RewardModels:
    def __init__(
        self, rewards: RewardService, deployments: DeploymentService, traffic: Traffic
    ) -> None:
        self._rewards = rewards
        self._deployments = deployments
        self._traffic = traffic
        self._serving: dict[str, ServingReward] = {}
        self._refreshed_at = float("-inf")
        self._refreshing = asyncio.Lock()

    def name_for(self, submission: ServingSubmission) -> str | None:
        """The one that it names, else the platform's default; None where there is neither."""
        name = submission.reward or self._rewards.default
        return None if name == NO_REWARD else name

    async def find(self, name: str) -> RewardModel | None:
        """None unless it is published. It counts as used."""
        await self._refresh()
        serving = self._serving.get(name)
        if serving is None:
            return None
        self._traffic.note(name)
        return RewardModel(serving, self._deployments.replicas(name))

    async def _refresh(self) -> None:
        async with self._refreshing:
            if time.monotonic() - self._refreshed_at < REFRESH_S:
                return
            try:
                found = await self._rewards.list_serving()
            except (DBAPIError, OSError) as error:
                logger.warning("the list of reward models stays as it was: %s", error)
            else:
                self._serving = {reward.id: reward for reward in found}
            self._refreshed_at = time.monotonic()
