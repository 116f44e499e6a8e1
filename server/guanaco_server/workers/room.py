"""Builds the workers room: which worker processes live, and what each does alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from guanaco_server.database.database import Database
from guanaco_server.runtime.clock import Clock
from guanaco_server.settings import Settings
from guanaco_server.workers.absence import WorkerAbsences
from guanaco_server.workers.heartbeat import Heartbeat, Loop, TakeOver
from guanaco_server.workers.service import WorkerService


@dataclass(frozen=True)
class WorkersRoom:
    workers: WorkerService
    absences: WorkerAbsences

    def heartbeat(
        self, take_over: TakeOver, duties: Sequence[Loop], note_duty: Callable[[bool], None]
    ) -> Heartbeat:
        """Return the loop of a worker process; ``duties`` run in one worker at a time."""
        return Heartbeat(self.workers, take_over, duties, note_duty)


def build_workers(database: Database, clock: Clock, *, settings: Settings) -> WorkersRoom:
    return WorkersRoom(
        WorkerService(database, clock, settings.executor_id, settings.worker_silence_s),
        WorkerAbsences(
            database, clock, settings.worker_silence_s, is_needed=settings.role != "all"
        ),
    )
