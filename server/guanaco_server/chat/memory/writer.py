"""Writes summaries of long conversations in the background: no turn waits for one.

    a turn is recorded → is a summary due? → a task: the rule writes it, and a model; the model's is used if it
                                              keeps what the rule's tells → shown with the next message

What is written waits in the conversation's row for the next turn, in whichever process; what was not written when a process died
is written again, because it is still due. A model is asked only while at most half of its engine's places here are taken and nobody
waits for one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict

from sqlalchemy.exc import DBAPIError

from guanaco.chat import Sender
from guanaco.errors import GuanacoError, MessageTooLong
from guanaco_server.chat import queries
from guanaco_server.chat.conversations.history import History
from guanaco_server.chat.gateway.places import TurnPlaces
from guanaco_server.chat.gateway.turn_queue import Asker
from guanaco_server.chat.memory.digest import digest
from guanaco_server.chat.memory.notes import (
    WRITER,
    WRITER_USER,
    keeps,
    readable,
    request,
    usable,
)
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_server import (
    Generation,
    ModelServer,
    ModelServerFault,
    cache_salt_of,
)
from guanaco_server.observability.metrics import Metrics
from guanaco_server.prompts.layouts import Summary, Utterance
from guanaco_server.prompts.service import PromptService
from guanaco_server.prompts.summaries import Unsummarized
from guanaco_server.routing.replicas import ReplicaChooser
from guanaco_server.routing.service import LiveSubmission, RoutingService

OWN, BY_RULE = "own", "rule"  # what the setting may say beside a submission's id
MODEL, RULE = "model", "rule"  # who wrote a summary
MEMORY = Asker("guanaco:memory", "")

MOST_AT_ONCE = 4
MOST_WAITING = 1_000  # beyond, a conversation's next turn asks again
MOST_ROUNDS = 8  # of a model that reads a long conversation part by part
ROOM_WAIT_S = 15.0
POLL_S = 0.25
TEMPERATURE = 0.3

logger = logging.getLogger(__name__)


class SummaryWriter:
    """Writes what is due. ``by`` is the setting: the conversation's own submission, the rule, or a submission's id."""

    def __init__(
        self,
        database: Database,
        model_server: ModelServer,
        prompts: PromptService,
        places: TurnPlaces,
        replicas: ReplicaChooser,
        routing: RoutingService,
        model_name: Callable[[str], str],
        metrics: Metrics,
        *,
        by: str,
        longest_s: float,
    ) -> None:
        self._database = database
        self._model_server = model_server
        self._prompts = prompts
        self._places = places
        self._replicas = replicas
        self._routing = routing
        self._model_name = model_name
        self._metrics = metrics
        self._by = by
        self._longest_s = longest_s
        self._at_once = asyncio.Semaphore(MOST_AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def consider(self, history: History, live: LiveSubmission) -> None:
        """Begin to write a summary if one is due and none is being written."""
        params = live.serving.params
        if not params.summary_tokens or history.conversation_id in self._tasks:
            return
        if len(self._tasks) >= MOST_WAITING:
            return
        due = history.unsummarized(params.max_input_tokens)
        if due is None:
            return
        task = asyncio.create_task(self._write(history, live, due))
        self._tasks[history.conversation_id] = task
        task.add_done_callback(lambda ended: self._note_end(history.conversation_id, ended))

    async def finish(self) -> None:
        """Wait until what is being written is written."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        """Stop; what was not shown yet is written again later."""
        for task in list(self._tasks.values()):
            task.cancel()
        await self.finish()

    def _note_end(self, conversation_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(conversation_id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a summary of %s cannot be written", conversation_id, exc_info=error)

    async def _write(self, history: History, live: LiveSubmission, due: Unsummarized) -> None:
        params = live.serving.params
        budget = history.summary_budget(params.max_input_tokens, params.summary_tokens)
        before = due.previous.text if due.previous is not None else ""
        async with self._at_once:
            text = await asyncio.to_thread(digest, before, due.turns, history.bot.name, budget)
        written = Summary(text, due.until, RULE)
        if text and self._by != BY_RULE:
            try:
                by_model = await self._by_model(history, live, due, budget)
            except (GuanacoError, ModelServerFault, TimeoutError, OSError) as error:
                logger.info("A summary is written by rule: %s", error or "the model took too long.")
            else:
                if by_model is not None and keeps(by_model.text, text):
                    written = by_model
        if written.text:
            self._metrics.note_summary(written.by)
        history.note_written(written)
        await self._keep(history, written)

    async def _keep(self, history: History, written: Summary) -> None:
        """Store it until it is shown, for whichever process has the next turn."""
        try:
            async with self._database.write() as session:
                await queries.keep_summary(
                    session, history.conversation_id, history.change_count, asdict(written)
                )
        except (DBAPIError, OSError) as error:
            logger.warning("A summary is kept in memory alone: %s", type(error).__name__)

    async def _by_model(
        self, history: History, live: LiveSubmission, due: Unsummarized, budget: int
    ) -> Summary | None:
        """Return the model's summary; None where it cannot be used, or its engine is busy."""
        writer = live if self._by == OWN else await self._routing.target(self._by)
        if not writer.endpoints:
            return None
        return await self._in_parts(writer, history, due, budget)

    async def _in_parts(
        self, writer: LiveSubmission, history: History, due: Unsummarized, budget: int
    ) -> Summary | None:
        """Have the model read as much as its prompt has room for, again and again."""
        params = writer.serving.params
        room = params.max_input_tokens + params.max_output_tokens - budget
        text, left = (due.previous.text if due.previous is not None else ""), list(due.turns)
        until = 0
        for _ in range(MOST_ROUNDS):
            part = readable(left, room)
            if not part:
                break
            if not await self._has_room(writer):
                return None
            async with self._at_once:
                try:
                    text = await self._asked(writer, history, text, part, room, budget)
                except MessageTooLong:  # its tokenizer makes more tokens than four bytes each
                    if len(part) == 1:
                        return None
                    part = part[: len(part) // 2]
                    text = await self._asked(writer, history, text, part, room, budget)
            if not text:
                return None
            left, until = left[len(part) :], part[-1].position
        return Summary(text, until, MODEL) if until else None

    async def _asked(
        self,
        writer: LiveSubmission,
        history: History,
        before: str,
        part: Sequence[Utterance],
        room: int,
        budget: int,
    ) -> str:
        serving = writer.serving
        asked = request(before, part, history.bot.name, history.user_name, budget)
        async with asyncio.timeout(self._longest_s):
            prompt = await self._prompts.render(
                formatter=serving.formatter,
                artifact_key=serving.artifact_key,
                max_input_tokens=room,
                bot=WRITER,
                user_name=WRITER_USER,
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
            written = await self._generated(writer, generation, history.conversation_id)
        source = "\n".join([before, *(turn.content for turn in part)])
        return usable(written, source, budget)

    async def _generated(self, writer: LiveSubmission, generation: Generation, key: str) -> str:
        texts: list[str] = []
        with await self._places.take(writer.version, MEMORY) as place:
            endpoints = writer.endpoints
            held = self._places.held(writer.version)
            endpoint = self._replicas.choose(f"memory {key}", endpoints, (), held)
            if endpoint is None:
                return ""
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
