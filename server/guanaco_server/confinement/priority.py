"""The priority of this machine's processes: what serves people comes before what is only prepared for them.

    serving     the platform, model servers that answer                     the platform's own priority
    starting    model servers until they answer                             lower, and raised when they answer
    preparing   serializer jobs, checks and trials of what strangers wrote  lower, for good

Linux has two numbers for it. The *nice* value of a process can be lowered by nobody but root, and those who have
CAP_SYS_NICE or an RLIMIT_NICE. Where the kernel groups processes by session (*autogroup*, sched(7)) it compares only
processes of one session by it, and the nice value of the group counts, which everybody may set both ways. Every process
that is meant here leads a session, so both are set. See decision 0039.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from pathlib import Path

LOWER_BY = 10  # a tenth of the processor beside one that serves, and all of it where nothing does
LOWEST = 19
AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")


def lower(pid: int) -> None:
    """Lower the priority of a process, and of what it will start, for good."""
    _set_nice(os.PRIO_PROCESS, pid, _lower_nice())
    _set_group_nice(pid, LOWER_BY)


def lower_until_raised(pid: int, by: int = LOWER_BY) -> None:
    """Lower the priority of a process that leads a session. Nothing where it could not be raised again."""
    if may_raise():
        _set_nice(os.PRIO_PROCESS, pid, _lower_nice(by))
    _set_group_nice(pid, by)


def restore_priority(pid: int) -> bool:
    """Give a session's leader, its threads and its children the platform's priority. False where that has to be tried again."""
    if may_raise():
        _set_nice(os.PRIO_PGRP, pid, _nice())
    return _set_group_nice(pid, 0)


def has_groups() -> bool:
    """Tell whether the kernel shares the processors out among sessions."""
    try:
        return AUTOGROUP.read_text().strip() == "1"
    except OSError:
        return False


@cache
def may_raise() -> bool:
    """Tell whether a nice value that was raised can be lowered again; a thread that ends at once tries it."""
    may = []

    def attempt() -> None:
        thread, before = threading.get_native_id(), _nice()
        os.setpriority(os.PRIO_PROCESS, thread, min(LOWEST, before + 1))
        may.append(_set_nice(os.PRIO_PROCESS, thread, before))

    trial = threading.Thread(target=attempt)
    trial.start()
    trial.join()
    return all(may) and bool(may)


def _nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, os.getpid())


def _lower_nice(by: int = LOWER_BY) -> int:
    return min(LOWEST, _nice() + by)


def _set_nice(kind: int, who: int, nice: int) -> bool:
    """Set the priority. Return False if the process is gone already, or may not be changed."""
    try:
        os.setpriority(kind, who, nice)
    except OSError:
        return False
    return True


def _set_group_nice(pid: int, nice: int) -> bool:
    """False where the kernel wants to be asked later: others than root may change one group in a tenth of a second."""
    if not has_groups():
        return True
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
