"""The score counter: aggregates kept step by step equal those counted from scratch, whoever writes meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, event, select, text

from guanaco.accounts import Role
from guanaco.chat import Sender
from guanaco.errors import RatingSettled
from guanaco.feedback import FeedbackRequest
from guanaco_server.accounts.service import Account
from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.chat.conversations.records import user_key
from guanaco_server.chat.tables import MessageRow
from guanaco_server.database.database import Database
from guanaco_server.feedback import records as feedback_records
from guanaco_server.feedback.tables import FeedbackRow
from guanaco_server.leaderboard.counting import queries as counting_queries
from guanaco_server.leaderboard.flags import queries as flag_queries
from guanaco_server.leaderboard.tables import ScoreRow
from tests.fixtures.rating import converse, rate, say
from tests.fixtures.world import World

SUBMISSIONS = ("one_v1", "two_v1", "three_v1")
USERS = ("alice", "bob", "carol")
TABLES_WITH_USERS = (
    "score_conversations",
    "score_votes",
    "score_withdrawn_votes",
    "score_visits",
)

Action = tuple[str, int, int, bool]  # what, of which submission, by which user, thumbs up
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "open",
                "say",
                "regenerate",
                "rate",
                "change",
                "withdraw",
                "delete",
                "tomorrow",
                "settle",
                "forget",
            ]
        ),
        st.integers(0, 2),
        st.integers(0, 2),
        st.booleans(),
    ),
    min_size=5,
    max_size=40,
)


class Rated(World):
    """A world in which users chat and rate as they are told."""

    backend: Account
    open_conversations: list[str]
    rated_conversations: list[str]

    async def begin(self) -> Rated:
        for number, submission_id in enumerate(SUBMISSIONS):
            developer = await self.account(Role.DEVELOPER, f"developer-{number % 2}")
            await self.publish(developer, submission_id)
        self.backend = await self.account(Role.BACKEND)
        self.open_conversations, self.rated_conversations = [], []
        return self

    async def play(self, actions: Sequence[Action]) -> None:
        for what, submission, user, thumbs_up in actions:
            await self.act(what, SUBMISSIONS[submission], USERS[user], thumbs_up)

    async def act(self, what: str, submission_id: str, user: str, thumbs_up: bool) -> None:
        match what:
            case "open":
                says = [(Sender.USER, "hello there"), (Sender.BOT, f"hello {user}")]
                found = await converse(self, self.backend, submission_id, user, says)
                self.open_conversations.append(found)
            case "say" if self.open_conversations:
                says = [(Sender.USER, "go on"), (Sender.BOT, "the sea, the sea")]
                await say(self, self.open_conversations[-1], says)
            case "regenerate" if self.open_conversations:
                await self.regenerate(self.open_conversations[-1])
            case "rate" if self.open_conversations:
                request = FeedbackRequest(thumbs_up=thumbs_up)
                self.rated_conversations.append(self.open_conversations.pop())
                await self.feedback.rate(self.backend, self.rated_conversations[-1], request)
            case "change" if self.rated_conversations:
                request = FeedbackRequest(thumbs_up=thumbs_up)
                with suppress(RatingSettled):
                    await self.feedback.change(self.backend, self.rated_conversations[-1], request)
            case "withdraw" if self.rated_conversations:
                with suppress(RatingSettled):
                    await self.feedback.withdraw(self.backend, self.rated_conversations[-1])
                    self.open_conversations.append(self.rated_conversations.pop())
            case "delete" if self.rated_conversations:
                deleted = self.rated_conversations.pop(0)
                await self.erasures.delete_conversation(self.backend, deleted)
            case "tomorrow":
                self.clock.advance(86_400)
            case "settle":
                await self.scores.counter.count_batch()
            case "forget":
                await self.forget(user)

    async def regenerate(self, conversation_id: str) -> None:
        await say(self, conversation_id, [(Sender.BOT, "another answer")])
        async with self.database.write() as session:
            rows = await session.scalars(
                select(MessageRow)
                .where(MessageRow.conversation_id == conversation_id)
                .order_by(MessageRow.position.desc())
                .limit(2)
            )
            list(rows)[-1].is_deleted = True

    async def forget(self, user: str) -> None:
        """Forget a user as an erasure does: their ratings and conversations go, and every row that names them."""
        async with self.database.write() as session:
            await self.scores.counter.forget_users(session, [user_key(self.backend.id, user)])
            theirs = "SELECT id FROM conversations WHERE user_id = :user"
            for statement in (
                f"DELETE FROM feedback_changes WHERE conversation_id IN ({theirs})",
                "DELETE FROM feedback WHERE user_id = :user",
                f"DELETE FROM messages WHERE conversation_id IN ({theirs})",
                "DELETE FROM conversations WHERE user_id = :user",
            ):
                await session.execute(text(statement), {"user": user})
            left = await session.scalars(text("SELECT id FROM conversations"))
            there = set(left)
        self.open_conversations = [one for one in self.open_conversations if one in there]
        self.rated_conversations = [one for one in self.rated_conversations if one in there]

    async def settle_all(self) -> dict[tuple[str, str], str]:
        while not (await self.scores.counter.count_batch()).is_all:
            pass
        return await self.tallies()

    async def tallies(self) -> dict[tuple[str, str], str]:
        async with self.database.read() as session:
            rows = await session.scalars(select(ScoreRow))
            return {
                (row.competition, row.submission_id): row.tally for row in rows if row.tally != "{}"
            }

    async def recounted(self) -> dict[tuple[str, str], str]:
        async with self.database.write() as session:
            await self.scores.counter.recount(session, SUBMISSIONS)
        return await self.settle_all()

    async def counted_from_nothing(self) -> dict[tuple[str, str], str]:
        async with self.database.write() as session:
            await counting_queries.lock_counting(session)  # as whoever writes these tables does
            for table in (
                *TABLES_WITH_USERS,
                "scores",
                "score_slots",
                "score_corrections",
                "vote_flags",
            ):
                await session.execute(text(f"DELETE FROM {table}"))
            await session.execute(text("UPDATE conversations SET measured_count = -1"))
            await session.execute(text("UPDATE feedback SET is_counted = false"))
            # A withdrawn rating is counted with its submission; no rating that waits leads to it.
            await self.scores.counter.recount(session, SUBMISSIONS)
        return await self.settle_all()


@pytest.fixture
async def world(database: Database) -> Rated:
    return await Rated(database).begin()


@pytest.mark.slow
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(actions=ACTIONS)
def test_stepwise_counts_equal_a_count_from_nothing(
    empty_database_file: str, actions: list[Action]
) -> None:
    async def play() -> None:
        database = Database(empty_database_file)
        async with database.write() as session:
            for table in (
                "feedback",
                "feedback_changes",
                "messages",
                "conversations",
                "submissions",
                *ALL_SCORES,
            ):
                await session.execute(text(f"DELETE FROM {table}"))
        world = await Rated(database).begin()
        await world.play(actions)
        step_by_step = await world.settle_all()
        assert await world.recounted() == step_by_step
        assert await world.counted_from_nothing() == step_by_step
        await database.close()

    with asyncio.Runner() as runner:
        runner.run(play())


ALL_SCORES = (*TABLES_WITH_USERS, "scores", "score_slots", "vote_flags", "score_recounts")


@pytest.fixture
def empty_database_file(migrated_sqlite, tmp_path) -> str:  # type: ignore[no-untyped-def]
    import shutil

    shutil.copy(migrated_sqlite, tmp_path / "guanaco.db")
    return f"sqlite+aiosqlite:///{tmp_path / 'guanaco.db'}"


@pytest.mark.both_databases
async def test_long_history_with_erasures_counts_alike_in_any_way(world: Rated) -> None:
    rng = random.Random(11)
    kinds = ["open", "open", "say", "regenerate", "rate", "rate", "tomorrow", "settle", "forget"]
    weights = [6, 6, 4, 2, 5, 5, 1, 2, 0.3]
    await world.play(
        [
            (kind, rng.randrange(3), rng.randrange(3), rng.random() < 0.7)
            for kind in rng.choices(kinds, weights, k=120)
        ]
    )
    step_by_step = await world.settle_all()
    assert step_by_step
    assert await world.recounted() == step_by_step
    assert await world.counted_from_nothing() == step_by_step


@pytest.mark.both_databases
async def test_two_processes_that_count_in_turns_lose_nothing(world: Rated) -> None:
    other = Rated(world.database)
    for number, counter in enumerate([world.scores.counter, other.scores.counter] * 2):
        await rate(world, world.backend, "one_v1", f"user-{number}", True)
        await counter.count_batch()
        assert await votes(world) == number + 1


async def test_what_is_said_waits_longer_than_a_rating(world: Rated) -> None:
    await world.settle_all()
    await converse(world, world.backend, "one_v1", "alice")
    assert await world.scores.counter.has_measurements()
    assert not await world.scores.counter.has_votes()
    await rate(world, world.backend, "one_v1", "bob", True)
    assert await world.scores.counter.has_votes()


@pytest.mark.both_databases
async def test_a_rating_that_commits_late_is_counted(world: Rated) -> None:
    early = await converse(world, world.backend, "one_v1", "alice")
    async with world.database.engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            pytest.skip("SQLite has one writer at a time: nothing can commit late.")
        await connection.execute(
            text(
                "INSERT INTO feedback (id, conversation_id, submission_id, user_id, bot_name, thumbs_up, text, created_at)"
                " VALUES ('fb_0', :id, 'one_v1', 'alice', 'Luna', true, '', now())"
            ),
            {"id": early},
        )
        await rate(world, world.backend, "one_v1", "bob", True)
        await world.settle_all()
        assert await votes(world) == 1
        await connection.commit()
    await world.settle_all()
    assert await votes(world) == 2


async def test_in_a_backlog_the_oldest_rating_is_counted_first(world: Rated) -> None:
    given = [
        await rate(world, world.backend, "one_v1", f"user-{number}", True) for number in range(8)
    ]
    async with world.database.read() as session:
        waiting = await feedback_records.uncounted(session, 5)
    assert [rating.id for rating in waiting] == given[:5]


def statements(world: Rated) -> list[tuple[str, Any]]:
    """Return a list of what is executed from now on, with its parameters."""
    asked: list[tuple[str, Any]] = []

    @event.listens_for(world.database.engine.sync_engine, "before_cursor_execute")
    def note(*executed: Any) -> None:
        asked.append((executed[2], executed[3]))

    return asked


@pytest.mark.both_databases
async def test_what_waits_is_found_by_its_index(world: Rated) -> None:
    """However many ratings there are: it is looked for twice a second."""
    asked = statements(world)
    async with world.database.read() as session:
        await feedback_records.uncounted(session, 1)
        await chat_records.changed(session, 1, world.clock.now())
        await flag_queries.bursts(session)
    queries = asked[-3:]
    is_sqlite = world.database.engine.dialect.name == "sqlite"
    explain = "EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN "
    plans = []
    async with world.database.engine.connect() as connection:
        if not is_sqlite:
            await connection.exec_driver_sql("SET enable_seqscan = off")
        for statement, values in queries:
            found = await connection.exec_driver_sql(explain + statement, values)
            plans.append(str(found.all()))
    for plan, index in zip(
        plans,
        ("ix_feedback_uncounted", "ix_conversations_changed", "ix_score_slots_bursts"),
        strict=True,
    ):
        assert index in plan


async def test_conversations_are_measured_before_their_transaction(world: Rated) -> None:
    """On SQLite every chat waits for the transaction, and it for the event loop after each statement."""
    await world.settle_all()
    for number in range(3):
        await converse(world, world.backend, "one_v1", f"user-{number}", [(Sender.BOT, "Ahoy!")])
    executed = statements(world)
    await world.scores.counter.count_batch()
    asked = [statement for statement, _ in executed]
    began = next(n for n, statement in enumerate(asked) if "UPDATE score_books" in statement)
    inside = " ".join(asked[began:])
    before = (
        "score_corrections",
        "score_recounts",
        "score_windows",
        "message_count !=",
        "messages",
    )
    for looked_for in before:
        assert f"FROM {looked_for}" not in inside
    assert "INTO score_conversations" in inside
    assert len(asked) - began <= 11
    assert "UPDATE conversations" in asked[-1], "who chats waits for what comes after it"
    assert await world.counted_from_nothing() == await world.tallies()


async def test_conversations_of_ratings_are_measured_before_their_transaction(
    world: Rated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction counts all that is rated or said before it begins, though they were read earlier."""
    said = [(Sender.USER, "hello"), (Sender.BOT, "Ahoy!")]
    one, two, three = [await converse(world, world.backend, "one_v1", user, said) for user in USERS]
    await world.feedback.rate(world.backend, one, FeedbackRequest(thumbs_up=True))
    write_unit = world.database.write_unit

    async def late(unit: Any) -> Any:
        monkeypatch.undo()
        await world.feedback.rate(world.backend, two, FeedbackRequest(thumbs_up=False))
        await say(world, three, said)
        asked = statements(world)
        counted = await write_unit(unit)
        read = [
            values for statement, values in asked if "SELECT messages.conversation" in statement
        ]
        assert [one in str(values) for values in read] == [not world.database.has_one_writer]
        return counted

    monkeypatch.setattr(world.database, "write_unit", late)
    counted = await world.scores.counter.count_batch()
    assert counted.count == (4 if world.database.has_one_writer else 5)
    assert await world.scores.counter.has_work() is world.database.has_one_writer
    await world.settle_all()
    assert await world.counted_from_nothing() == await world.tallies()


