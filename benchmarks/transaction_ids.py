"""Count PostgreSQL's transaction ids for a thousand turns, by how many users talk at once.

    make bench-ids ARGS='--turns=500'

The product's turn log writes to a durable PostgreSQL: it claims a turn, waits as a model would, and ends it with two
messages. Ids are counted, not time, so a busy machine changes little: slower commits make larger groups.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets

from benchmarks.feedback_data import CONVERSATIONS, fill
from guanaco_server.chat.gateway.turns.postgresql_turns import PostgresqlTurns
from guanaco_server.chat.gateway.turns.turn_log import EndedTurn, NewMessage, NewReply, TurnLog
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.database.postgresql.transaction_ids import read_ids
from guanaco_server.runtime.clock import SystemClock
from tests.fixtures.postgres import running_server

USERS = (1, 8, 32, 128, 512)
REPLY_S = 0.3  # the mean


async def talk(log: TurnLog, conversation_id: str, turns: int) -> None:
    chance, clock = random.Random(conversation_id), SystemClock()
    for _ in range(turns):
        lease = await log.claim(conversation_id)
        assert lease is not None
        await asyncio.sleep(chance.expovariate(1 / REPLY_S))  # in step, all would share a commit
        asked = NewMessage(secrets.token_hex(16), "Hello from the lighthouse", clock.now())
        reply = NewReply(
            secrets.token_hex(16), "How was the day?", clock.now(), "stop", 20, 5, 80.0, 300.0
        )
        await log.end(EndedTurn(lease, asked, reply))


async def measure(database: Database, users: int, turns: int) -> float:
    log = TurnLog(PostgresqlTurns(database), SystemClock(), patience_s=30, longest_s=600)
    before = await read_ids(database, 0)
    each = max(1, turns // users)
    await asyncio.gather(*(talk(log, f"{CONVERSATIONS}-{user + 1}", each) for user in range(users)))
    after = await read_ids(database, 0)
    await log.close()
    return 1000 * (after.next_id - before.next_id) / (each * users)


async def run(url: str, turns: int) -> None:
    database = Database(url)
    await upgrade(database)
    await fill(database, submissions=10, ratings=max(USERS), fresh=0)
    print("| users at once | ids for a thousand turns |\n| --- | --- |")
    for users in USERS:
        print(f"| {users} | {await measure(database, users, min(turns, 20 * users)):,.0f} |")
    await database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5_000, help="at each number of users")
    turns = parser.parse_args().turns
    with running_server(
        autovacuum="off", fsync="on", synchronous_commit="on", full_page_writes="on"
    ) as server:
        asyncio.run(run(server.url(server.create()), turns))


if __name__ == "__main__":
    main()
