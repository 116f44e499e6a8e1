"""Launches DBOS, which runs the workflows, and lets it rest while there are none.

DBOS 3.4 has threads that ask its database for work each second, whatever there is: 0.5 to 1 % of a core. It has no way
to be told instead, but it may be launched and destroyed any number of times: 20 ms on the event loop, once its tables
are there. What it keeps is in the database, so that nothing is lost by it. It is imported at the first launch (12 MB).
"""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import make_url

from guanaco_server.runtime import threads

if TYPE_CHECKING:
    from dbos import DBOSConfig

QUEUE = "submissions"
WORKFLOW_VERSION = "2"  # of the workflow's own steps, not of the stages: see decision 0016
QUEUE_POLL_S = 0.1
# No workflow sends DBOS's notifications to another. On SQLite ``destroy`` waits for as long as the first, on PostgreSQL
# a thread wakes as often as the second says, 100 times a second by default.
NOTIFICATIONS_POLL_S = 0.2
NOTIFICATIONS_SENT_S = 0.2
MAX_RECOVERIES = 1_000  # a submission outlives any number of restarts

Work = Callable[[str, int], Coroutine[Any, Any, str]]


class WorkflowEngine:
    """DBOS of this process; there is one, because DBOS keeps its registry in a global."""

    def __init__(
        self, work: Work, *, database_url: str, executor_id: str, concurrency: int
    ) -> None:
        """``work`` is the workflow, of a submission and the number of its run."""
        self._work = work
        self._concurrency = concurrency
        self._database_url = database_url
        self._executor_id = executor_id
        self._has_tables = False
        self._is_launched = False
        self._lock = asyncio.Lock()
        self.workflow: Work = work

    @property
    def is_on_sqlite(self) -> bool:
        return self._database_url.startswith("sqlite")

    async def launch(self) -> None:
        """Have workflows run from now on, first those that this executor left; do nothing if they do already.

        It takes the thread of the event loop, to which DBOS then brings the workflows.
        """
        async with self._lock:
            if self._is_launched:
                return
            await threads.FILES.run(importlib.import_module, "dbos")
            if self.is_on_sqlite and not self._has_tables:
                await threads.FILES.run(_use_log, self._database_url)
            from dbos import DBOS

            DBOS(config=self._config())

            @DBOS.workflow(name="submission_pipeline", max_recovery_attempts=MAX_RECOVERIES)
            async def submission_pipeline(submission_id: str, number: int) -> str:
                return await self._work(submission_id, number)

            try:
                DBOS.launch()
                await DBOS.register_queue_async(
                    QUEUE, worker_concurrency=self._concurrency, polling_interval_sec=QUEUE_POLL_S
                )
            except BaseException:
                await self._destroy()
                raise
            self.workflow = submission_pipeline
            self._is_launched = True
            self._has_tables = True

    async def rest(self) -> None:
        """Have no workflow run from now on; those under way go on after the next launch."""
        async with self._lock:
            if not self._is_launched:
                return
            await self._destroy()
            self._is_launched = False

    def _config(self) -> DBOSConfig:
        from dbos import DBOSPortableJSONSerializer

        return {
            "name": "guanaco",
            "system_database_url": self._database_url,
            "application_version": WORKFLOW_VERSION,
            "executor_id": self._executor_id,
            "serializer": DBOSPortableJSONSerializer(),  # it would pickle otherwise
            "log_level": "ERROR",
            "notification_listener_polling_interval_sec": NOTIFICATIONS_POLL_S,
            "notification_coalesce_sec": NOTIFICATIONS_SENT_S,
            "run_migrations": not self._has_tables,
        }

    async def _destroy(self) -> None:
        from dbos import DBOS

        # DBOS has made its own executor the loop's, and shuts it down: whoever comes after needs one.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        await threads.FILES.run(DBOS.destroy, destroy_registry=True)


def _use_log(database_url: str) -> None:
    """Have SQLite write ahead. DBOS leaves it a journal, which each commit makes and deletes: three trips to the disk, where this takes one.

    The same disk is waited for by what chats write. The file keeps the mode.
    """
    file = make_url(database_url).database
    with closing(sqlite3.connect(str(file))) as connection, suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode=WAL")


def make_tables(database_url: str) -> None:
    """Make DBOS's tables, as the first launch would."""
    from dbos import DBOS

    DBOS.migrate(database_url)