@pytest.mark.both_databases
async def test_long_conversations_wait_until_they_have_grown_or_are_quiet(world: Rated) -> None:
    """Measured every five seconds, a conversation of 5,000 messages would be read whole for each few of them."""
    turn = [(Sender.USER, "go on"), (Sender.BOT, "the sea, the sea")]
    conversation = await converse(world, world.backend, "one_v1", "alice", turn * 100)
    counter = world.scores.counter
    assert (await counter.count_batch()).count == 1
    await say(world, conversation, turn)
    assert not await counter.has_work()
    world.clock.advance(61)
    assert await counter.has_measurements(), "it is quiet"
    await say(world, conversation, turn)
    assert not await counter.has_work()
    await say(world, conversation, turn * 9)
    assert await counter.has_measurements(), "it has grown"
    assert (await counter.count_batch()).count == 1
    await say(world, conversation, turn)
    await world.feedback.rate(world.backend, conversation, FeedbackRequest(thumbs_up=True))
    await counter.count_batch()
    assert not await counter.has_work(), "with its rating it is measured"
    assert await world.counted_from_nothing() == await world.tallies()


@pytest.mark.both_databases
async def test_a_conversation_that_is_written_now_is_counted_again(world: Rated) -> None:
    conversation = await converse(world, world.backend, "one_v1", "alice", [(Sender.BOT, "Ahoy!")])
    await world.feedback.rate(world.backend, conversation, FeedbackRequest(thumbs_up=True))
    async with world.database.engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            pytest.skip("SQLite has one writer at a time.")
        await connection.execute(
            text("UPDATE conversations SET message_count = message_count + 1 WHERE id = :id"),
            {"id": conversation},
        )
        await world.scores.counter.count_batch()
        assert await votes(world) == 1
        await connection.commit()
    assert await world.scores.counter.has_measurements()
    await world.settle_all()
    assert not await world.scores.counter.has_work()
    assert await world.counted_from_nothing() == await world.tallies()


