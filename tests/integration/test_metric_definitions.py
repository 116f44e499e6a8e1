"""A new version of the metrics' definitions reaches old conversations, beside processes of the old version."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import select, text

from guanaco.accounts import Role
from guanaco.chat import Sender
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations.records import RecordedMessage
from guanaco_server.database.database import Database
from guanaco_server.leaderboard.counting import counter, queries
from guanaco_server.leaderboard.counting.aggregate import Aggregate
from guanaco_server.leaderboard.counting.counter import ScoreCounter
from guanaco_server.leaderboard.counting.measurement import (
    DEFINITIONS,
    Definitions,
    Measurement,
    measure,
)
from guanaco_server.leaderboard.tables import CountedConversationRow, ScoreRow
from tests.fixtures.rating import converse, rate, say
from tests.fixtures.world import World

SUBMISSIONS = ("one_v1", "two_v1")
Aggregates = dict[tuple[str, str], str]


def measure_with_words(messages: Sequence[RecordedMessage], *, is_rated: bool) -> Measurement:
    """Measure as before, and count the user's words."""
    found = measure(messages, is_rated=is_rated)
    words = sum(len(one.content.split()) for one in messages if one.sender is Sender.USER)
    return replace(found, aggregate=found.aggregate + Aggregate({"words": words}))


NEXT = Definitions(version=DEFINITIONS.version + 1, measure=measure_with_words)


class Rollout(World):
    """Two versions of the counter over one database."""

    backend: Account
    older: ScoreCounter
    newer: ScoreCounter

    async def begin(self) -> Rollout:
        developer = await self.account(Role.DEVELOPER, "ada")
        for submission_id in SUBMISSIONS:
            await self.publish(developer, submission_id)
        self.backend = await self.account(Role.BACKEND)
        self.older = self.scores.counter
        self.newer = ScoreCounter(
            self.database, self.clock, self.submissions, self.competitions, NEXT
        )
        return self

    async def talk(self, user: str, submission_id: str = "one_v1") -> str:
        says = [(Sender.USER, "hello there"), (Sender.BOT, "the sea"), (Sender.USER, "go on now")]
        return await converse(self, self.backend, submission_id, user, says)

    async def aggregates(self) -> Aggregates:
        async with self.database.read() as session:
            rows = await session.scalars(select(ScoreRow))
            return {
                (row.competition, row.submission_id): row.tally for row in rows if row.tally != "{}"
            }

    async def total(self, name: str) -> int:
        return sum(Aggregate.from_json(found)[name] for found in (await self.aggregates()).values())

    async def definitions(self) -> list[int]:
        """Return the version that each conversation was measured by."""
        async with self.database.read() as session:
            return sorted(await session.scalars(select(CountedConversationRow.definition)))

    async def counted_from_nothing(self, scores: ScoreCounter) -> Aggregates:
        async with self.database.write() as session:
            await queries.lock_counting(session)  # as whoever writes these tables does
            for table in ("score_conversations", "score_votes", "score_visits", "scores"):
                await session.execute(text(f"DELETE FROM {table}"))
            await session.execute(text("UPDATE conversations SET measured_count = -1"))
            await session.execute(text("UPDATE feedback SET is_counted = false"))
        await count_all(scores)
        return await self.aggregates()


async def count_all(scores: ScoreCounter) -> list[int]:
    """Count until nothing is left; the sizes of the batches."""
    sizes = []
    while await scores.has_work():
        sizes.append((await scores.count_batch()).count)
        assert len(sizes) < 100, "counting does not end"
    return sizes


@pytest.fixture
async def world(database: Database) -> Rollout:
    return await Rollout(database).begin()


