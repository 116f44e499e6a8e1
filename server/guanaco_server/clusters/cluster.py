"""The port to where jobs and model servers run. Nothing above knows which cluster it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

LineSink = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class Resources:
    """The resources that a process asks of its machine; None leaves it to the cluster. ``gpu_type`` is a recipe's name of it (H100).

    ``disk_bytes`` is all that it writes, ``cache_bytes`` the part of it that the artifact takes. ``nodes`` are the
    machines that one replica takes, each of which gives all of the above.
    """

    memory_bytes: int | None = None
    disk_bytes: int | None = None
    gpu_type: str | None = None
    gpu_count: int = 0
    image: str | None = None
    cpus: int | None = None
    shared_memory_bytes: int | None = None
    cache_bytes: int | None = None
    nodes: int = 1


NO_RESOURCES = Resources()


@dataclass(frozen=True)
class JobSpec:
    """A process that runs once. ``name`` is unique: a job of the same name that still runs is stopped first.

    ``secrets`` are environment too, but never shown or written down.
    """

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    resources: Resources = Resources()
    timeout_s: float | None = None
    submission_id: str = ""


@dataclass(frozen=True)
class JobResult:
    """``problem`` is what the cluster knows of its end and the job could not say itself."""

    exit_code: int
    last_lines: tuple[str, ...]
    problem: str | None = None


@dataclass(frozen=True)
class DeploymentSpec:
    """A model server. ``{host}`` and ``{port}`` in the command are replaced by the address that the cluster chose.

    Where a replica takes several nodes the command runs on each of them, with its number for ``{rank}`` and the
    address of the first for ``{leader}``. The first one answers.

    ``resources`` are for clusters of more than one machine, and so are ``queue``, in which the server waits for its
    place there, and ``near``, the machines that have its artifact, the best first. ``secrets`` are environment too, but never written down, and other ones make no other spec.
    """

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    resources: Resources = Resources()
    replicas: int = 1
    artifact_bytes: int = field(default=0, compare=False)
    submission_id: str = ""
    queue: str | None = field(default=None, compare=False)
    near: tuple[str, ...] = field(default=(), compare=False)


class ReplicaPhase(StrEnum):
    RUNNING = "running"
    EXITED = "exited"


class Trouble(StrEnum):
    """The reason why a server does not run. A crash is the server's own doing; an artifact is missing in the store, and the cluster causes the others. What is queued waits for its place, which is no fault."""

    CRASHED = "crashed"
    UNPLACED = "unplaced"
    QUEUED = "queued"
    NODE_LOST = "node_lost"
    OBJECT_MISSING = "object_missing"
    IMAGE_MISSING = "image_missing"
    ARTIFACT_MISSING = "artifact_missing"

    @property
    def is_waited_for(self) -> bool:
        """Tell whether the cluster itself starts the server as soon as it can; applying again would change nothing."""
        return self in (Trouble.UNPLACED, Trouble.QUEUED, Trouble.IMAGE_MISSING)


@dataclass(frozen=True)
class ReplicaState:
    """``endpoint`` is the base URL of the server, if it has one yet; running does not mean ready. ``problem`` says what keeps it from running, ``trouble`` of which kind that is.

    ``replicas`` are the servers that the cluster can tell apart, nearest first; empty where one address stands for
    all. ``is_settled`` is False while applying again brings the cluster nearer to what it was asked for. What the
    cluster itself sees not to be ready (``is_ready``) is asked nothing. ``is_swappable``: it may become another server in place.
    ``machine`` is the name of the one on which it runs, where there are several.
    """

    phase: ReplicaPhase
    endpoint: str
    exit_code: int | None = None
    problem: str | None = None
    trouble: Trouble | None = None
    region: str = ""
    replicas: tuple[ReplicaState, ...] = ()
    is_settled: bool = True
    is_ready: bool = True
    is_swappable: bool = True
    machine: str = ""


class Cluster(Protocol):
    """Every call may be repeated. Names are DNS labels of at most 63 characters."""

    async def check(self) -> None:
        """ClusterUnreachable or ClusterRefused where nothing can run; before anything is started."""
        ...

    async def start(self) -> None:
        """Find again what an earlier platform process left running; stop jobs it left."""
        ...

    async def run_job(self, spec: JobSpec, on_line: LineSink) -> JobResult:
        """Run to the end, giving each line of output as it comes. Cancelling stops the whole process tree. TimeoutError after ``timeout_s``."""
        ...

    async def expect_server(self) -> None:
        """Prepare for a model server that will be wanted in some seconds, as far as that needs no knowledge of its model."""
        ...

    async def waiting_in_pools(self) -> dict[str, int]:
        """Count the prepared servers that wait to be claimed, by pool. Empty where the cluster has no pools."""
        ...

    async def has_room_ahead(self, spec: DeploymentSpec) -> bool:
        """Tell whether this server can be started before anybody needs it, so that others lose nothing and another one can take it over."""
        ...

    async def apply_deployment(self, spec: DeploymentSpec) -> None:
        """Make its replicas run. One that runs with the same spec is left alone; another one, or one that exited, is replaced.

        Another number of replicas is no other spec: those that stay are not touched.
        """
        ...

    async def renew_secrets(self, spec: DeploymentSpec) -> None:
        """Give these secrets to servers that the cluster itself starts from now on, on another machine; nothing that runs is touched."""
        ...

    @property
    def can_relabel(self) -> bool:
        """True if a running server can become another one in place (``relabel``)."""
        ...

    @property
    def has_control_routes(self) -> bool:
        """True if the platform can give orders to a server that runs: the token in its spec's secrets reaches it."""
        ...

    async def relabel(self, spec: DeploymentSpec) -> None:
        """Take note that the server of this name is to be what the spec says, without a restart: somebody gives it its new model.

        If it ends before, applying the spec starts it again.
        """
        ...

    async def observe(self, name: str) -> ReplicaState | None:
        """Return the server's state, None if there is no such deployment."""
        ...

    async def note_ready(self, name: str, endpoints: Collection[str]) -> None:
        """Take note that these replicas answer. Replicas that share a machine with others may have started at a lower priority."""
        ...

    async def stop_replica(self, name: str, endpoint: str) -> bool:
        """Stop this one of the ``replicas`` that ``observe`` gives, for it hangs; applying again restarts it.

        False where it is no replica, or the cluster itself finds those that hang.
        """
        ...

    async def list_deployments(self) -> list[str]: ...

    async def logs(self, name: str, offset: int = 0) -> tuple[list[str], int]:
        """Return the whole lines written since byte ``offset`` of the current process's log, and the next offset."""
        ...

    async def delete(self, name: str) -> None:
        """Stop the server and everything it started."""
        ...

    async def close(self) -> None:
        """Stop everything that cannot run without this platform process."""
        ...