@pytest.mark.both_databases
async def test_each_rating_is_counted_once_by_two_keepers(world: Rated) -> None:
    conversations = [
        await converse(
            world, world.backend, SUBMISSIONS[number % 3], f"user-{number}", [(Sender.BOT, "Ahoy!")]
        )
        for number in range(60)
    ]
    request = FeedbackRequest(thumbs_up=True)

    async def counting() -> None:
        for _ in range(6):
            await world.scores.counter.count_batch()

    await asyncio.gather(
        counting(),
        counting(),
        *(world.feedback.rate(world.backend, one, request) for one in conversations),
    )
    tallies = await world.settle_all()
    assert await votes(world) == 60
    assert await world.counted_from_nothing() == tallies


@pytest.mark.both_databases
async def test_a_batch_that_fails_leaves_everything_to_be_counted(world: Rated) -> None:
    await rate(world, world.backend, "one_v1", "alice", True)
    async with world.database.write() as session:
        await session.execute(text("ALTER TABLE scores RENAME TO scores_away"))
    with pytest.raises(Exception, match="scores"):
        await world.scores.counter.count_batch()
    async with world.database.write() as session:
        await session.execute(text("ALTER TABLE scores_away RENAME TO scores"))
    await world.settle_all()
    assert await votes(world) == 1


