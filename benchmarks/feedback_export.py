"""Measures how fast feedback is exported and anonymized, on PostgreSQL: the figures of docs/benchmarks.md.

    make bench-export ARGS=--ratings=100000

A `guanaco up` serves the export over HTTP; the client counts lines and throws them away. Prints a table, then one
line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg

from guanaco import Client
from guanaco.accounts import Role
from guanaco.chat import Bot, Message, Sender, Timings
from guanaco.feedback import Feedback
from guanaco.prompts import PromptFormatter
from guanaco.submissions import GenerationParams, Status
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import complete_metadata
from guanaco_server.feedback.copies import VERSION
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.postgres import running_server
from tests.fixtures.up import Up

SUBMISSION = "bench-export_v1"
MESSAGES = 6
ANONYMIZED = 2_000  # ratings that go through the real anonymizer
MIB = 1024**2
WORDS = [
    "the", "sea", "was", "calm", "that", "evening", "and", "nobody", "had", "seen", "a", "ship", "for", "days",
    "so", "we", "sat", "by", "the", "fire", "and", "told", "each", "other", "stories", "about", "lamps",
    "storms", "birds", "letters", "and", "the", "long", "way", "home", "in", "1999", "or", "at", "10:30",
    "with", "3", "friends",
]  # fmt: skip
AT = datetime(2026, 1, 1, tzinfo=UTC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ratings", type=int, default=100_000)
    ratings = parser.parse_args().ratings
    with running_server() as server:
        name = server.create()
        figures = bench_export(server.url(name), ratings)
    for label, value in figures.items():
        print(f"{label:32} {value:>12,}")
    print(json.dumps(figures))


def bench_export(url: str, ratings: int = 100_000) -> dict[str, Any]:
    """The figures for an empty PostgreSQL database at a SQLAlchemy URL."""
    with tempfile.TemporaryDirectory() as folder:
        up = Up(Path(folder), database_url=url.replace("+psycopg", ""))
        up.start()
        try:
            developer = up.client(Role.DEVELOPER, "bench")
            up.client(Role.BACKEND, "bench-app")
            asyncio.run(_fill(url, ratings))
            assert up.process is not None
            return {
                "ratings": ratings,
                "messages_each": MESSAGES,
                "cores": os.cpu_count() or 0,
                **_export(developer, up.process.pid, "jsonl"),
                **_export(developer, up.process.pid, "csv"),
                **_export(developer, up.process.pid, "parquet"),
                "anonymized_per_s": _anonymize(url),
            }
        finally:
            up.stop()


def _export(developer: Client, pid: int, form: str) -> dict[str, float]:
    address = developer.transport.address
    path = f"{address.url}/api/v1/submissions/{SUBMISSION}/feedback/export?format={form}"
    size, lines, started = 0, 0, time.perf_counter()
    with (
        _growth(pid) as growth,
        httpx.stream(
            "GET", path, headers={"Authorization": f"Bearer {address.key}"}, timeout=120
        ) as answer,
    ):
        answer.raise_for_status()
        for chunk in answer.iter_raw():
            size += len(chunk)
            lines += chunk.count(b"\n")
    elapsed_s = time.perf_counter() - started
    figures = {
        f"{form}_s": round(elapsed_s, 2),
        f"{form}_mib": round(size / MIB, 1),
        f"{form}_rss_growth_mib": round(growth[-1] / MIB, 1),
        f"{form}_late_growth_mib": round((growth[-1] - growth[len(growth) // 4]) / MIB, 1),
    }
    return figures | ({"jsonl_per_s": round(lines / elapsed_s)} if form == "jsonl" else {})


@contextmanager
def _growth(pid: int) -> Iterator[list[int]]:
    """Note how much the process has grown since the beginning, as a running maximum: 20 looks a second."""
    process, found, is_over = psutil.Process(pid), [0], threading.Event()
    before = process.memory_info().rss

    def look() -> None:
        while not is_over.wait(0.05):
            found.append(max(found[-1], process.memory_info().rss - before))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def _anonymize(url: str) -> int:
    """Ratings a second, from being in the database to being readable: with their conversations, by the running platform."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        row = connection.execute("SELECT max(number) FROM feedback_copies").fetchone()
        assert row is not None
        connection.execute("DELETE FROM feedback_copies WHERE number > %s", (row[0] - ANONYMIZED,))
        connection.execute(
            "UPDATE feedback SET anonymized_by = 0 WHERE id NOT IN (SELECT feedback_id FROM feedback_copies)"
        )
    started = time.perf_counter()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        waiting = "SELECT count(*) FROM feedback WHERE anonymized_by = 0"
        while connection.execute(waiting).fetchone() != (0,):
            time.sleep(0.02)
    return round(ANONYMIZED / (time.perf_counter() - started))


