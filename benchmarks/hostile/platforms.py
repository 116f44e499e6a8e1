"""The platform that `make bench-hostile` attacks: one process, as `guanaco up` is by itself, or roles apart, as a public one runs.

together    one process with SQLite, on which the pipeline and the chats share an interpreter and a writer
apart       `up --role api` and `up --role worker` over a PostgreSQL that waits for the disk
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fixtures.platform_clients import PlatformClients
from tests.fixtures.postgres import running_server
from tests.fixtures.roles import Roles
from tests.fixtures.up import BRIEF_STRESS, SCRIPTED_ENGINE, Up

LAYOUTS = ("together", "apart")
NO_QUOTAS = {f"quota_{name}": "0" for name in ("per_hour", "live", "in_progress")}


class Attacked(PlatformClients):
    """``pid`` is the process with the chats; ``beside`` are the others of the platform, by what they are."""

    def __init__(
        self, base_url: str, admin_key: str, pid: int, logs: Sequence[Path], beside: dict[str, int]
    ) -> None:
        super().__init__(base_url, admin_key)
        self.pid = pid
        self.beside = beside
        self._logs = logs

    @property
    def log(self) -> str:
        return "\n".join(path.read_text() for path in self._logs)


@contextlib.contextmanager
def started(
    layout: str, folder: Path, hub_url: str, engine_python: Path, concurrency: int
) -> Iterator[Attacked]:
    """Start it as an operator does, not forked from a process that shares its memory."""
    settings: dict[str, Any] = {
        "hub_endpoint": hub_url,
        "engine_command": SCRIPTED_ENGINE,
        "engine_python": str(engine_python),
        "pipeline_concurrency": concurrency,
        **BRIEF_STRESS,
    }
    with contextlib.ExitStack() as ends:
        attacked = (
            _together(folder, settings, ends)
            if layout == "together"
            else _apart(folder, settings, ends)
        )
        ends.callback(attacked.close_clients)
        yield attacked


def _together(folder: Path, settings: dict[str, Any], ends: contextlib.ExitStack) -> Attacked:
    up = Up(folder / "up", **settings)
    up.start(is_cold=True)
    ends.callback(up.stop)
    assert up.process is not None
    return Attacked(up.base_url, up.admin_key, up.process.pid, [up.folder / "up.log"], {})


def _apart(folder: Path, settings: dict[str, Any], ends: contextlib.ExitStack) -> Attacked:
    durable = running_server(fsync="on", synchronous_commit="on", full_page_writes="on")
    database = ends.enter_context(durable)
    own = folder / "roles"
    own.mkdir()
    url = database.url(database.create())
    roles = ends.enter_context(
        Roles(own, database_url=url, log_format="text", **settings, **NO_QUOTAS)
    )
    roles.migrate()
    worker = roles.launch("worker", "worker", is_cold=True)
    api = roles.wait(roles.launch("api", "api", is_cold=True))
    roles.wait(worker)
    beside = {"worker": worker.process.pid, "database": database.process.pid}
    logs = [own / "api.log", own / "worker.log"]
    return Attacked(api.base_url, roles.first_key(), api.process.pid, logs, beside)
