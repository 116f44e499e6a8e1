"""Hides secrets of the environment from /proc/PID/environ, which shows what a process was started with.

They stay in ``os.environ`` for as long as the caller leaves them there.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

from guanaco_server.confinement.kernel import IS_LINUX, PR_SET_DUMPABLE, prctl

SECRET = re.compile(
    r"(?i).*(token|secret|password|passwd|credential|api_key|access_key|pseudonym_key|private_key|ticket|artifact_urls|database_url).*"
)
# Fields of /proc/self/stat, counted after the name, which may hold spaces.
ENVIRONMENT_START, ENVIRONMENT_END = 47, 48


def hide_secrets() -> None:
    """Overwrite the values of all variables whose names look like a secret's; the C library keeps a copy elsewhere."""
    if not IS_LINUX:
        return
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[ENVIRONMENT_START]), int(fields[ENVIRONMENT_END])
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator and value and SECRET.fullmatch(os.fsdecode(name)):
            kept = os.environ.get(os.fsdecode(name))
            if kept is not None:
                os.environ[os.fsdecode(name)] = kept
            ctypes.memset(at + len(name) + 1, ord("*"), len(value))
        at += len(entry) + 1


def hide_memory() -> None:
    """Let no other process of the same user look into this one: neither by ptrace nor in /proc. It writes no core file."""
    if IS_LINUX:
        prctl(PR_SET_DUMPABLE, 0)
