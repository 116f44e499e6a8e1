"""Provides what the proof runs on: a platform's processes over PostgreSQL, real vLLM, and named models of two shapes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import NullPool, create_engine, text

from guanaco import Client
from guanaco.submissions import GenerationParams, Status
from guanaco_server.clusters.local.servers import ReplicaRecord
from guanaco_server.demo.hub_server import LocalHub
from guanaco_server.demo.tiny_repo import INTERMEDIATE
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.versions import served_model
from tests.fixtures.deployed import hold_any_number
from tests.fixtures.named_models import make_named_repo, spoken_tokens
from tests.fixtures.ports import free_port
from tests.fixtures.postgres import running_server
from tests.fixtures.roles import RoleProcess, Roles
from tests.fixtures.s3 import moto

GATEWAYS = 2
SHAPES = (INTERMEDIATE, 2 * INTERMEDIATE)  # what the models of the two shapes differ in
MODELS_OF_SHAPE = 2
QUIET_S = 1.0  # without a message, after which a model's server may be another's
SUPERVISE_S = 0.2
PARAMS = GenerationParams(temperature=0, max_output_tokens=12, stopping_words=[])
SETTINGS: dict[str, object] = {
    "engine_command": None,  # real vLLM
    "engine_args": ["--kv-cache-memory-bytes", "67108864"],
    "gateways": GATEWAYS,
    "max_model_servers": len(SHAPES),
    "preempt_quiet_s": QUIET_S,
    "wake_wait_s": 60,
    "failover_s": 30,
    "first_token_timeout_s": 60,
    "lifeline_grace_s": 60,
    "worker_silence_s": 3,
    "restart_limit": 1_000_000,
    "stress_duration_s": 0.5,
    "stress_rate": 4,
    "stress_requests": 4,
    "stress_max_ttft_p95_ms": 30_000,
    "stress_max_tpot_p95_ms": 30_000,
    "stress_max_e2e_p95_ms": 30_000,
    "log_format": "text",
    "quota_per_hour": 0,
    "quota_live": 0,
    "quota_in_progress": 0,
}


@dataclass(frozen=True)
class Served:
    """The place where a model is served now, and the name by which a request asks for it."""

    endpoint: str
    model: str


@dataclass
class NamedModel:
    """A submission whose replies consist of these texts only."""

    repo: str
    shape: int
    says: tuple[str, ...]
    submission_id: str = ""

    def has_said(self, content: str) -> bool:
        rest = "".join(content.split())
        for own in self.says:
            rest = rest.replace(own, "")
        return bool(content.strip()) and not rest


@dataclass
class Supervised:
    """A role's process, started again when it ends, as systemd does."""

    roles: Roles
    role: str
    name: str
    settings: dict[str, Any]
    process: RoleProcess
    restarts: int = 0

    def tend(self) -> None:
        if self.process.process.poll() is not None:
            self.restarts += 1
            self.process = self.roles.launch(self.role, self.name, **self.settings)

    def kill(self) -> None:
        self.process.process.kill()


@dataclass
class SwapStage:
    folder: Path
    roles: Roles
    api: Supervised
    worker: Supervised
    client: Client
    models: list[NamedModel] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def base_url(self) -> str:
        return self.api.process.base_url

    def gateways(self) -> list[psutil.Process]:
        """The processes that answer requests, beside the API's own."""
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.api.process.process.pid).children()
            return [one for one in children if _is_gateway(one)]
        return []

    def kill_gateway(self, number: int) -> bool:
        found = self.gateways()
        return bool(found) and _kill(found[number % len(found)].pid)

    def kill_engine(self, server_key: str) -> bool:
        place = self.folder / self.worker.name / "cluster" / deployment_name(server_key) / "0"
        record = ReplicaRecord.read(place)
        return record is not None and _kill(record.leader.pid)

    def served(self, model: NamedModel) -> Served | None:
        """Return where the model is served; None while it is not."""
        query = text(
            "SELECT endpoint, coalesce(server, submission_id), artifact_key FROM deployments"
            " WHERE submission_id = :id AND endpoint IS NOT NULL"
        )
        engine = create_engine(self.roles.database_url, poolclass=NullPool)
        with engine.connect() as tables:
            row = tables.execute(query, {"id": model.submission_id}).one_or_none()
        return Served(row[0], served_model(row[1], row[2])) if row else None

    def submit(self, model: NamedModel) -> None:
        """Enter the model and wait until it is published, on a process that was started for it."""
        made = self.client.wait(self.client.submit(model.repo, params=PARAMS).id)
        events = self.client.events(made.id, follow=False)
        log = "\n".join(event.message for event in events)
        assert made.status is Status.DEPLOYED, f"{made.failure}\n{log}"
        model.submission_id = made.id
        self.models.append(model)

    def close_entry(self) -> None:
        """Let nobody but those who talk already keep a model awake, and hold any number of conversations."""
        for model in self.models:
            self.client.deactivate(model.submission_id)
        hold_any_number(self.roles.database_url)

    def supervise(self) -> None:
        while not self._is_over.wait(SUPERVISE_S):
            for one in (self.api, self.worker):
                one.tend()

    def stop(self) -> None:
        self._is_over.set()


@contextlib.contextmanager
def staged(folder: Path, python: Path, *, is_on_s3: bool) -> Iterator[SwapStage]:
    """A platform with no submission yet; its processes are started again when they end. Artifacts are in a folder, or in S3 and the node's cache."""
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(running_server())
        hub = stack.enter_context(LocalHub(folder / "hub"))
        settings = SETTINGS | {
            "database_url": postgres.url(postgres.create()),
            "hub_endpoint": hub.url,
            "engine_python": str(python),
        }
        if is_on_s3:
            settings |= stack.enter_context(moto()).settings()
        with Roles(folder, **settings) as roles:
            roles.migrate()
            api, worker = _supervised(roles, "api"), _supervised(roles, "worker")
            stage = SwapStage(folder, roles, api, worker, roles.client(api.process))
            watch = threading.Thread(target=stage.supervise)
            watch.start()
            try:
                yield stage
            finally:
                stage.stop()
                watch.join()


def make_models(folder: Path) -> list[NamedModel]:
    """Write the repos, two of each shape, no two of which have a token in common."""
    tokens = iter(spoken_tokens())
    models = []
    for number in range(len(SHAPES) * MODELS_OF_SHAPE):
        shape, repo = number % len(SHAPES), f"acme/named{number}"
        pair = next(tokens), next(tokens)
        says = make_named_repo(
            folder / "hub" / repo, pair[0], intermediate=SHAPES[shape], then=pair[1]
        )
        models.append(NamedModel(repo, shape, tuple(says.split())))
    return models


def _supervised(roles: Roles, role: str) -> Supervised:
    name = f"{role}-0"
    settings: dict[str, Any] = {"port": free_port(), "metrics_port": free_port()}
    return Supervised(roles, role, name, settings, roles.start(role, name, **settings))


def _is_gateway(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("gateway_process" in part for part in process.cmdline())
    return False


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
