"""The memory limit of a model server that runs without a container's: a config that lies must not take the machine's memory.

On the CPU the kernel holds each process to it (RLIMIT_DATA). On a GPU the driver reserves more addresses than there is
memory, so there a thread looks once a second at what all processes of the server have together, and ends them.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MEMORY_VARIABLE = "GUANACO_ENGINE_MEMORY"
POLL_S = 1.0
PRIVATE = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)


def limit_memory(is_kernels: bool) -> None:
    """Take the limit that the environment names, if any, upon this process and all that it starts."""
    if given := os.environ.get(MEMORY_VARIABLE):
        if is_kernels:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            wanted = int(given) if hard == resource.RLIM_INFINITY else min(int(given), hard)
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))
        else:
            threading.Thread(target=_watch, args=(int(given),), name="memory", daemon=True).start()


def _watch(limit_bytes: int) -> None:
    while sum(_private_bytes()) <= limit_bytes:
        time.sleep(POLL_S)
    print(
        f"The model server takes more than {limit_bytes:,} bytes of memory: it is stopped.",
        flush=True,
    )
    os.killpg(0, signal.SIGKILL)


def _private_bytes() -> Iterator[int]:
    """Give the private bytes of each process of the group, which the platform made for this server."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(folder.name)) != os.getpgrp():
                continue
            if found := PRIVATE.search((folder / "status").read_text()):
                yield int(found[1]) * 1024