@pytest.mark.both_databases
async def test_new_metric_is_counted_for_old_conversations(
    world: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        await world.talk(f"user-{number}", SUBMISSIONS[number % 2])
    await rate(world, world.backend, "one_v1", "user-0", True)
    await count_all(world.older)
    assert await world.total("words") == 0
    monkeypatch.setattr(counter, "OUTDATED", 3)
    sizes = await count_all(world.newer)
    assert sizes == [3, 3, 2]
    assert await world.total("words") == 7 * 5
    step_by_step = await world.aggregates()
    assert await world.counted_from_nothing(world.newer) == step_by_step


async def test_what_is_new_does_not_wait_for_outdated_measurements(
    world: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        await world.talk(f"user-{number}")
    await count_all(world.older)
    await rate(world, world.backend, "two_v1", "bob", True)
    monkeypatch.setattr(counter, "OUTDATED", 1)
    batch = await world.newer.count_batch()
    assert batch.is_all
    assert await world.total("up") == 1
    assert await world.newer.has_work()
    await count_all(world.newer)
    assert await world.definitions() == [NEXT.version] * 5


async def test_older_process_leaves_newer_measurements_alone(world: Rollout) -> None:
    conversations = [await world.talk(f"user-{number}") for number in range(5)]
    await count_all(world.newer)
    counted = await world.aggregates()
    assert not await world.older.has_work()
    assert (await world.older.count_batch()).count == 0
    assert await world.aggregates() == counted
    await say(world, conversations[0], [(Sender.BOT, "indeed"), (Sender.USER, "tell me more")])
    await count_all(world.older)
    assert await world.definitions() == [DEFINITIONS.version] + [NEXT.version] * 4
    assert await count_all(world.newer) == [1]
    assert await count_all(world.older) == await count_all(world.newer) == []
    counted = await world.aggregates()
    assert await world.counted_from_nothing(world.newer) == counted


async def test_what_is_written_after_it_was_measured_is_measured_again(world: Rollout) -> None:
    await world.talk("alice")
    await count_all(world.newer)
    conversation = await world.talk("bob")
    loop, said = asyncio.get_running_loop(), [(Sender.USER, "and then some")]

    def measure_then_write(messages: Sequence[RecordedMessage], *, is_rated: bool) -> Measurement:
        """Measure in a thread, before the batch's transaction."""
        written = say(world, conversation, said)
        asyncio.run_coroutine_threadsafe(written, loop).result()
        return measure_with_words(messages, is_rated=is_rated)

    late = Definitions(NEXT.version, measure_then_write)
    scores = ScoreCounter(world.database, world.clock, world.submissions, world.competitions, late)
    assert (await scores.count_batch()).count == 0
    assert await world.newer.has_measurements()
    assert await count_all(world.newer) == [1]
    assert await world.total("words") == 5 + 5 + 3
    assert await world.counted_from_nothing(world.newer) == await world.aggregates()


@pytest.mark.both_databases
async def test_replaced_measurement_of_a_process_without_definitions_is_noticed(
    world: Rollout,
) -> None:
    conversation = await world.talk("alice")
    await world.talk("bob")
    await count_all(world.newer)
    expected = await world.aggregates()
    await replace_as_before_0018(world, conversation)
    assert await world.total("words") == 5
    await world.newer.count_batch()
    await count_all(world.newer)
    assert await world.aggregates() == expected


async def replace_as_before_0018(world: Rollout, conversation: str) -> None:
    """Write what a process writes that knows neither definitions nor their columns."""
    async with world.database.write() as session:
        row = await session.get_one(CountedConversationRow, conversation)
        new = dict(Aggregate.from_json(row.tally).counts)
        del new["words"], new[f"definition:{NEXT.version}"]
        score = await session.get_one(ScoreRow, ("open", "one_v1"))
        total = Aggregate.from_json(score.tally) + -Aggregate.from_json(row.tally) + Aggregate(new)
        batch = await session.scalar(
            text("UPDATE score_books SET version = version + 1 RETURNING version")
        )
        row.tally, score.tally, score.version = Aggregate(new).to_json(), total.to_json(), batch


async def test_missing_conversation_does_not_delay_measuring_the_others(
    world: Rollout,
) -> None:
    missing = await world.talk("alice")
    await world.talk("bob")
    await count_all(world.older)
    async with world.database.write() as session:
        for table, column in (("messages", "conversation_id"), ("conversations", "id")):
            await session.execute(
                text(f"DELETE FROM {table} WHERE {column} = :id"), {"id": missing}
            )
    await count_all(world.newer)
    assert await world.definitions() == [NEXT.version]
    assert await world.total("conversations") == 1
