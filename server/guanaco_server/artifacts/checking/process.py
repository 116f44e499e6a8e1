"""Has repos checked in processes of their own (child.py), which the event loop never waits for.

A process checks one repo at a time, and is kept for the next one unless it was ended. What it says is bounded, and is
only believed about the repo that it was asked about: it reads what the parent lets it read.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from guanaco.errors import CorruptConfig, GuanacoError, SubmissionFailure
from guanaco.forms import Repo, Revision
from guanaco.submissions import SubmissionKind
from guanaco_server.artifacts.checking import child
from guanaco_server.artifacts.checking.checks import CheckedModel, CheckLimits, require_few_files
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.confinement import confined, priority
from guanaco_server.confinement.confined import Child, StartChild
from guanaco_server.confinement.frames import LENGTH
from guanaco_server.runtime import threads

CPU_S = 30.0  # the largest models' headers take 1 s, malicious ones of 32 MB 4 s
WALL_S = 10 * CPU_S  # on a machine that is busy with other things
KEPT = 2  # idle processes, of 40 MB each
MAX_ANSWER_BYTES = 16_000_000  # an adapter's 40,000 modules
MAX_READ_BYTES = 200_000_000  # of one repo and its base
READS_AT_ONCE = 16
TOO_MUCH = "The repo's configs and headers take more than {cpu_s:g} s of CPU time or {megabytes:,} MB of memory to read."

Json = dict[str, Any]


class CheckDied(Exception):  # translated by RepoChecker
    """The process ended, or said what it must not say."""


UNREADABLE = (
    CheckDied,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    RecursionError,
)  # pydantic's and msgspec's are ValueErrors


class RepoChecker:
    """``check`` for the pipeline. Belongs to one event loop; ``close`` ends the processes."""

    def __init__(self, start_child: StartChild = confined.start) -> None:
        self._start_child = start_child
        self._idle: list[_CheckProcess] = []

    async def check(
        self,
        hub: Hub,
        snapshot: RepoSnapshot,
        limits: CheckLimits,
        base_commit: str | None = None,
        kind: SubmissionKind = SubmissionKind.CHAT,
    ) -> CheckedModel:
        """Check a repo as ``check_repo`` does. CorruptConfig also where that takes too much time or memory."""
        require_few_files(snapshot)
        asked = {
            "snapshot": asdict(snapshot),
            "limits": asdict(limits),
            "base_commit": base_commit,
            "kind": kind,
        }
        return _checked(await self._ask(lambda process: process.check(hub, snapshot, asked)))

    async def read_config(self, path: str, data: bytes) -> Json:
        """Return an artifact's config without what is large in it. CorruptConfig if it cannot be read."""
        answer = await self._ask(lambda process: process.read_config(path, data))
        content = answer.get("config")
        if not isinstance(content, dict):
            raise CorruptConfig(f"{path} cannot be read.")
        return content

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().end()

    async def _ask(self, ask: Callable[[_CheckProcess], Awaitable[Json]]) -> Json:
        process = await self._process()
        try:
            answer = await ask(process)
        except CheckDied:
            raise CorruptConfig(
                TOO_MUCH.format(cpu_s=CPU_S, megabytes=child.MEMORY_BYTES // 10**6),
                hint="Save the model again with `save_pretrained(...)`, then push.",
            ) from None
        finally:
            self._put_back(process)
        if (refused := answer.get("refused")) is not None:
            raise _failure(refused)
        return answer

    async def _process(self) -> _CheckProcess:
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            process.end()
        return await _CheckProcess.start(self._start_child)

    def _put_back(self, process: _CheckProcess) -> None:
        if process.is_done and process.is_alive and len(self._idle) < KEPT:
            self._idle.append(process)
        else:
            process.end()


class _CheckProcess:
    """``is_done`` while nothing is asked of it."""

    def __init__(
        self,
        process: Child,
        source: asyncio.BaseTransport,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._source = source
        self._reader = reader
        self._writer = writer
        self._finalizer = weakref.finalize(self, confined.end, process)
        self.is_done = True

    @classmethod
    async def start(cls, start_child: StartChild) -> _CheckProcess:
        process = await threads.PROCESSES.start(partial(_start, start_child), confined.end)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        try:
            source, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), process.stdout
            )
            sink, protocol = await loop.connect_write_pipe(
                asyncio.streams.FlowControlMixin, process.stdin
            )
        except BaseException:  # the caller has left
            threads.PROCESSES.begin(partial(confined.end, process))
            raise
        return cls(process, source, reader, asyncio.StreamWriter(sink, protocol, None, loop))

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def read_config(self, path: str, data: bytes) -> Json:
        """Return the answer. CheckDied if there is none."""
        self.is_done = False
        try:
            async with asyncio.timeout(WALL_S):
                await self._send({"read": path, "bytes": len(data), "cpu_s": CPU_S}, data)
                reply = await self._receive()
        except UNREADABLE as error:
            raise CheckDied from error
        self.is_done = True
        return reply

    async def check(self, hub: Hub, snapshot: RepoSnapshot, asked: Json) -> Json:
        """Return the answer, and serve what is read of the Hub meanwhile. CheckDied, or the Hub's own error."""
        self.is_done = False
        try:
            async with asyncio.timeout(WALL_S) as patience, asyncio.TaskGroup() as reads:
                asks = _Reads(hub, snapshot, self, patience)
                await self._send({"check": asked, "cpu_s": CPU_S})
                while (answer := await self._receive()).keys() & {"read", "resolve"}:
                    asks.begin(answer, reads)
        except BaseExceptionGroup as group:
            raise _first_fault(group) from None
        except UNREADABLE as error:
            raise CheckDied from error
        self.is_done = True
        return answer

    def end(self) -> None:
        self._source.close()
        if (
            not self._writer.transport.is_closing()
        ):  # aborting what the broken pipe has closed fails
            self._writer.transport.abort()
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and the finalizer waits
            self._process.kill()
            threads.PROCESSES.begin(self._wait_for_end)

    def _wait_for_end(self) -> None:
        """Wait in a thread, which holds this object until then: else its last user would wait, on the event loop."""
        self._finalizer()

    async def send_data(self, content: Json, data: bytes = b"") -> None:
        await self._send(content | {"bytes": len(data)}, data)

    async def _send(self, content: Json, data: bytes = b"") -> None:
        message = msgspec.json.encode(content)
        self._writer.write(LENGTH.pack(len(message)) + message + data)  # at once: others send too
        await self._writer.drain()

    async def _receive(self) -> Json:
        (length,) = LENGTH.unpack(await self._exactly(LENGTH.size))
        if length > MAX_ANSWER_BYTES:
            raise CheckDied
        answer = msgspec.json.decode(await self._exactly(length))
        if not isinstance(answer, dict):
            raise CheckDied
        return answer

    async def _exactly(self, count: int) -> bytes:
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError:
            raise CheckDied from None


