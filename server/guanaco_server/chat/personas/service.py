"""Shortens personas that no model has room for, once each, and keeps the versions.

    a conversation is opened   the best version that is known, else the cut at sentence ends; its bot keeps that text for good
    it is stored               and with it the cut, in one transaction
    in the background          the rule's version and a model's are made, measured by the facts that they keep, and stored
    the next conversations     begin with the best version, all with the same text: model servers cache it once

A version is known by the persona, the room that it had, the tokenizer and the rule's version. A version without a stored character belongs to one account. It is erased with the user for whom it was made, and with the character.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.chat import Bot
from guanaco.errors import GuanacoError
from guanaco.personas import PersonaMethod
from guanaco_server.chat.conversations.persona_fit import PersonaFit
from guanaco_server.chat.gateway.background import BackgroundModel
from guanaco_server.chat.personas import compression
from guanaco_server.chat.tables import ConversationRow, PersonaVersionRow
from guanaco_server.database.bulk import insert_missing
from guanaco_server.database.database import Database, among
from guanaco_server.deployments.model_servers.model_server import ModelServerFault
from guanaco_server.prompts.service import PromptService
from guanaco_server.runtime import threads
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.catalog import ServingSubmission

STEP_TOKENS = (
    32  # budgets are whole steps, so that users' names of different lengths share a version
)
LEAST_TOKENS = 32
MOST_STEPS = 4  # downwards, where the sum of the sentences was less than their text
READ_PART = 0.6  # of a model's prompt, for what it is to shorten
MOST_AT_ONCE = 100  # versions that are being made; beyond, the next conversation asks again
BETTER_FIRST = (PersonaMethod.EXTRACT, PersonaMethod.MODEL, PersonaMethod.CUT)  # of equal shares

WRITER = Bot(
    name="Editor",
    memory=(
        "You shorten descriptions of characters. Keep every name, number, place, relation and trait. "
        "Write short plain sentences in the language of the description. Add nothing."
    ),
)
WRITER_USER = "Author"
LEAST_OWN_PART = 0.6  # of the facts that the model tells, which stand in the original
WORDS_PER_TOKEN = 0.7

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Need:
    """A persona that is to be shortened, for whom, and the tokens that it may take with a submission's tokenizer."""

    account_id: str
    user_id: str
    character: str | None
    original: str
    artifact_key: str
    budget: int
    name: str = ""
    submission_id: str = ""

    @property
    def key(self) -> str:
        scope = self.character or f"account {self.account_id}"
        parts = (scope, self.artifact_key, self.budget, compression.METHOD_VERSION, self.original)
        return sha256("\n".join(map(str, parts)).encode()).hexdigest()


@dataclass(frozen=True)
class Shortened:
    """A bot with a persona that fits. ``values`` are the row of its version, where that is not stored yet."""

    bot: Bot
    need: Need
    values: dict[str, Any] | None
    is_best: bool


