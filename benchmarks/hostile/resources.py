"""Measures a machine during an attack: processor time by party, time that another machine took, memory."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import psutil


class ProcessorTime:
    """How many processors each party has kept busy since this was made; ``others`` are programs that have nothing to do with it.

    ``beside`` are further processes of the platform, each counted with its children.
    """

    def __init__(self, platform: int, chats: int, watch: int, beside: Mapping[str, int]) -> None:
        self._platform, self._chats, self._watch = platform, chats, watch
        self._beside = beside
        self._begun = time.monotonic()
        self._before = self._seconds()

    def used(self) -> dict[str, float]:
        took_s, now = time.monotonic() - self._begun, self._seconds()
        used = {name: max(0.0, now[name] - self._before[name]) / took_s for name in now}
        machine = used.pop("machine")
        used["others"] = max(0.0, machine - sum(used.values()))
        return {name: round(share, 2) for name, share in used.items()}

    def _seconds(self) -> dict[str, float]:
        platform = psutil.Process(self._platform)
        loop_s, machine = _ran_s(self._platform), psutil.cpu_times()
        children = [_with_ended_s(one.pid) for one in platform.children(recursive=True)]
        beside = {name: _with_children_s(pid) for name, pid in self._beside.items()}
        return beside | {
            "loop": loop_s,
            "threads": _own_processor_s(self._platform) - loop_s,
            "children": sum(children)
            + _with_ended_s(self._platform)
            - _own_processor_s(self._platform),
            "chats": _with_ended_s(self._chats),
            "watch": _with_ended_s(self._watch),
            "attackers": _with_ended_s(os.getpid()),
            "machine": float(machine.user + machine.nice + machine.system),
        }


def _ran_s(thread: int) -> float:
    """Return the processor time of a process's first thread: the first of the kernel's figures, in ns."""
    return int(Path(f"/proc/{thread}/task/{thread}/schedstat").read_text().split()[0]) / 1e9


def _own_processor_s(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def _with_ended_s(pid: int) -> float:
    """Return a process's processor time and that of its children that have ended."""
    try:
        used = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(used.user + used.system + used.children_user + used.children_system)


def _with_children_s(pid: int) -> float:
    family = [pid, *(one.pid for one in psutil.Process(pid).children(recursive=True))]
    return sum(map(_with_ended_s, family))


def stolen_s() -> float:
    """Return for how long another machine on the same host had this one's processors; see proc_stat(5). No process's figures show it."""
    return float(psutil.cpu_times().steal)


@contextlib.contextmanager
def most_memory(pid: int, beside: Collection[int]) -> Iterator[list[int]]:
    """Yield the most memory of a process, and of it with those beside and all children, in bytes: two looks a second."""
    most, is_over = [0, 0], threading.Event()

    def look() -> None:
        process, others = psutil.Process(pid), list(map(psutil.Process, beside))
        while not is_over.wait(0.5):
            with contextlib.suppress(psutil.Error):
                own = process.memory_info().rss
                further = [*others]
                for root in (process, *others):
                    further += root.children(recursive=True)
                rest = 0
                for one in further:
                    with contextlib.suppress(psutil.Error):
                        rest += one.memory_info().rss
                most[:] = max(most[0], own), max(most[1], own + rest)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        is_over.set()
        thread.join()
