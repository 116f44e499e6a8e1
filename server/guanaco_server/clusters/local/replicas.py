"""The model servers of one deployment on this machine. Replica N lives in folder N, and shares it with no other.

wanted   started, and restarted when it exited; the others are not touched for it
leaving  one too many: no longer shown, and stopped when its open replies have had their time; its number is taken until then
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from guanaco_server.clusters.cluster import DeploymentSpec, ReplicaPhase, ReplicaState
from guanaco_server.clusters.local.servers import LOG_NAME, LocalServer
from guanaco_server.runtime import threads

Start = Callable[[DeploymentSpec, Path], Awaitable[LocalServer]]


class LocalReplicas:
    def __init__(self, folder: Path, drain_s: float) -> None:
        """``drain_s`` is how long a reply may take."""
        self._folder = folder
        self._drain_s = drain_s
        self._servers: dict[int, LocalServer] = {}
        self._leaving: dict[asyncio.Task[None], LocalServer] = {}
        self._read = Path()

    @staticmethod
    def found(folder: Path, drain_s: float) -> LocalReplicas:
        """Return the replicas that an earlier platform wrote down, running or not."""
        replicas = LocalReplicas(folder, drain_s)
        for each in folder.iterdir():
            if each.name.isdigit() and (server := LocalServer.found(each)):
                replicas._servers[int(each.name)] = server
        return replicas

    def __iter__(self) -> Iterator[LocalServer]:
        """Iterate over the wanted replicas by number."""
        return iter([server for _, server in sorted(self._servers.items())])

    @property
    def ports(self) -> set[int]:
        """The ports in use, also by replicas that are leaving."""
        return {server.record.port for server in (*self, *self._leaving.values())}

    async def apply(self, spec: DeploymentSpec, start: Start) -> None:
        """Start and stop replicas to match the spec. The highest numbers leave first; if a start fails the others go on."""
        one = replace(spec, replicas=1)
        for number in sorted(self._servers)[spec.replicas :]:
            self._release(self._servers.pop(number))
        outdated = {
            number: server
            for number, server in self._servers.items()
            if server.record.spec != one or not server.is_running()
        }
        await _stop_all(outdated.values())
        for number in [*outdated, *self._free_numbers(spec.replicas - len(self._servers))]:
            self._servers[number] = await start(one, self._folder / str(number))

    def _free_numbers(self, count: int) -> list[int]:
        """Return the lowest numbers of no replica, also of none that is leaving: a server removes its folder when it ends."""
        taken = {int(server.folder.name) for server in (*self, *self._leaving.values())}
        free = (number for number in itertools.count() if number not in taken)
        return list(itertools.islice(free, count))

    def relabel(self, spec: DeploymentSpec) -> None:
        """Write down for each replica that it is what the spec says."""
        one = replace(spec, replicas=1, secrets={})
        for server in self:
            server.record = replace(server.record, spec=one)
            server.record.write(server.folder)

    async def state(self) -> ReplicaState | None:
        """Return the state of the first replica that runs, with all replicas; None without any. Stop the children of those that exited."""
        each = tuple(server.state() for server in self)
        await _stop_all(server for server in self if server.has_orphans())
        if not each:
            return None
        exited = [one for one in each if one.phase is ReplicaPhase.EXITED]
        first = next((one for one in each if one not in exited), each[0])
        problem = _problem(exited, len(each)) if 0 < len(exited) < len(each) else None
        return replace(first, replicas=each, is_settled=not exited, problem=problem)

    def note_ready(self, endpoints: Collection[str]) -> bool:
        """Raise the priority of these replicas. False where that has to be tried again."""
        ready = [one for one in self if one.record.endpoint in endpoints]
        return all([one.raise_priority() for one in ready])

    async def stop_replica(self, endpoint: str) -> bool:
        found = [server for server in self if server.record.endpoint == endpoint]
        await _stop_all(found)
        return bool(found)

    def log(self, offset: int) -> tuple[Path, int] | None:
        """Return the log of a replica that exited, else of the first. The log of another replica than last time is read from its start."""
        reporting = next((one for one in self if not one.is_running()), next(iter(self), None))
        if reporting is None:
            return None
        path, before = reporting.folder / LOG_NAME, self._read
        self._read = path
        return path, offset if path == before else 0

    async def stop(self) -> None:
        """Stop all replicas at once, also those that were finishing their replies. A later platform finds none of them."""
        draining = list(self._leaving)
        for task in draining:
            task.cancel()
        await _stop_all([*self, *self._leaving.values()])
        await asyncio.gather(*draining, return_exceptions=True)
        for server in self:
            server.forget()
        self._servers.clear()

    def _release(self, server: LocalServer) -> None:
        server.forget()
        task = asyncio.create_task(self._drain(server), name=f"drain {server.folder}")
        self._leaving[task] = server
        task.add_done_callback(lambda done: self._leaving.pop(done, None))

    async def _drain(self, server: LocalServer) -> None:
        if server.is_running():
            await asyncio.sleep(self._drain_s)
        await server.stop()
        await threads.FILES.run(shutil.rmtree, server.folder, ignore_errors=True)


def _problem(exited: list[ReplicaState], count: int) -> str:
    """Describe the exited replicas. The exit status of an earlier platform's child is unknown."""
    statuses = sorted({str(one.exit_code) for one in exited if one.exit_code is not None})
    why = f" with status {', '.join(statuses)}" if statuses else ""
    return f"{len(exited)} of {count} replicas exited{why}."


async def _stop_all(servers: Iterable[LocalServer]) -> None:
    await asyncio.gather(*(server.stop() for server in servers))
