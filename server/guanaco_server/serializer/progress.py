"""What a serializer job says while it works: one JSON object a line on stdout."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERVAL_S = 2.0


def say(message: str, *, done_bytes: int | None = None, total_bytes: int | None = None) -> None:
    line: dict[str, str | int] = {"level": "info", "message": message}
    if done_bytes is not None and total_bytes is not None:
        line |= {"done_bytes": done_bytes, "total_bytes": total_bytes}
    _print(line)


def say_failed(code: str, message: str) -> None:
    """The last line of a job that failed."""
    _print({"error": code, "message": message})


class Counter:
    """Says how far a long task is, at most every INTERVAL_S."""

    def __init__(self, doing: str, total_bytes: int) -> None:
        self._doing = doing
        self._total_bytes = total_bytes
        self._said_at = time.monotonic()
        self._done_bytes = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Thread-safe."""
        with self._lock:
            self._done_bytes += count
            self.at(self._done_bytes)

    def at(self, done_bytes: int) -> None:
        now = time.monotonic()
        if now - self._said_at >= INTERVAL_S:
            self._said_at = now
            amount = f"{done_bytes / 1e6:,.1f} of {self._total_bytes / 1e6:,.1f} MB"
            say(f"{self._doing}: {amount}", done_bytes=done_bytes, total_bytes=self._total_bytes)


@contextmanager
def watching(counter: Counter, measure: Callable[[], int]) -> Iterator[None]:
    """Counts from a thread, for a task that does not count itself."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(INTERVAL_S):
            counter.at(measure())

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _print(line: dict[str, str | int]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
