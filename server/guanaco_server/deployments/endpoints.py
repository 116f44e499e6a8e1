"""Keeps where deployments are served: the endpoints of replicas that answer, and the engines whose replicas they are.

It is kept in memory, where the gateway reads it. The reconciler keeps it up to date in its own process, and writes it down for the others,
which read it from the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import chain

from guanaco_server.database.database import Database
from guanaco_server.deployments import queries
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.deployments.versions import served_model

Artifacts = tuple[
    str, str | None
]  # a deployment's own, and its server's where that serves adapters


class KnownEndpoints:
    """``woken`` is set when the reconciler should look at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._replicas: dict[str, tuple[str, ...]] = {}
        self._engines: dict[str, str] = {}
        self._artifacts: dict[str, Artifacts] = {}
        self._yielding: frozenset[str] = frozenset()
        self._suspects: set[str] = set()
        self._has_reconciler = True
        self.woken = asyncio.Event()

    def all_replicas(self) -> frozenset[str]:
        """Return the endpoints of all model servers that this process knows to answer."""
        return frozenset(chain.from_iterable(self._replicas.values()))

    def replicas(self, submission_id: str) -> tuple[str, ...]:
        """Return the base URLs of the ready servers, in a stable order."""
        return self._replicas.get(submission_id, ())

    @property
    def yielding(self) -> frozenset[str]:
        """The deployments that make room for others, and take new conversations only where no other has room."""
        return self._yielding

    def learn_yielding(self, rows: Iterable[DeploymentRow]) -> None:
        """Take from the table which deployments make room."""
        self._yielding = frozenset(
            row.submission_id for row in rows if row.yields_to and row.phase is Phase.READY
        )

    def model_name(self, key: str) -> str:
        """Return how a request names the model of this deployment: by its engine and its artifact."""
        return served_model(self.engine_of(key), *self._artifacts.get(key, (None, None)))

    def engine_of(self, key: str) -> str:
        """Return the key of the engine that this deployment uses."""
        return self._engines.get(key, key)

    def note_reconciler(self, is_here: bool) -> None:
        """Note whether this process reconciles. One that does not reads the endpoints from the table."""
        self._has_reconciler = is_here

    async def refresh_endpoints(self) -> None:
        """Read the endpoints that another process's reconciler wrote; do nothing if this process has the reconciler."""
        if self._has_reconciler:
            return
        rows = await self._read()
        if not self._has_reconciler:  # it may have begun meanwhile, and knows better
            self._learn(rows)

    async def read_endpoints(self, submission_id: str) -> None:
        """Read from the table where one deployment is served, whatever this process believed."""
        async with self._database.read() as session:
            row = await queries.by_submission(session, submission_id)
        if row is not None:
            endpoints = tuple(row.endpoints) if row.phase is Phase.READY else ()
            self.note_replicas(
                submission_id, endpoints, row.server_key, (row.artifact_key, row.base_key)
            )

    async def learn_endpoints(self) -> None:
        """Read from the table which deployments are ready, as the leading process wrote it."""
        self._learn(await self._read())

    def note_replicas(
        self,
        submission_id: str,
        endpoints: tuple[str, ...],
        engine: str | None = None,
        artifacts: Artifacts | None = None,
    ) -> None:
        """Set the endpoints that this process's gateway uses, and the engine whose replicas they are and the artifacts if those have changed."""
        if engine is not None:
            self._engines[submission_id] = engine
        if artifacts is not None:
            self._artifacts[submission_id] = artifacts
        if endpoints:
            self._replicas[submission_id] = endpoints
        else:
            self._replicas.pop(submission_id, None)

    async def note_taken_over(self, submission_id: str, endpoints: tuple[str, ...]) -> None:
        """Set the endpoints that a version beside had until now, whose server the row names."""
        async with self._database.read() as session:
            row = await queries.by_submission(session, submission_id)
        if row is not None:
            artifacts = row.artifact_key, row.base_key
            self.note_replicas(submission_id, endpoints, row.server_key, artifacts)

    def report_fault(self, submission_id: str) -> None:
        """Have the reconciler check this server now, because the gateway saw it fail."""
        self._suspects.add(submission_id)
        self.woken.set()

    def take_suspects(self) -> set[str]:
        suspects, self._suspects = self._suspects, set()
        return suspects

    async def _read(self) -> Sequence[DeploymentRow]:
        async with self._database.read() as session:
            return await queries.all_rows(session)

    def _learn(self, rows: Sequence[DeploymentRow]) -> None:
        self._replicas = {
            row.submission_id: tuple(row.endpoints) for row in rows if row.phase is Phase.READY
        }
        self.learn_yielding(rows)
        self._engines = {row.submission_id: row.server_key for row in rows}
        self._artifacts = {row.submission_id: (row.artifact_key, row.base_key) for row in rows}