@pytest.mark.both_databases
async def test_an_erased_user_is_named_nowhere_and_counts_no_more(world: Rated) -> None:
    for user in ("alice", "bob"):
        await rate(world, world.backend, "one_v1", user, True)
    await world.settle_all()
    await world.forget("alice")
    await world.settle_all()
    assert await votes(world) == 1
    async with world.database.read() as session:
        for table in TABLES_WITH_USERS:
            users = await session.scalars(text(f"SELECT DISTINCT user_key FROM {table}"))
            assert "alice" not in str(users.all())


async def test_new_loop_leader_ranks_what_another_has_counted(world: Rated) -> None:
    other = World(world.database)
    other.clock = world.clock
    await rate(world, world.backend, "one_v1", "alice", True)
    await world.scores.loop.run_once()
    await rate(world, world.backend, "one_v1", "bob", True)
    await other.scores.loop.run_once()
    await rate(world, world.backend, "two_v1", "bob", False)
    await world.scores.loop.run_once()
    board = await world.leaderboard.leaderboard()
    assert {row.submission_id: (row.thumbs_up, row.thumbs_down) for row in board.rows} == {
        "one_v1": (2, 0),
        "two_v1": (0, 1),
        "three_v1": (0, 0),
    }


async def test_ratings_erased_by_hand_are_noticed_at_a_recount(world: Rated) -> None:
    rating = await rate(world, world.backend, "one_v1", "alice", True)
    await world.settle_all()
    async with world.database.write() as session:
        await session.execute(delete(FeedbackRow).where(FeedbackRow.id == rating))
        await world.scores.counter.recount(session, ["one_v1"])
    await world.settle_all()
    assert await votes(world) == 0


async def votes(world: Rated) -> int:
    found = await world.leaderboard.votes_by_competition()
    return sum(votes.up + votes.down for votes in found.get("open", {}).values())
