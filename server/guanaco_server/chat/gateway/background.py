"""Asks served models for texts in the background: summaries, and shorter personas. No user's turn waits for one.

A model is asked only while at most half of its engine's places here are taken and nobody waits for one. What it writes takes of
its submission's share of the costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from guanaco.chat import Bot, Sender
from guanaco_server.chat.gateway.places.places import TurnPlaces
from guanaco_server.chat.gateway.places.turn_queue import Asker
from guanaco_server.deployments.model_servers.model_server import (
    Generation,
    ModelServer,
    cache_salt_of,
)
from guanaco_server.prompts.layouts import Utterance
from guanaco_server.prompts.service import PromptService
from guanaco_server.routing.replicas import ReplicaChooser
from guanaco_server.routing.service import LiveSubmission, RoutingService

OWN, BY_RULE = "own", "rule"  # what the setting may say beside a submission's id
BACKGROUND = Asker("guanaco:background", "")
MOST_AT_ONCE = 4
ROOM_WAIT_S = 15.0
POLL_S = 0.25
TEMPERATURE = 0.3


class BackgroundModel:
    """Writes with the model that ``by`` names: each conversation's own submission, one submission for all, or none."""

    def __init__(
        self,
        model_server: ModelServer,
        prompts: PromptService,
        places: TurnPlaces,
        replicas: ReplicaChooser,
        routing: RoutingService,
        model_name: Callable[[str], str],
        *,
        by: str,
        longest_s: float,
    ) -> None:
        self._model_server = model_server
        self._prompts = prompts
        self._places = places
        self._replicas = replicas
        self._routing = routing
        self._model_name = model_name
        self._by = by
        self._longest_s = longest_s
        self._at_once = asyncio.Semaphore(MOST_AT_ONCE)

    async def writer(self, own: LiveSubmission | str) -> LiveSubmission | None:
        """Return who is to write in place of, or as, a conversation's own submission; None where no model is to be asked.

        Raises:
            GuanacoError: The submission cannot be asked now.
        """
        if self._by == BY_RULE:
            return None
        if self._by != OWN:
            own = self._by
        found = await self._routing.target(own) if isinstance(own, str) else own
        return found if found.endpoints else None

    @staticmethod
    def room_of(writer: LiveSubmission, budget: int) -> int:
        """Return the tokens of a prompt that leaves room for an answer of ``budget`` tokens."""
        params = writer.serving.params
        return params.max_input_tokens + params.max_output_tokens - budget

    async def write(
        self, writer: LiveSubmission, bot: Bot, user_name: str, asked: str, budget: int
    ) -> str | None:
        """Return the answer to a message, of at most ``budget`` tokens; None where the engine stays busy.

        Raises:
            MessageTooLong: The message does not fit into the model's prompt.
            ModelServerFault: The model server failed.
            TimeoutError: It took too long.
        """
        if not await self._has_room(writer):
            return None
        serving = writer.serving
        async with self._at_once, asyncio.timeout(self._longest_s):
            prompt = await self._prompts.render(
                formatter=serving.formatter,
                artifact_key=serving.artifact_key,
                max_input_tokens=self.room_of(writer, budget),
                bot=bot,
                user_name=user_name,
                turns=[Utterance(Sender.USER, asked)],
            )
            params = serving.params.model_copy(
                update={"max_output_tokens": budget, "best_of": 1, "temperature": TEMPERATURE}
            )
            generation = Generation(
                self._model_name(serving.id),
                prompt,
                params,
                cache_salt=cache_salt_of(serving.developer),
            )
            return await self._generated(writer, generation)

    async def _generated(self, writer: LiveSubmission, generation: Generation) -> str | None:
        texts: list[str] = []
        with await self._places.take(writer.version, BACKGROUND) as place:
            endpoints = writer.endpoints
            held = self._places.held(writer.version)
            endpoint = self._replicas.choose(generation.prompt[:256], endpoints, (), held)
            if endpoint is None:
                return None
            with self._replicas.ask(endpoint, endpoints) as ask:
                async with aclosing(self._model_server.generate(endpoint, generation)) as chunks:
                    async for chunk in chunks:
                        ask.note_first_token()
                        texts += chunk.texts
                        if chunk.finish_reason is not None:
                            computed = chunk.prompt_tokens - chunk.cached_tokens
                            place.note_tokens(computed, chunk.completion_tokens)
                ask.note_end()
        return "".join(texts)

    async def _has_room(self, writer: LiveSubmission) -> bool:
        """Wait a while until the engine has room that no user's turn is likely to need."""
        loop = asyncio.get_running_loop()
        until = loop.time() + ROOM_WAIT_S
        while not self._places.has_spare(writer.version):
            if loop.time() > until:
                return False
            await asyncio.sleep(POLL_S)
        return True