async def _fill(url: str, ratings: int) -> None:
    complete_metadata()
    database = Database(url)
    try:
        await _add_submission(database)
    finally:
        await database.close()
    await asyncio.to_thread(_copy_in, url.replace("+psycopg", ""), ratings)


async def _add_submission(database: Database) -> None:
    async with database.write() as session:
        session.add(
            SubmissionRow(
                id=SUBMISSION,
                account_id=await _account(session, "bench"),
                developer="bench",
                repo="bench/export",
                name="export",
                status=Status.TORN_DOWN,
                params=GenerationParams(),
                formatter=PromptFormatter(),
                request_hash="",
                created_at=AT,
                updated_at=AT,
            )
        )


async def _account(session: Any, name: str) -> str:
    from sqlalchemy import text

    found: str = await session.scalar(
        text("SELECT id FROM accounts WHERE name = :name"), {"name": name}
    )
    return found


def _copy_in(url: str, ratings: int) -> None:
    """Conversations, messages, ratings and copies, each table in one COPY."""
    chance = random.Random(7)
    everything = [_rating(number, chance) for number in range(min(ratings, 1_000))]
    bot = Bot(name="Luna").model_dump_json()
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        row = cursor.execute("SELECT id FROM accounts WHERE name = 'bench-app'").fetchone()
        assert row is not None
        columns = "id, account_id, submission_id, user_id, user_name, competition, bot, created_at, message_count"
        with cursor.copy(f"COPY conversations ({columns}) FROM STDIN") as copy:
            for number in range(ratings):
                copy.write_row(
                    (f"conv_{number}", row[0], SUBMISSION, f"u{number % 5_000}", "Sam", "open", bot, AT, MESSAGES)
                )  # fmt: skip
        columns = "id, conversation_id, position, sender, content, created_at, is_deleted"
        with cursor.copy(f"COPY messages ({columns}) FROM STDIN") as copy:
            for number in range(ratings - ANONYMIZED, ratings):
                for place, message in enumerate(everything[number % len(everything)].messages):
                    copy.write_row(
                        (f"msg_{number}_{place}", f"conv_{number}", place, message.sender.value, message.content, AT, False)
                    )  # fmt: skip
        columns = "id, conversation_id, submission_id, user_id, competition, bot_name, thumbs_up, text, created_at, anonymized_by"
        with cursor.copy(f"COPY feedback ({columns}) FROM STDIN") as copy:
            for number in range(ratings):
                one = everything[number % len(everything)]
                copy.write_row(
                    (f"fb_{number}", f"conv_{number}", SUBMISSION, f"u{number % 5_000}", "open", "Luna", one.thumbs_up, one.text, AT, VERSION)
                )  # fmt: skip
        columns = "feedback_id, submission_id, pseudonym, bot_name, thumbs_up, rated_at, length, words, document"
        with cursor.copy(f"COPY feedback_copies ({columns}) FROM STDIN") as copy:
            for number in range(ratings):
                one = everything[number % len(everything)].model_copy(
                    update={"id": f"fb_{number}", "conversation_id": f"conv_{number}"}
                )
                copy.write_row(
                    (one.id, SUBMISSION, one.user, "Luna", one.thumbs_up, AT, MESSAGES, one.text, one.model_dump_json())
                )  # fmt: skip
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ANALYZE")


def _rating(number: int, chance: random.Random) -> Feedback:
    messages = [
        Message(
            id=f"msg_{number}_{place}",
            sender=Sender.BOT if place % 2 else Sender.USER,
            content=" ".join(chance.choices(WORDS, k=20)),
            at=AT + timedelta(seconds=place),
            timings=Timings(ttft_ms=31.5, total_ms=412.25) if place % 2 else None,
        )
        for place in range(MESSAGES)
    ]
    return Feedback(
        id=f"fb_{number}",
        submission_id=SUBMISSION,
        conversation_id=f"conv_{number}",
        user=f"user_{number % 5_000:012x}",
        bot_name="Luna",
        thumbs_up=chance.random() < 0.7,
        text=" ".join(chance.choices(WORDS, k=8)),
        at=AT,
        length=MESSAGES,
        params=GenerationParams(),
        messages=messages,
    )


if __name__ == "__main__":
    main()
