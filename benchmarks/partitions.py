"""Compare a database of 20 million messages in periods with one of a million: a turn, counting, vacuum.

    make bench-partitions ARGS='--periods=5 --messages=200000'

Both databases are on one PostgreSQL. The large one has as many periods as given, each with as many messages; the small one
has one. What is measured happens in the newest period, through the product's own statements and services, in turns on
both, so that other load on the machine hits each alike. ``--flat`` adds a third with as many messages in no period, as before
partitions.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
import statistics
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from benchmarks.feedback_data import ACCOUNTS, BOT, SUBMISSIONS
from guanaco.competitions import OPEN
from guanaco_server.chat.conversations.history import history_reader
from guanaco_server.chat.gateway.turns.turn_log import EndedTurn, Lease, NewMessage, NewReply
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.partitions.ids import CONVERSATION, bounds
from tests.fixtures.postgres import running_server
from tests.fixtures.world import World

A_CONVERSATION = 20  # messages
TURNS = 200
RATINGS = 2_000
CHANGED = 0.02  # of the newest period's messages, before a vacuum
SUBMISSION_COUNT = 100
CHARS_OF_CHANCE = 16

NO_TRIGGERS = text("SET LOCAL session_replication_role = replica")  # no foreign key is checked
FILL_CONVERSATIONS = f"""
INSERT INTO conversations (id, account_id, submission_id, user_id, user_name, competition, bot, created_at,
                           message_count, measured_count)
SELECT :prefix || lpad(to_hex(:offset + i), {CHARS_OF_CHANCE}, '0'), 'bench-backend', 'org-model-' || i % {SUBMISSION_COUNT} || '_v1',
       'user-' || i, 'You', '{OPEN}', '{BOT}', :at, :count, :measured
FROM generate_series(1, :conversations) i
"""
FILL_MESSAGES = f"""
INSERT INTO {{table}} (id, conversation_id, position, sender, content, created_at, is_deleted, is_imported, ttft_ms, total_ms)
SELECT 'msg_' || md5(:prefix || :offset + i || '-' || p), :prefix || lpad(to_hex(:offset + i), {CHARS_OF_CHANCE}, '0'), p,
       CASE p % 2 WHEN 1 THEN 'user' ELSE 'bot' END, 'Hello from the lighthouse', :at, false, false, 80, 600
FROM generate_series(1, :conversations) i, generate_series(1, :count) p
"""
FILL_RATINGS = f"""
INSERT INTO feedback (id, conversation_id, submission_id, user_id, account_id, competition, bot_name, thumbs_up, text,
                      created_at, is_counted)
SELECT 'fb_' || substr(id, 6), id, submission_id, user_id, account_id, competition, 'Luna', true, '', created_at, false
FROM conversations WHERE id > :prefix || lpad(to_hex(CAST(:offset AS bigint)), {CHARS_OF_CHANCE}, '0') AND id < :prefix || 'g'
"""


@dataclass
class Contestant:
    name: str
    database: Database
    periods: int
    messages: int
    """In each period."""
    is_flat: bool = False
    numbers: list[int] = field(default_factory=list)
    rated: int = 0
    times: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = World(self.database)

    @property
    def prefix(self) -> str:
        """Return the letters that ids of the newest period begin with."""
        return "conv_9f86d0814c7d4659" if self.is_flat else self.prefix_of(self.numbers[-1])

    @staticmethod
    def prefix_of(number: int) -> str:
        return bounds(CONVERSATION, number)[0]

    @property
    def newest(self) -> str:
        return "messages_before" if self.is_flat else f"messages_p{self.numbers[-1]}"

    @property
    def conversations(self) -> int:
        return self.messages // A_CONVERSATION * (self.periods if self.is_flat else 1)

    def note(self, what: str, seconds: float) -> None:
        self.times.setdefault(what, []).append(seconds)


async def fill(one: Contestant) -> None:
    """Write everything on the server; a period's partition gets its indexes when it is full."""
    await upgrade(one.database)
    async with one.database.write() as session:
        await session.execute(text(ACCOUNTS))
        await session.execute(text(SUBMISSIONS), {"submissions": SUBMISSION_COUNT})
    one.world.clock.at = datetime.now(UTC)
    if one.is_flat:
        await write(one, "messages_before", one.prefix, one.conversations, A_CONVERSATION)
    else:
        periods = one.world.platform.rooms.retention.periods
        for _ in range(one.periods):  # the first one of the competition is the newest
            await periods.make({OPEN: timedelta(days=3)})
            async with one.database.write() as session:
                found = await session.scalars(
                    text("SELECT number FROM periods WHERE dropped_at IS NULL ORDER BY number")
                )
                one.numbers.append(list(found)[-1])
                await session.execute(
                    text("UPDATE periods SET ends_at = starts_at")
                )  # let the next one be made
        for number in one.numbers:
            table = f"messages_p{number}"
            await write(one, table, one.prefix_of(number), one.conversations, A_CONVERSATION)
    async with one.database.engine.connect() as connection:
        await vacuum(connection, "")


async def write(
    one: Contestant, table: str, prefix: str, conversations: int, count: int, offset: int = 0
) -> None:
    values = {"prefix": prefix, "offset": offset, "conversations": conversations, "count": count}
    at = {"at": datetime.now(UTC), "measured": count}
    async with one.database.write() as session:
        await session.execute(NO_TRIGGERS)
        await session.execute(text(FILL_CONVERSATIONS), values | at)
        del at["measured"]
        await session.execute(text(FILL_MESSAGES.format(table=table)), values | at)


