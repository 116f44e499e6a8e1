"""Ratings and the leaderboard with 1,000 submissions and 1,000,000 ratings in PostgreSQL: figures of docs/benchmarks.md.

    make bench-feedback ARGS='--ratings=100000'

A server of its own, filled by SQL; then everything through the platform's services. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import text

from benchmarks.feedback_data import CONVERSATIONS, fill
from guanaco.accounts import Role
from guanaco.competitions import CompetitionRequest, RankingRule
from guanaco.feedback import FeedbackRequest
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.leaderboard.ranking.standings import StandingsPublisher
from guanaco_server.runtime.clock import SystemClock
from guanaco_server.runtime.garbage import GarbageCollection
from guanaco_server.serve import SWITCH_S
from tests.fixtures.postgres import PostgresServer, kept_server, running_server
from tests.fixtures.world import World

NAME = "feedback"
CALLERS = 64
BACKEND = Account("bench-backend", "backend", Role.BACKEND)
LOAD_S = 20.0
LOAD_PER_S = 1_000
PROBE_EVERY_S = 2.0
TICK_S = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--submissions", type=int, default=1_000)
    parser.add_argument("--ratings", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["lag"], help="leave the other measurements out")
    parser.add_argument(
        "--kept",
        metavar="FOLDER",
        type=Path,
        help="keep the filled and counted database in this folder, and measure on a copy of it; a later run takes what it finds "
        "there, or goes on counting, so the figures of counting and of the first ranking are those of the code that counted",
    )
    parser.add_argument("--follow", metavar="URL", help="(the second process) run the score loop")
    options = parser.parse_args()
    if options.follow:
        asyncio.run(follow(options.follow))
        return
    with ExitStack() as stack:
        if options.kept is None:
            server = stack.enter_context(running_server())
            made: dict[str, object] = {
                **asyncio.run(fill_new(server, options.submissions, options.ratings)),
                **asyncio.run(count(server)),
            }
        else:
            made = kept(options.kept, options.submissions, options.ratings)
            copy = Path(stack.enter_context(TemporaryDirectory(prefix="guanaco-feedback-")))
            copy.chmod(0o755)
            subprocess.run(["cp", "-a", "--reflink=auto", options.kept, copy / "pg"], check=True)
            server = stack.enter_context(kept_server(copy / "pg"))
        measured = asyncio.run(measure(server, is_lag_alone=options.only == "lag"))
    figures = made | measured
    show(figures)
    print(json.dumps(figures))


def kept(folder: Path, submissions: int, ratings: int) -> dict[str, object]:
    """Fill and count a database in this folder, as far as that is not done; return the figures of who did it."""
    filled, counted = folder / "filled.json", folder / "counted.json"
    if folder.exists() and not filled.exists():
        raise SystemExit(f"{folder} has no filled database: delete it, or name another folder.")
    if not counted.exists():
        with kept_server(folder) as server:
            if not filled.exists():
                made = asyncio.run(fill_new(server, submissions, ratings))
                filled.write_text(json.dumps(made))
            figures = asyncio.run(count(server))
        counted.write_text(json.dumps(figures))
    size: dict[str, int] = json.loads(filled.read_text())
    if size != {"submissions": submissions, "ratings": ratings}:
        raise SystemExit(
            f"{folder} has {size['ratings']:,} ratings of {size['submissions']:,} submissions."
        )
    return {**size, **json.loads(counted.read_text())}


async def fill_new(server: PostgresServer, submissions: int, ratings: int) -> dict[str, int]:
    world = RealTimeWorld(Database(server.url(server.create(name=NAME))))
    await upgrade(world.database)
    fresh = CALLERS * 200 + int(LOAD_S * LOAD_PER_S * 1.2)
    say(f"filling {ratings:,} ratings of {submissions:,} submissions")
    await fill(world.database, submissions, ratings, fresh)
    await world.competitions.put("open", rules(world))
    await world.database.close()
    return {"submissions": submissions, "ratings": ratings}


async def count(server: PostgresServer) -> dict[str, object]:
    """Count all that waits, and rank."""
    world = RealTimeWorld(Database(server.url(NAME)))
    await upgrade(world.database)  # it may have been kept by an earlier version
    async with world.database.read() as session:
        waiting = await session.scalar(text("SELECT count(*) FROM feedback WHERE NOT is_counted"))
    caught_up_s = await timed(lambda: catch_up(world))
    ranked_s = await timed(lambda: publish(world))
    say(f"counted in {caught_up_s:.0f} s, ranked in {ranked_s:.1f} s")
    await world.database.close()
    return {
        "counted_per_s": round(int(waiting or 0) / caught_up_s),
        "first_ranking_s": round(ranked_s, 2),
    }


async def measure(server: PostgresServer, *, is_lag_alone: bool) -> dict[str, object]:
    url = server.url(NAME)
    world = RealTimeWorld(Database(url))
    await upgrade(world.database)
    unrated = await unrated_conversations(world.database)
    gc.collect()
    gc.freeze()  # as the platform does when it has started
    figures: dict[str, object] = {}
    if not is_lag_alone:
        figures |= await leaderboard_ms(world)
        figures |= await recording(world, unrated[: CALLERS * 200])
    figures |= await following(world, url, unrated[CALLERS * 200 :])
    await world.database.close()
    return figures | {"cores": os.cpu_count()}


class RealTimeWorld(World):
    """The services as they are in a World, by the real clock."""

    def __init__(self, database: Database) -> None:
        self.now = SystemClock()
        super().__init__(database)
        self.clock.now = self.now.now  # type: ignore[method-assign]


def rules(world: World) -> CompetitionRequest:
    return CompetitionRequest(
        name="Open",
        starts_at=world.clock.now() - timedelta(days=365),
        ranking=RankingRule.COMBINED,
    )


async def catch_up(world: World) -> None:
    while not (await world.scores.counter.count_batch()).is_all:
        pass


async def publish(world: World) -> None:
    await StandingsPublisher(
        world.database, world.clock, world.competitions, world.submissions
    ).publish()


async def unrated_conversations(database: Database) -> list[str]:
    async with database.read() as session:
        rows = await session.scalars(
            text(f"SELECT id FROM conversations WHERE id LIKE '{CONVERSATIONS}-new-%' ORDER BY id")
        )
        return list(rows)


async def leaderboard_ms(world: World) -> dict[str, object]:
    """The query and its rows, and with them as the HTTP answer's JSON."""
    queries, answers = [], []
    for _ in range(100):
        began = time.perf_counter()
        board = await world.leaderboard.leaderboard()
        queries.append((time.perf_counter() - began) * 1_000)
        board.model_dump_json()
        answers.append((time.perf_counter() - began) * 1_000)
    return {
        "leaderboard_rows": len(board.rows),
        "leaderboard_ms": round(statistics.median(queries), 1),
        "leaderboard_p99_ms": round(sorted(queries)[-2], 1),
        "leaderboard_json_ms": round(statistics.median(answers), 1),
    }


