"""A model server that is started before anybody knows its model: vLLM's imports are most of what a start takes.

    python -m guanaco_server.engine.warm ORDER [padding]

    imports ──▶ waits ── a line on the standard input ──▶ reads its order from the file descriptor ORDER ──▶ serves
                  └── the standard input ends: the platform is gone ──▶ ends

Afterwards it cannot be told from a server that was started with its order: its command line, its marker, its log, its
folder and its confinement are the same. It is confined after the imports, before it reads the first byte of a stranger.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import sys
from pathlib import Path
from typing import Any

from guanaco_server.engine import lifeline, serve

MODULE = "guanaco_server.engine.serve"  # the module that serves; what others see as its command
# The first of four fields of /proc/self/stat, counted after the name, which may hold spaces.
COMMAND_START = 45


def main() -> None:
    order_file = int(sys.argv[1])
    environment = _shown_environment()
    os.environ.update(serve.ENVIRONMENT)
    if is_cpu := serve.is_cpu_build():
        os.environ.update(serve.CPU_ENVIRONMENT)
    from guanaco_server.engine import vllm_internals

    vllm_internals.import_all(is_forking=is_cpu)
    gc.freeze()  # it is never garbage, and is not looked at again
    for name in serve.CPU_ENVIRONMENT:
        os.environ.pop(name, None)  # the order says how many threads there may be
    if not _is_called():
        return
    order = json.loads(_read(order_file))
    _become(order)
    _show(order, environment)
    serve.main(order["arguments"])


def _is_called() -> bool:
    """Wait for the platform's call; False once the platform is gone."""
    platform = lifeline.named()
    while platform is None or lifeline.is_held(str(platform)):
        ready, _, _ = select.select([0], [], [], lifeline.POLL_S)
        if ready:
            return bool(os.read(0, 1))
    return False


def _read(order_file: int) -> bytes:
    with os.fdopen(order_file, "rb") as order:
        order.seek(0)
        return order.read()


def _become(order: dict[str, Any]) -> None:
    """Take the order's environment and folder; what it writes goes to its log from the beginning."""
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _show(order: dict[str, Any], environment: bytes) -> None:
    """Write the command line and the marker where /proc shows them; both were made long enough at the start."""
    (command_start, command_end), (start, end) = _areas()
    command = "\0".join([sys.executable, "-m", MODULE, *order["arguments"]])
    _overwrite(command_start, command_end, command.encode())
    name, marker = order["marker"]
    before = environment[: environment.rfind(f"{name}=".encode())]  # it is the last variable
    _overwrite(start, end, before + f"{name}={marker}".encode())


def _shown_environment() -> bytes:
    _, (start, end) = _areas()
    return ctypes.string_at(start, end - start)


def _areas() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return where the kernel reads the command line and the environment that it shows of this process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    at = [int(field) for field in fields[COMMAND_START : COMMAND_START + 4]]
    return (at[0], at[1]), (at[2], at[3])


def _overwrite(start: int, end: int, text: bytes) -> None:
    """Write the text and zeros after it; a text that is too long is cut."""
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, min(len(text), end - start - 1))


if __name__ == "__main__":
    main()