async def vacuum(connection: AsyncConnection, table: str) -> None:
    await connection.execution_options(isolation_level="AUTOCOMMIT")
    await connection.execute(text(f"VACUUM (ANALYZE) {table}"))


async def take_turns(one: Contestant, chance: random.Random) -> None:
    """Claim, read the history and end, one turn after the other."""
    turns, reader = one.world.turns, history_reader(one.database)
    for number in range(TURNS + 20):
        id = f"{one.prefix}{chance.randrange(1, one.conversations):0{CHARS_OF_CHANCE}x}"
        now = datetime.now(UTC)
        began = time.perf_counter()
        claimed = await turns.claim(
            [id], token := secrets.token_hex(16), now, now + timedelta(seconds=20)
        )
        read_from = time.perf_counter()
        await reader.read(id)
        read_s = time.perf_counter() - read_from
        asked = NewMessage(f"msg_{secrets.token_hex(16)}", "Hello", now)
        reply = NewReply(f"msg_{secrets.token_hex(16)}", "Ahoy", now, "stop", 20, 5, 80.0, 600.0)
        assert await turns.end([EndedTurn(Lease(id, token, claimed[id]), asked, reply)])
        if number >= 20:  # statements are prepared, and pages read
            one.note("a turn: claim, history, end", time.perf_counter() - began)
            one.note("of it: the history", read_s)


async def count(one: Contestant) -> None:
    """Count this number of new ratings of new conversations."""
    offset = 2**40 + one.rated
    one.rated += RATINGS
    await write(one, "messages", one.prefix, RATINGS, A_CONVERSATION, offset)
    async with one.database.write() as session:
        await session.execute(text(FILL_RATINGS), {"prefix": one.prefix, "offset": offset})
        await session.execute(
            text("UPDATE conversations SET measured_count = -1 WHERE id > :first AND id < :end"),
            {"first": f"{one.prefix}{offset:0{CHARS_OF_CHANCE}x}", "end": one.prefix + "g"},
        )
    counter = one.world.scores.counter
    began = time.perf_counter()
    counted = 0
    while True:
        batch = await counter.count_batch()
        counted += batch.count
        if batch.is_all:
            break
    assert counted >= RATINGS
    one.note(f"counting {RATINGS:,} ratings", time.perf_counter() - began)


async def clean(one: Contestant) -> None:
    """Vacuum what turns and edits change: the table of the newest messages."""
    changed = int(one.messages * CHANGED)
    async with one.database.write() as session:
        await session.execute(
            text(
                f"UPDATE {one.newest} SET thumbs_up = true WHERE conversation_id < '{one.prefix}"
                f"{changed // A_CONVERSATION:0{CHARS_OF_CHANCE}x}'"
            )
        )
    async with one.database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        began = time.perf_counter()
        await connection.execute(text(f"VACUUM (INDEX_CLEANUP on) {one.newest}"))
        one.note("vacuum after 2 % have changed", time.perf_counter() - began)


def report(contestants: list[Contestant]) -> None:
    small, *others = contestants
    names = " | ".join(one.name for one in contestants)
    ratios = " | ".join(f"{one.name} to {small.name}" for one in others)
    print(f"| what | {names} | {ratios} |\n|" + " --- |" * (1 + len(contestants) + len(others)))
    for what in small.times:
        cells = [_cell(one.times[what]) for one in contestants]
        medians = [statistics.median(one.times[what]) for one in contestants]
        cells += [f"{median / medians[0]:.2f}" for median in medians[1:]]
        print(f"| {what} | {' | '.join(cells)} |")


def _cell(seconds: list[float]) -> str:
    """Return the median, and nine in ten of many, or all of a few."""
    ordered = sorted(seconds)
    tail = len(ordered) // 20
    low, high = ordered[tail], ordered[-1 - tail]
    return f"{1000 * statistics.median(ordered):,.1f} ms ({1000 * low:,.1f} to {1000 * high:,.1f})"


async def run(contestants: list[Contestant], rounds: int) -> None:
    for one in contestants:
        began = time.perf_counter()
        await fill(one)
        print(f"{one.name}: filled in {time.perf_counter() - began:.0f} s", flush=True)
    chance = random.Random(15)
    for number in range(rounds):
        for one in contestants if number % 2 else contestants[::-1]:
            await take_turns(one, chance)
            await count(one)
            await clean(one)
    report(contestants)
    for one in contestants:
        await one.database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--periods", type=int, default=20)
    parser.add_argument("--messages", type=int, default=1_000_000, help="in each period")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flat", action="store_true", help="a third, without periods")
    given = parser.parse_args()
    with running_server(
        autovacuum="off", max_wal_size="4GB", shared_buffers="512MB", maintenance_work_mem="256MB"
    ) as server:

        def contestant(name: str, periods: int, *, is_flat: bool = False) -> Contestant:
            database = Database(server.url(server.create()))
            return Contestant(name, database, periods, given.messages, is_flat)

        millions = given.messages / 1_000_000
        contestants = [
            contestant(f"{millions:g} million", 1),
            contestant(f"{given.periods * millions:g} million", given.periods),
        ]
        if given.flat:
            name = f"{given.periods * millions:g} million, no periods"
            contestants.append(contestant(name, given.periods, is_flat=True))
        asyncio.run(run(contestants, given.rounds))


if __name__ == "__main__":
    main()