async def recording(world: World, conversations: Sequence[str]) -> dict[str, object]:
    """Rate as fast as it goes, from callers that each wait for their answer."""
    began, cpu = time.perf_counter(), time.process_time()
    left = list(conversations)

    async def caller() -> None:
        while left:
            await world.feedback.rate(BACKEND, left.pop(), FeedbackRequest(thumbs_up=True))

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    wall = time.perf_counter() - began
    return {
        "recorded_per_s": round(len(conversations) / wall),
        "recording_cores": round((time.process_time() - cpu) / wall, 2),
    }


async def following(world: World, url: str, conversations: Sequence[str]) -> dict[str, object]:
    """Measure how long after a rating was recorded the leaderboard shows it, at LOAD_PER_S ratings a second."""
    process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
        [sys.executable, __file__, "--follow", url]
    )
    left = list(conversations)
    try:
        await until_counted(world)
        await lag_s(world, left.pop())  # once the first ranking has read everything
        load = asyncio.create_task(offer(world, left))
        lags = []
        for _ in range(int(LOAD_S / PROBE_EVERY_S)):
            await asyncio.sleep(PROBE_EVERY_S)
            lags.append(await lag_s(world, left.pop()))
        sent = await load
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    return {
        "offered_per_s": round(sent / LOAD_S),
        "lags_s": [round(lag, 2) for lag in lags],
        "lag_median_s": round(statistics.median(lags), 2),
        "lag_max_s": round(max(lags), 2),
    }


async def offer(world: World, left: list[str]) -> int:
    """A steady stream for LOAD_S; how many were recorded in that time."""
    began, sent, running = time.perf_counter(), 0, set()
    while (passed := time.perf_counter() - began) < LOAD_S:
        while sent < passed * LOAD_PER_S and left:
            request = FeedbackRequest(thumbs_up=sent % 2 == 0)
            task = asyncio.create_task(world.feedback.rate(BACKEND, left.pop(), request))
            running.add(task)
            task.add_done_callback(running.discard)
            sent += 1
        await asyncio.sleep(TICK_S / 10)
    sent -= len(running)
    await asyncio.gather(*running)
    return sent


async def lag_s(world: World, conversation: str) -> float:
    """Time one rating more, for a submission whose ratings and standing are watched."""
    recorded = await world.feedback.rate(BACKEND, conversation, FeedbackRequest(thumbs_up=True))
    began = time.perf_counter()
    async with world.database.read() as session:
        submission = await session.scalar(
            text("SELECT submission_id FROM feedback WHERE id = :id"), {"id": recorded.feedback_id}
        )
    counted = text("SELECT is_counted FROM feedback WHERE id = :id")
    standing = text("SELECT metrics FROM standings WHERE submission_id = :id")
    tally = text("SELECT tally FROM scores WHERE submission_id = :id")

    async def is_counted() -> bool:
        async with world.database.read() as session:
            return bool(await session.scalar(counted, {"id": recorded.feedback_id}))

    await until(is_counted)
    async with world.database.read() as session:
        wanted = json.loads(str(await session.scalar(tally, {"id": submission})))["rated"]

    async def is_shown() -> bool:
        async with world.database.read() as session:
            metrics = json.loads(str(await session.scalar(standing, {"id": submission})))
        return bool(metrics["feedback_count"] >= wanted)

    await until(is_shown)
    return time.perf_counter() - began


async def until_counted(world: World) -> None:
    async def has_none() -> bool:
        return not await world.scores.counter.has_work()

    await until(has_none)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(300):
        while not await holds():  # noqa: ASYNC110 - another process brings it about
            await asyncio.sleep(TICK_S)


async def follow(url: str) -> None:
    """The second process: what a worker does, with the collections of garbage and the switches of threads of one."""
    world = RealTimeWorld(Database(url))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    garbage = GarbageCollection(lambda: 0)
    garbage.start()
    sys.setswitchinterval(SWITCH_S)
    await world.scores.loop.start()
    await stopped.wait()
    await garbage.stop()
    with suppress(asyncio.CancelledError):
        await world.scores.loop.stop()
    await world.database.close()


async def timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def show(figures: dict[str, object]) -> None:
    for name, figure in figures.items():
        print(f"{name:24} {figure}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