class PersonaShortener:
    def __init__(
        self, database: Database, clock: Clock, prompts: PromptService, model: BackgroundModel
    ) -> None:
        self._database = database
        self._clock = clock
        self._prompts = prompts
        self._model = model
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def shorter(self, row: ConversationRow, fit: PersonaFit) -> Shortened | None:
        """Return the bot with a persona that fits where there is the most room; None where none would."""
        if fit.roomiest is None:
            return None
        serving, room, taken = fit.roomiest
        [size] = await self._prompts.sizes(serving.artifact_key, [row.bot.memory])
        budget = (size - (taken - room)) // STEP_TOKENS * STEP_TOKENS
        need = Need(
            row.account_id,
            row.user_id,
            row.character,
            row.bot.memory,
            serving.artifact_key,
            budget,
            row.bot.name,
            serving.id,
        )
        for step in range(MOST_STEPS):
            tried = replace(need, budget=budget - step * STEP_TOKENS)
            if tried.budget < LEAST_TOKENS:
                break
            found = await self._best(tried, row.bot)
            if found.bot.memory and await self._fits(found.bot, row.user_name, serving):
                return found
        return None

    async def keep(self, session: AsyncSession, row: ConversationRow, shortened: Shortened) -> None:
        """Note which version the conversation has, and store that, within the transaction that stores the conversation."""
        row.persona_key = shortened.need.key
        if shortened.values is not None:
            await insert_missing(session, PersonaVersionRow, [shortened.values])

    def improve(self, shortened: Shortened) -> None:
        """Have the rule's version made in the background, where there is none."""
        need = shortened.need
        if shortened.is_best or need.key in self._tasks or len(self._tasks) >= MOST_AT_ONCE:
            return
        task = asyncio.create_task(self._make_logged(need))
        self._tasks[need.key] = task
        task.add_done_callback(lambda _: self._tasks.pop(need.key, None))

    async def erase_of_conversations(
        self, session: AsyncSession, conversation_ids: Sequence[str]
    ) -> None:
        """Erase what was made for the users of these conversations, within the caller's transaction."""
        row = ConversationRow
        users = await session.execute(
            select(row.account_id, row.user_id)
            .where(among(session, row.id, conversation_ids))
            .distinct()
        )
        for account_id, user_id in users.all():
            await session.execute(
                delete(PersonaVersionRow).where(
                    PersonaVersionRow.account_id == account_id,
                    PersonaVersionRow.user_id == user_id,
                )
            )

    async def finish(self) -> None:
        """Wait until what is being made is stored."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        await self.finish()

    async def _fits(self, bot: Bot, user_name: str, serving: ServingSubmission) -> bool:
        return await PersonaFit(self._prompts, bot, user_name).fits(serving)

    async def _best(self, need: Need, bot: Bot) -> Shortened:
        """Return the best version that is known; else the cut."""
        async with self._database.read() as session:
            rows = await versions_of(session, need.key)
        values = None if rows else await self._made(need, PersonaMethod.CUT)
        text = best_first(rows)[0].text if values is None else values["text"]
        is_best = any(row.method != PersonaMethod.CUT for row in rows)
        return Shortened(bot.model_copy(update={"memory": text}), need, values, is_best)

    async def _make_logged(self, need: Need) -> None:
        try:
            values = await self._made(need, PersonaMethod.EXTRACT)
            if values["text"]:
                await self._store(need, values)
            if by_model := await self._by_model(need):
                await self._store(need, await self._row(need, PersonaMethod.MODEL, by_model))
        except (GuanacoError, ModelServerFault, TimeoutError, DBAPIError, OSError) as error:
            logger.info("A persona has no better version: %s", error or "the model took too long.")

    async def _by_model(self, need: Need) -> str:
        """Have a model shorten the persona part by part; return what it wrote, within the budget. Empty where that cannot be used."""
        writer = await self._model.writer(need.submission_id)
        if writer is None:
            return ""
        parts = compression.sentences(need.original)
        sizes = await self._prompts.sizes(need.artifact_key, parts)
        room = int(READ_PART * self._model.room_of(writer, need.budget))
        written = []
        for text, size in compression.grouped(parts, sizes, room):
            budget = max(LEAST_TOKENS, need.budget * size // max(1, sum(sizes)))
            asked = _request(need.name, text, budget)
            answer = await self._model.write(writer, WRITER, WRITER_USER, asked, budget)
            if not (found := _usable(answer or "", text)):
                return ""
            written.append(found)
        whole = compression.sentences(" ".join(written))
        return compression.cut(
            whole, await self._prompts.sizes(need.artifact_key, whole), need.budget
        )

    async def _made(self, need: Need, method: PersonaMethod) -> dict[str, Any]:
        """Make a version; return its row."""
        parts = compression.sentences(need.original)
        sizes = await self._prompts.sizes(need.artifact_key, parts)
        if method is PersonaMethod.CUT:  # a conversation waits for it
            text = await threads.CHATS.run(compression.cut, parts, sizes, need.budget)
        else:
            text = await threads.BACKGROUND.run(compression.extract, parts, sizes, need.budget)
        return await self._row(need, method, text)

    async def _row(self, need: Need, method: PersonaMethod, text: str) -> dict[str, Any]:
        [tokens] = await self._prompts.sizes(need.artifact_key, [text])
        place = threads.CHATS if method is PersonaMethod.CUT else threads.BACKGROUND
        kept = await place.run(compression.kept_share, need.original, text)
        return {
            "key": need.key,
            "method": method.value,
            "account_id": need.account_id,
            "user_id": need.user_id,
            "character": need.character,
            "artifact_key": need.artifact_key,
            "budget_tokens": need.budget,
            "method_version": compression.METHOD_VERSION,
            "original": need.original,
            "text": text,
            "tokens": tokens,
            "kept": kept,
            "created_at": self._clock.now(),
        }

    async def _store(self, need: Need, values: dict[str, Any]) -> None:
        """Store a version, unless its user, their conversations or the character was erased meanwhile."""
        talk = ConversationRow

        async def store(session: AsyncSession) -> None:
            wanted = await session.scalar(
                select(talk.id)
                .where(
                    talk.account_id == need.account_id,
                    talk.user_id == need.user_id,
                    talk.persona_key == need.key,
                )
                .limit(1)
                .with_for_update(read=True)
            )
            if wanted is not None and await versions_of(session, need.key):
                await insert_missing(session, PersonaVersionRow, [values])

        await self._database.write_unit(store)


async def erase_of_characters(session: AsyncSession, character_ids: Sequence[str]) -> None:
    """Erase what was made of these characters, in any version, within the caller's transaction."""
    for character_id in character_ids:
        await session.execute(
            delete(PersonaVersionRow).where(
                PersonaVersionRow.character.startswith(f"{character_id}@", autoescape=True)
            )
        )


async def versions_of(session: AsyncSession, key: str) -> list[PersonaVersionRow]:
    rows = await session.scalars(select(PersonaVersionRow).where(PersonaVersionRow.key == key))
    return list(rows)


def best_first(rows: Sequence[PersonaVersionRow]) -> list[PersonaVersionRow]:
    """Order versions by the facts that they keep. One whose method only a newer version knows counts like any other."""
    known = [method.value for method in BETTER_FIRST]
    return sorted(
        rows,
        key=lambda row: (-row.kept, known.index(row.method) if row.method in known else len(known)),
    )


def _request(name: str, text: str, budget: int) -> str:
    """Return the message that asks for a shorter description."""
    words = max(10, int(budget * WORDS_PER_TOKEN))
    return f"The description of {name}:\n{text.strip()}\n\nNow write it in at most {words} words, in one paragraph."


def _usable(written: str, original: str) -> str:
    """Return the model's text on one line; empty where it tells what the original does not."""
    storable = written.replace("\x00", "").encode(errors="ignore").decode()
    text = " ".join(storable.split())
    facts, known = compression.facts(text), compression.facts(original).keys()
    own = sum(weight for fact, weight in facts.items() if fact in known)
    return text if facts and own >= LEAST_OWN_PART * sum(facts.values()) else ""
