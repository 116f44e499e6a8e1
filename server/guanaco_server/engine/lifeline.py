"""Exit when the platform that started this process is gone.

The platform holds an exclusive lock on a file for as long as it lives; the kernel drops it even after
kill -9. A process that can take the lock as well, for a whole grace period, has no platform any more:

    held → (free for grace_s) → SIGTERM to the own process group → (STOP_S later) → SIGKILL

The grace period lets a platform that restarts find its model servers again.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from pathlib import Path

PATH_VARIABLE = "GUANACO_LIFELINE"
GRACE_VARIABLE = "GUANACO_LIFELINE_GRACE_S"
POLL_S = 1.0
STOP_S = 5.0  # vLLM takes 0.4 s to stop


def named() -> Path | None:
    """Return the lifeline that the environment names."""
    path = os.environ.get(PATH_VARIABLE)
    return Path(path) if path else None


def hold() -> threading.Thread | None:
    """Watch the lifeline named by the environment from a background thread; without one, do nothing.

    A process is confined before: what a thread may do is settled when it starts.
    """
    path = os.environ.get(PATH_VARIABLE)
    if not path:
        return None
    grace_s = float(os.environ.get(GRACE_VARIABLE, "0"))
    thread = threading.Thread(target=_watch, args=(path, grace_s), name="lifeline", daemon=True)
    thread.start()
    return thread


def is_held(path: str) -> bool:
    """Return whether a platform holds the lock; a lock file that was removed is held by nobody."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _watch(path: str, grace_s: float) -> None:
    free_since: float | None = None
    while True:
        now = time.monotonic()
        if is_held(path):
            free_since = None
        elif free_since is None:
            free_since = now
        if free_since is not None and now - free_since >= grace_s:
            break
        time.sleep(POLL_S)
    os.killpg(0, signal.SIGTERM)
    time.sleep(STOP_S)
    os.killpg(0, signal.SIGKILL)
