"""Server time of every page: what docs/benchmarks.md says of the web.

    make bench-web ARGS='--submissions=1000 --ratings=1000000'

The app, in this process, over a PostgreSQL of its own that is filled by SQL. A page's time is from the request's
entrance into the app to the last byte of its answer. The ranking is read from memory (see ``fixed_board``): how long
it takes to rank is another benchmark's figure. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import statistics
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import httpx
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco.leaderboard import Leaderboard, LeaderboardRow
from guanaco_server.assembly.app import create_app
from guanaco_server.database.bulk import insert_missing
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.leaderboard.ranking.metrics import MetricValues
from guanaco_server.leaderboard.ranking.standings import HOUR_S
from guanaco_server.leaderboard.tables import ScorePointRow
from guanaco_server.statistics.intervals import wilson_interval
from guanaco_server.web.views.boards import FRESH_S, Boards
from tests.fixtures.postgres import running_server
from tests.fixtures.web import WebWorld

AIM_MS = 100.0
DEVELOPERS = 50
VISITS = 20
DAYS = 60
TOKEN = re.compile(r'name="form_token" value="(\w+)"')
CHOSEN = "dev1-model_v1"

FILL = (
    """INSERT INTO submissions (id, account_id, developer, repo, name, status, params, formatter, dtype, artifact_key,
           run, event_count, request_hash, created_at, updated_at)
       SELECT 'dev' || n || '-model_v1', a.id, a.name, 'dev/model' || n, 'Model ' || n, 'deployed', s.params, s.formatter,
           'auto', repeat('a', 64), 1, 0, '', now() - n * interval '1 hour', now()
       FROM generate_series(1, :submissions) n
       JOIN accounts a ON a.name = 'dev' || (n % :developers)
       CROSS JOIN (SELECT params, formatter FROM submissions WHERE id = 'seed_v1') s""",
    """INSERT INTO deployments (submission_id, run, artifact_key, max_model_tokens, developer, phase, endpoint, restarts,
           updated_at, gpu_count, wanted_replicas, applied_replicas)
       SELECT id, 1, artifact_key, 1088, developer, 'ready', 'http://model', 0, now(), 1, 1, 1 FROM submissions""",
    """INSERT INTO conversations (id, account_id, submission_id, user_id, user_name, competition, bot, created_at, message_count)
       SELECT 'conv_' || n, (SELECT id FROM accounts WHERE name = 'app'), 'dev' || (n % :submissions + 1) || '-model_v1',
           'user-' || n % 100000, 'You', 'open', '{"name": "Nia", "memory": "", "prompt": "", "first_message": "Ahoy!"}',
           now() - n * interval '5 seconds', 2
       FROM generate_series(1, :ratings) n""",
    """INSERT INTO messages (id, conversation_id, position, sender, content, created_at, is_deleted)
       SELECT 'msg_' || n || '_' || p, 'conv_' || n, p, CASE p WHEN 1 THEN 'user' ELSE 'bot' END,
           'What was said in turn ' || p || ' of conversation ' || n, now(), false
       FROM generate_series(1, :ratings, 5) n, generate_series(1, 2) p""",
    """INSERT INTO feedback (id, conversation_id, submission_id, user_id, competition, bot_name, thumbs_up, text, created_at)
       SELECT 'fb_' || substr(id, 6), id, submission_id, user_id, 'open', 'Nia', hashtext(id) % 10 < 6, 'Opinion on ' || id, created_at
       FROM conversations""",
    """INSERT INTO api_keys (id, account_id, secret_hash, created_at)
       SELECT 'k' || n, (SELECT id FROM accounts WHERE name = 'dev' || (n % :developers)), repeat('0', 64), now()
       FROM generate_series(1, :submissions) n""",
    """INSERT INTO submission_events (submission_id, seq, at, kind, stage, level, message, data)
       SELECT :chosen, n, now(), 'log', 'deploy', 'info', 'Line ' || n, '{}' FROM generate_series(1, 300) n""",
    "ANALYZE",
)

PUBLIC = ("/", "/?sort=votes&page=7", f"/submissions/{CHOSEN}", "/signin", "/chat", "/nowhere")
DEVELOPER = (
    "/submissions",
    "/submissions/new",
    f"/submissions/{CHOSEN}",
    f"/submissions/{CHOSEN}/feedback",
    f"/submissions/{CHOSEN}/feedback?rating=down",
)
ADMIN = (
    "/admin",
    "/submissions?page=12",
    "/admin/deployments",
    "/admin/keys",
    "/admin/competitions",
    "/admin/audit",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--submissions", type=int, default=1_000)
    parser.add_argument("--ratings", type=int, default=1_000_000)
    chosen = parser.parse_args()
    with running_server() as server:
        url = server.url(server.create(name="web"))
        figures = asyncio.run(measure(url, chosen.submissions, chosen.ratings))
    show(figures)
    slowest = max(page["median_ms"] for page in figures.values())
    print(
        json.dumps(
            {
                "pages": figures,
                "slowest_median_ms": slowest,
                "is_reached": slowest < AIM_MS,
                "submissions": chosen.submissions,
                "ratings": chosen.ratings,
                "cores": os.cpu_count(),
            }
        )
    )


async def keep_points(world: WebWorld, board: Leaderboard, at: datetime) -> None:
    """The history's points of one hour."""
    rows = [
        {
            "submission_id": row.submission_id,
            "competition": "open",
            "hour": int(at.timestamp() // HOUR_S),
            "at": at,
            "rank": row.rank,
            "score": row.score,
            "low": row.score_low,
            "high": row.score_high,
            "figures": MetricValues.of(row).to_json(),
        }
        for row in board.rows
    ]
    async with world.database.write() as session:
        await insert_missing(session, ScorePointRow, rows)


async def measure(url: str, submissions: int, ratings: int) -> dict[str, dict[str, float]]:
    database = Database(url)
    await upgrade(database)
    world = WebWorld(database)
    await fill(world, submissions, ratings)
    board = await fixed_board(world, submissions)

    async def read_board(_competition: str) -> Leaderboard:
        return board

    web = replace(world.web, boards=Boards(read_board, FRESH_S))
    world.platform.rooms = replace(world.platform.rooms, web=web)
    world.app = create_app(world.platform)
    for day in range(DAYS, 0, -1):
        await keep_points(world, board, world.clock.now() - timedelta(days=day))
    gc.collect()
    gc.freeze()  # as serve.py does once the platform runs
    figures = {}
    for who, key, paths in (
        ("public", None, PUBLIC),
        ("developer", await world.key(Role.DEVELOPER, "dev1"), DEVELOPER),
        ("admin", await world.key(Role.ADMIN, "root"), ADMIN),
    ):
        client = await signed_in(world, key)
        for path in paths:
            figures[f"{who} {path}"] = await visits(client, path)
    guest = await chatting(world)
    for name, path in (("/chat", "/chat"), ("/chat/ID", await first_chat(guest))):
        figures[f"guest {name}"] = await visits(guest, path)
    await database.close()
    return figures


async def chatting(world: WebWorld) -> httpx.AsyncClient:
    client = await signed_in(world, None)
    await client.post("/chat/consent", data={"consent": "yes"})
    return client


async def first_chat(client: httpx.AsyncClient) -> str:
    """The path of a conversation with one reply."""
    token = TOKEN.findall((await client.get("/chat")).text)[0]
    opened = await client.post("/chat/open", data={"bot": "ada", "form_token": token})
    path = opened.headers["location"]
    await client.post(f"{path}/messages", data={"content": "Hello", "form_token": token})
    return str(path)


async def fill(world: WebWorld, submissions: int, ratings: int) -> None:
    for number in range(DEVELOPERS):
        await world.key(Role.DEVELOPER, f"dev{number}")
    await world.accounts.built_in("app", Role.BACKEND)
    await world.publish(await world.developer("dev1"), "seed_v1")
    values = {"submissions": submissions, "ratings": ratings, "developers": DEVELOPERS, "chosen": CHOSEN}  # fmt: skip
    for statement in FILL:
        clause = text(statement)
        async with world.database.write() as session:
            await session.execute(clause, {name: values[name] for name in clause.compile().params})


async def fixed_board(world: WebWorld, submissions: int) -> Leaderboard:
    """A ranking of the right size, as the platform keeps one."""
    rows = []
    for place, found in enumerate(await world.submissions.catalog.list_all(), start=1):
        up, total = 300 + place % 600, 1_000
        low, high = wilson_interval(up, total)
        rows.append(
            LeaderboardRow(
                submission_id=found.id,
                thumbs_up=up,
                thumbs_down=total - up,
                feedback_count=total,
                thumbs_up_ratio=up / total,
                interval_low=low,
                interval_high=high,
                conversation_count=total,
                mean_conversation_length=4.2,
                rank=place,
                developer=found.developer,
                name=found.name,
                repo=found.repo,
                status=found.status,
                created_at=found.created_at,
            )
        )
    assert len(rows) == submissions + 1
    return Leaderboard(at=world.clock.now(), rows=rows)


async def signed_in(world: WebWorld, key: str | None) -> httpx.AsyncClient:
    headers = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    transport = httpx.ASGITransport(world.app)
    client = httpx.AsyncClient(
        transport=transport, base_url="http://guanaco", headers=headers, timeout=120
    )
    if key is not None:
        answer = await client.post("/signin", data={"key": key})
        assert answer.status_code == 303, answer.text
    return client


async def visits(client: httpx.AsyncClient, path: str) -> dict[str, float]:
    taken = [await visit(client, path) for _ in range(VISITS + 1)]
    ranked = sorted(taken[1:])
    return {
        "first_ms": round(taken[0], 1),
        "median_ms": round(statistics.median(ranked), 1),
        "p95_ms": round(ranked[int(len(ranked) * 0.95)], 1),
    }


async def visit(client: httpx.AsyncClient, path: str) -> float:
    began = time.perf_counter()
    answer = await client.get(path)
    taken_ms = (time.perf_counter() - began) * 1_000
    assert answer.status_code == (404 if path == "/nowhere" else 200), f"{path}: {answer.text}"
    return taken_ms


def show(figures: dict[str, dict[str, float]]) -> None:
    print(f"{'page':62} {'first':>8} {'median':>8} {'p95':>8}   ms of server time")
    for name, page in figures.items():
        print(line(name, page.values()))


def line(name: str, values: Iterable[float]) -> str:
    return f"{name:62} " + " ".join(f"{value:8.1f}" for value in values)


if __name__ == "__main__":
    main()
