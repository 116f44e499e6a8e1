"""Running a process once, and giving its output line by line."""

from __future__ import annotations

import asyncio
import subprocess
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from guanaco_server.clusters.cluster import JobResult, LineSink
from guanaco_server.clusters.local_processes import POLL_S, Leader, stop_group

KEPT_LINES = 20
LINE_BYTES = 65_536  # the rest of a longer line is dropped


async def follow(process: subprocess.Popen[bytes], leader: Leader, on_line: LineSink) -> JobResult:
    """Until the process has ended and all it said was given on. However this ends, its whole group is stopped."""
    last_lines: deque[str] = deque(maxlen=KEPT_LINES)

    async def pass_on(reader: asyncio.StreamReader) -> None:
        async for line in _lines(reader):
            last_lines.append(line)
            await on_line(line)

    try:
        async with _output(process) as reader:
            passing_on = asyncio.create_task(pass_on(reader))
            try:
                await _wait(process, passing_on)
                await stop_group(leader, process)  # whoever else still holds the pipe
                await passing_on
            finally:
                passing_on.cancel()
    finally:
        await asyncio.shield(asyncio.create_task(stop_group(leader, process)))
    return JobResult(process.returncode, tuple(last_lines))


async def _wait(process: subprocess.Popen[bytes], passing_on: asyncio.Task[None]) -> None:
    """Until the process has ended; raises at once what the reader of its output raised."""
    while process.poll() is None:
        await asyncio.sleep(POLL_S)
        if passing_on.done():
            passing_on.result()


@asynccontextmanager
async def _output(process: subprocess.Popen[bytes]) -> AsyncIterator[asyncio.StreamReader]:
    """A pipe, not a file: a job whose disk is full can still say so."""
    assert process.stdout is not None, "started with a pipe"
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), process.stdout
    )
    try:
        yield reader
    finally:
        transport.close()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    rest = b""
    while data := await reader.read(LINE_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line[:LINE_BYTES].decode(errors="replace")
        rest = rest[:LINE_BYTES]
    if rest:
        yield rest.decode(errors="replace")
