"""Writes summaries of long conversations in the background: no turn waits for one.

    a turn is recorded → is a summary due? → a task: the rule writes it, and a model; the model's is used if it
                                              keeps what the rule's tells → shown with the next message

A finished summary waits in the conversation's row for the next turn, in whichever process. If a process dies before it has written one, the summary is still due, and another process writes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy.exc import DBAPIError

from guanaco.errors import GuanacoError, MessageTooLong
from guanaco_server.chat import queries
from guanaco_server.chat.conversations.history import History
from guanaco_server.chat.gateway.background import BackgroundModel
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
from guanaco_server.deployments.model_servers.model_server import ModelServerFault
from guanaco_server.observability.metrics import Metrics
from guanaco_server.prompts.history.summaries import Unsummarized
from guanaco_server.prompts.layouts import Summary, Utterance
from guanaco_server.routing.service import LiveSubmission
from guanaco_server.runtime import threads

MODEL, RULE = "model", "rule"  # who wrote a summary

MOST_AT_ONCE = 4  # digests
MOST_WAITING = 1_000  # beyond, a conversation's next turn asks again
MOST_ROUNDS = 8  # of a model that reads a long conversation part by part

logger = logging.getLogger(__name__)


class SummaryWriter:
    def __init__(self, database: Database, model: BackgroundModel, metrics: Metrics) -> None:
        self._database = database
        self._model = model
        self._metrics = metrics
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
            text = await threads.BACKGROUND.run(digest, before, due.turns, history.bot.name, budget)
        written = Summary(text, due.until, RULE)
        try:
            by_model = await self._by_model(history, live, due, budget) if text else None
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
            await self._database.write_unit(
                lambda session: queries.keep_summary(
                    session, history.conversation_id, history.change_count, asdict(written)
                )
            )
        except (DBAPIError, OSError) as error:
            logger.warning("A summary is kept in memory alone: %s", type(error).__name__)

    async def _by_model(
        self, history: History, live: LiveSubmission, due: Unsummarized, budget: int
    ) -> Summary | None:
        """Return the model's summary, for which it reads as much as its prompt has room for, again and again.

        Return None if it cannot be used, its engine is busy, or no model is to be asked.
        """
        writer = await self._model.writer(live)
        if writer is None:
            return None
        text, left = (due.previous.text if due.previous is not None else ""), list(due.turns)
        until = 0
        for _ in range(MOST_ROUNDS):
            part = readable(left, self._model.room_of(writer, budget))
            if not part:
                break
            try:
                text = await self._asked(writer, history, text, part, budget)
            except MessageTooLong:  # its tokenizer makes more tokens than four bytes each
                if len(part) == 1:
                    return None
                part = part[: len(part) // 2]
                text = await self._asked(writer, history, text, part, budget)
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
        budget: int,
    ) -> str:
        asked = request(before, part, history.bot.name, history.user_name, budget)
        written = await self._model.write(writer, WRITER, WRITER_USER, asked, budget)
        source = "\n".join([before, *(turn.content for turn in part)])
        return usable(written or "", source, budget)
