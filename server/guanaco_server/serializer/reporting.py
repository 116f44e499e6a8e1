"""Says what a job is doing, and why it failed, in words that the platform knows: one JSON object a line on stdout."""

from __future__ import annotations

import errno
import json
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


NO_MEMORY = (
    "not enough memory",
    "can't start new thread",
    "Cannot allocate memory",
    "Resource temporarily unavailable",
    "bad_alloc",
    "failed to map segment",
)
HUB_CLIENTS = ("huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2", "hf_xet")
INTERVAL_S = 2.0


class JobFailed(Exception):  # the job's verdict, not a programming error
    """``code`` is one of disk_full, corrupt_weights, unsupported_tokenizer, bad_chat_template, hub_unreachable,
    out_of_memory, serializer_died."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def diagnose(error: BaseException) -> JobFailed:
    """Translate any exception. Libraries wrap the cause in their own exceptions, so the whole chain is read."""
    chain = list(_causes(error))
    for cause in chain:
        if isinstance(cause, JobFailed):
            return cause
    if any(_is_full_disk(cause) for cause in chain):
        return JobFailed("disk_full", "The disk is full: there is no room for the model's files.")
    if any(_is_out_of_memory(cause) for cause in chain) or _is_at_memory_limit():
        return JobFailed("out_of_memory", "The serializer needs more memory than it was given.")
    if from_the_hub := [cause for cause in chain if _is_from_the_hub(cause)]:
        why = _sentence(
            from_the_hub[-1]
        )  # the innermost: huggingface_hub speaks of its cache around it
        return JobFailed("hub_unreachable", f"The Hub did not deliver the files: {why}")
    return JobFailed(
        "serializer_died", f"The serializer failed: {type(error).__name__}: {_sentence(error)}"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _is_full_disk(error: BaseException) -> bool:
    is_errno = isinstance(error, OSError) and error.errno in NO_SPACE
    return is_errno or "No space left on device" in str(error)  # hf-xet gives only the text


def _is_out_of_memory(error: BaseException) -> bool:
    """Torch's allocator, threads, C++ and the system each say it in their own way."""
    is_errno = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or is_errno or any(t in str(error) for t in NO_MEMORY)


def _is_at_memory_limit() -> bool:
    """Whatever failed, failed for want of memory: a library may say anything then."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    used = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return limit != resource.RLIM_INFINITY and used is not None and int(used[1]) * 1024 > limit


def _is_from_the_hub(error: BaseException) -> bool:
    module = type(error).__module__.partition(".")[0]
    is_broken_off = isinstance(error, OSError) and "Consistency check failed" in str(error)
    return is_broken_off or module in HUB_CLIENTS


def _sentence(error: BaseException) -> str:
    """Return the first line; the rest is for programmers."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


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
        self._reported_at = time.monotonic()
        self._done_bytes = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Thread-safe."""
        with self._lock:
            self._done_bytes += count
            self.at(self._done_bytes)

    def at(self, done_bytes: int) -> None:
        now = time.monotonic()
        if now - self._reported_at >= INTERVAL_S:
            self._reported_at = now
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
