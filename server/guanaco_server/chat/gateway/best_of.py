"""Picks one of several candidate replies: by a reward model's scores, otherwise by mean token log-probability.

If the reward model does not run, is late, or gives a wrong answer, log-probability decides, a metric counts it, and the
log says so once a minute. After ``FAILURES`` in a row the reward model is not asked for ``REST_S``, so that replies do not
wait for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError

from guanaco.chat import Bot
from guanaco.errors import MessageTooLong, SubmissionFailure, Unavailable
from guanaco.prompts import Prompt, UnknownPrompt
from guanaco.submissions import NO_REWARD
from guanaco_server.deployments.model_servers.model_server import (
    Candidates,
    Chunk,
    Generation,
    ModelServer,
    ModelServerFault,
    NotANumber,
    reward_score,
)
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.observability.metrics import Metrics
from guanaco_server.observability.tracing import span
from guanaco_server.prompts.layouts import ChatTurn
from guanaco_server.prompts.service import PromptService
from guanaco_server.scaling.usage import TrafficRecorder
from guanaco_server.submissions.catalog import ServingSubmission
from guanaco_server.submissions.rewards import RewardService, ServingReward

FAILURES = 3
REST_S = 10.0
WARN_EVERY_S = 60.0
MARGIN_S = 0.1  # of a reply's deadline, for what comes after the choice
LEAST_PROMPT_TOKENS = 16
NO_LIMIT = 10**9

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReplyContext:
    """A conversation that waits for a reply, with the prompt and the cache salt that its model got. ``begun`` is the reply so far."""

    bot: Bot
    user_name: str
    turns: Sequence[ChatTurn]
    prompt: str
    cache_salt: str
    begun: str = ""


@dataclass(frozen=True)
class Choice:
    """``score`` is the reward model's; None where log-probability chose."""

    index: int
    score: float | None = None


