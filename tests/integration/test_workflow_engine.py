"""DBOS rests while no run is in progress, and goes on where it was."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from dbos import DBOS, SetWorkflowID

from guanaco_server.runtime.waiting import happens
from guanaco_server.submissions.pipeline.engine import QUEUE, WorkflowEngine
from tests.fixtures.world import eventually


async def has_no_thread_but(before: set[threading.Thread]) -> bool:
    """Return whether DBOS has no thread. On a busy machine one may end a moment after it was told to."""
    left = {one.name for one in set(threading.enumerate()) - before}
    return not any("dbos-background" in name or "queue" in name for name in left)


@pytest.mark.both_databases
@pytest.mark.slow
async def test_dbos_has_no_threads_while_it_rests(database_url: str) -> None:
    ended: list[str] = []
    has_ended = asyncio.Event()

    async def work(submission_id: str, _number: int) -> str:
        ended.append(submission_id)
        has_ended.set()
        return "done"

    engine = WorkflowEngine(
        work,
        database_url=database_url.replace("+aiosqlite", ""),
        executor_id="one",
        concurrency=1,
    )
    before = set(threading.enumerate())
    for name in ("first", "second"):
        await engine.launch()
        await engine.launch()  # changes nothing
        with SetWorkflowID(name):
            await DBOS.enqueue_workflow_async(QUEUE, engine.workflow, name, 1)
        assert await happens(60, has_ended)
        has_ended.clear()
        await engine.rest()
        await eventually(partial(has_no_thread_but, before))
    await engine.rest()
    assert ended == ["first", "second"]
    assert await asyncio.to_thread(lambda: "somebody else's work") == "somebody else's work"


async def test_on_sqlite_dbos_writes_ahead(tmp_path: Path) -> None:
    file = tmp_path / "workflows.db"
    engine = WorkflowEngine(
        _no_work, database_url=f"sqlite:///{file}", executor_id="one", concurrency=1
    )
    await engine.launch()
    await engine.rest()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def _no_work(_submission_id: str, _number: int) -> str:
    return "done"
