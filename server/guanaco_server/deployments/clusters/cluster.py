"""The port to where jobs and model servers run. Nothing above knows which cluster it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

LineSink = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class JobSpec:
    """A process that runs once. ``name`` is unique: a job of the same name that still runs is stopped first."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None
    timeout_s: float | None = None


@dataclass(frozen=True)
class JobResult:
    exit_code: int
    last_lines: tuple[str, ...]


@dataclass(frozen=True)
class DeploymentSpec:
    """A model server. ``{port}`` in the command is replaced by the port that the cluster chose.

    ``secrets`` are environment too, but never written down, and other ones make no other spec.
    """

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, compare=False, repr=False)


class ReplicaPhase(StrEnum):
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True)
class ReplicaState:
    """``endpoint`` is the base URL of the server; running does not mean ready."""

    phase: ReplicaPhase
    endpoint: str
    exit_code: int | None = None


class Cluster(Protocol):
    """Every call may be repeated. Names are DNS labels of at most 63 characters."""

    async def start(self) -> None:
        """Find again what an earlier platform process left running; stop jobs it left."""
        ...

    async def run_job(self, spec: JobSpec, on_line: LineSink) -> JobResult:
        """Run to the end, giving each line of output as it comes. Cancelling stops the whole process tree. TimeoutError after ``timeout_s``."""
        ...

    async def apply_deployment(self, spec: DeploymentSpec) -> None:
        """Make the server run. One that runs with the same spec is left alone; another one, or one that exited, is replaced."""
        ...

    async def observe(self, name: str) -> ReplicaState | None:
        """The server's state, None if there is no such deployment."""
        ...

    async def list_deployments(self) -> list[str]: ...

    async def logs(self, name: str, offset: int = 0) -> tuple[list[str], int]:
        """The whole lines written since byte ``offset`` of the current process's log, and the next offset."""
        ...

    async def delete(self, name: str) -> None:
        """Stop the server and everything it started."""
        ...

    async def close(self) -> None:
        """Stop everything this cluster runs."""
        ...