class _Reads:
    """Reads from the Hub for one check: its repo and one base, within limits.

    Time in which the process waits for the Hub is not its own: the Hub has a limit for each answer.
    """

    def __init__(
        self, hub: Hub, snapshot: RepoSnapshot, process: _CheckProcess, patience: asyncio.Timeout
    ) -> None:
        self._hub = hub
        self._process = process
        self._patience = patience
        self._snapshots = {snapshot.repo: snapshot}
        self._left_bytes = MAX_READ_BYTES
        self._has_resolved = False
        self._count = 0

    def begin(self, request: Json, reads: asyncio.TaskGroup) -> None:
        if self._count == READS_AT_ONCE:
            raise CheckDied
        self._count += 1
        self._patience.reschedule(None)
        work = self._read(request) if "read" in request else self._resolve(request)
        reads.create_task(work).add_done_callback(self._note_end)

    def _note_end(self, _task: asyncio.Task[None]) -> None:
        self._count -= 1
        if not self._count and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time() + WALL_S)

    async def _read(self, request: Json) -> None:
        snapshot = self._snapshots[request["repo"]]
        file, start, length = (
            snapshot.file(request["path"]),
            int(request["start"]),
            int(request["length"]),
        )
        self._left_bytes -= max(0, length)
        if file is None or start < 0 or length < 0 or self._left_bytes < 0:
            raise CheckDied
        data = await self._hub.read(snapshot, file.path, start, length)
        await self._process.send_data({"of": request["read"]}, data)

    async def _resolve(self, request: Json) -> None:
        if self._has_resolved:
            raise CheckDied
        self._has_resolved = True
        repo, revision = _REPO.validate_python(request["repo"]), request["revision"]
        found = await self._hub.resolve(repo, _REVISION.validate_python(revision))
        require_few_files(found)
        self._snapshots.setdefault(found.repo, found)
        await self._process.send_data({"of": request["resolve"], "snapshot": asdict(found)})


_REPO: TypeAdapter[str] = TypeAdapter(Repo)
_REVISION: TypeAdapter[str | None] = TypeAdapter(Revision | None)


def _checked(answer: Json) -> CheckedModel:
    try:
        return msgspec.convert(answer["checked"], CheckedModel)
    except (KeyError, msgspec.ValidationError, ValidationError):
        raise CorruptConfig("The repo's check gave no answer that can be read.") from None


def _failure(refused: Any) -> GuanacoError:
    error = GuanacoError.from_wire(refused if isinstance(refused, dict) else {})
    if isinstance(error, SubmissionFailure):
        return error
    return CorruptConfig(error.detail)


def _first_fault(group: BaseExceptionGroup[BaseException]) -> Exception:
    """Return the Hub's error if there is one; whatever else went wrong is the process's fault."""
    ours, others = group.split(GuanacoError)
    if ours is not None:
        error = ours.exceptions[0]
        assert isinstance(error, GuanacoError), "reads are no groups themselves"
        return error
    assert others is not None, "a group is not empty"
    if others.split(UNREADABLE)[1] is not None:
        return group  # type: ignore[return-value]  # a fault of ours
    return CheckDied()


def _start(start_child: StartChild) -> Child:
    process = start_child(child.__name__)
    priority.lower(process.pid)  # people who chat come first
    return process