class BestOf:
    """``timeout_s`` is the longest that a reply waits for scores."""

    def __init__(
        self,
        model_server: ModelServer,
        prompts: PromptService,
        rewards: RewardModels,
        report_fault: Callable[[str], None],
        metrics: Metrics,
        timeout_s: float,
    ) -> None:
        self._model_server = model_server
        self._prompts = prompts
        self._rewards = rewards
        self._report_fault = report_fault
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._failures: defaultdict[str, int] = defaultdict(int)
        self._rests_until: dict[str, float] = {}
        self._warned_at = float("-inf")

    async def generate(
        self,
        endpoint: str,
        generation: Generation,
        submission: ServingSubmission,
        context: ReplyContext,
        until: float,
    ) -> AsyncGenerator[Chunk, None]:
        """The chosen candidate as one chunk, before ``until`` on the loop's clock. Raises ModelServerFault where the candidates do not come."""
        candidates = await self._model_server.candidates(endpoint, generation)
        left_s = until - asyncio.get_running_loop().time() - MARGIN_S
        with span("score the candidates"):
            choice = await self.choose(submission, context, candidates, left_s)
        yield candidates.chunk(choice.index, choice.score)

    async def choose(
        self,
        submission: ServingSubmission,
        context: ReplyContext,
        candidates: Candidates,
        left_s: float,
    ) -> Choice:
        """Always one of the candidates, and one with text if there is any."""
        reward_id, started = self._rewards.name_for(submission), time.perf_counter()
        if reward_id is None:
            self._metrics.note_choice("logprob")
            return Choice(candidates.best())
        try:
            async with asyncio.timeout(max(0.0, min(self._timeout_s, left_s))):
                reward = await self._rewards.find(reward_id)
                if reward is None or not reward.endpoints:
                    return self._fall_back(reward_id, "not_running", candidates)
                if isinstance(_formatter_of(reward, submission), UnknownPrompt):
                    return self._fall_back(reward_id, "unknown_prompt", candidates)
                if time.monotonic() < self._rests_until.get(reward_id, 0):
                    return self._fall_back(reward_id, "resting", candidates)
                choice = await self._scored(reward, submission, context, candidates)
        except TimeoutError:
            if left_s < self._timeout_s:  # the candidates took the time, and not the scores
                return self._fall_back(reward_id, "timeout", candidates)
            return self._fail(reward_id, "timeout", "it was too slow", candidates)
        except NotANumber as fault:
            return self._fail(reward_id, "not_a_number", str(fault), candidates)
        except (ModelServerFault, SubmissionFailure, Unavailable, OSError) as fault:
            return self._fail(reward_id, "fault", str(fault), candidates)
        self._failures.pop(reward_id, None)
        self._metrics.note_choice("reward", time.perf_counter() - started)
        return choice

    async def _scored(
        self,
        reward: RewardModel,
        submission: ServingSubmission,
        context: ReplyContext,
        candidates: Candidates,
    ) -> Choice:
        indices = [i for i, reply in enumerate(candidates.replies) if reply.text.strip()]
        if not indices:
            return Choice(candidates.best())
        prompt = await self._prompt(reward, submission, context)
        texts = [prompt + candidates.replies[index].text.rstrip() for index in indices]
        logits = await self._classified(reward, texts, context.cache_salt)
        scores = [reward_score(each) for each in logits]
        best = max(range(len(indices)), key=scores.__getitem__)
        return Choice(indices[best], scores[best])

    async def _prompt(
        self, reward: RewardModel, submission: ServingSubmission, context: ReplyContext
    ) -> str:
        """Render the conversation as the reward model sees it. Its server cuts a text that is still too long from the left."""
        formatter = _formatter_of(reward, submission)
        if formatter is None:
            return context.prompt
        room = reward.serving.max_input_tokens - submission.params.max_output_tokens
        for tokens in (max(room, LEAST_PROMPT_TOKENS), NO_LIMIT):
            with contextlib.suppress(MessageTooLong):
                return await self._prompts.render(
                    formatter=formatter,
                    artifact_key=reward.serving.artifact_key,
                    max_input_tokens=tokens,
                    bot=_judged(context.bot),
                    user_name=context.user_name,
                    turns=context.turns,
                    begun=context.begun,
                )
        return context.prompt

    async def _classified(
        self, reward: RewardModel, texts: Sequence[str], salt: str
    ) -> tuple[tuple[float, ...], ...]:
        """Ask its servers, the nearest first, until one answers."""
        *nearer, last = reward.endpoints
        for endpoint in nearer:
            try:
                return await self._model_server.classify(endpoint, reward.model, texts, salt)
            except ModelServerFault as fault:
                logger.debug("%s does not score at %s: %s", reward.serving.id, endpoint, fault)
        return await self._model_server.classify(last, reward.model, texts, salt)

    def _fail(self, reward_id: str, why: str, detail: str, candidates: Candidates) -> Choice:
        self._report_fault(reward_id)
        self._failures[reward_id] += 1
        if self._failures[reward_id] >= FAILURES:
            self._rests_until[reward_id] = time.monotonic() + REST_S
        return self._fall_back(reward_id, why, candidates, detail)

    def _fall_back(
        self, reward_id: str, why: str, candidates: Candidates, detail: str = ""
    ) -> Choice:
        self._metrics.note_choice(why)
        now = time.monotonic()
        if now - self._warned_at >= WARN_EVERY_S:
            self._warned_at = now
            logger.warning(
                "replies are picked by log-probability: the reward model %s does not help (%s)",
                reward_id,
                detail or why,
                extra={"submission_id": reward_id},
            )
        return Choice(candidates.best())


REFRESH_S = 1.0  # how late a published or withdrawn reward model is noticed

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewardModel:
    """``endpoints`` are where it answers, nearest first; none while it does not run. ``model`` is how they know its model."""

    serving: ServingReward
    model: str
    endpoints: tuple[str, ...]


class RewardModels:
    def __init__(
        self, rewards: RewardService, deployments: DeploymentService, traffic: TrafficRecorder
    ) -> None:
        self._rewards = rewards
        self._deployments = deployments
        self._traffic = traffic
        self._serving: dict[str, ServingReward] = {}
        self._refreshed_at = float("-inf")
        self._refreshing = asyncio.Lock()

    def name_for(self, submission: ServingSubmission) -> str | None:
        """Return the one that it names, else the platform's default; None if there is neither."""
        name = submission.reward or self._rewards.default
        return None if name == NO_REWARD else name

    async def find(self, name: str) -> RewardModel | None:
        """Return None unless it is published. This counts as a use."""
        await self._refresh()
        serving = self._serving.get(name)
        if serving is None:
            return None
        self._traffic.note(name)
        return RewardModel(
            serving, self._deployments.model_name(name), self._deployments.replicas(name)
        )

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


def _formatter_of(reward: RewardModel, submission: ServingSubmission) -> Prompt | None:
    """Return the reward model's form of the conversation; None if it sees what the chat model sees."""
    return submission.reward_formatter or reward.serving.formatter


def _judged(bot: Bot) -> Bot:
    """Return the bot without the instructions to whoever replies, which are no part of the conversation."""
    return bot.model_copy(update={"post_history": ""}) if bot.post_history else bot
