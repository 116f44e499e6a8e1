"""Has model servers hold the adapters that deployments wish for there, and forget the others.

A server that starts again has none. So each look of the reconciler compares what a server says that it holds with what is wished,
and a deployment has those replicas for endpoints that hold its adapter.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from guanaco.errors import StoreUnreachable
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.clusters.cluster import Trouble
from guanaco_server.database.database import Database
from guanaco_server.deployments import queries
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.health import DeploymentHealth, await_order
from guanaco_server.deployments.engines.specs import is_remote
from guanaco_server.deployments.model_servers.model_server import (
    AdapterRefused,
    ModelServer,
    ModelServerFault,
    SwapOrder,
)
from guanaco_server.deployments.tables import DeploymentRow, EngineRow

logger = logging.getLogger(__name__)


class AdapterPlaces:
    def __init__(
        self,
        database: Database,
        store: ArtifactStore,
        model_server: ModelServer,
        check: Callable[[str], Awaitable[DeploymentHealth]],
    ) -> None:
        """``check`` looks at the servers of an engine."""
        self._check = check
        self._database = database
        self._store = store
        self._model_server = model_server
        self._faults: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._lost: set[str] = set()

    @property
    def refused(self) -> dict[str, str]:
        """Deployments whose adapter a server would not take at the last look, with its reason."""
        return dict(self._refused)

    def forget(self, key: str) -> None:
        """Forget that a deployment's adapter was refused: it is served otherwise by now, or not at all."""
        self._refused.pop(key, None)
        self._lost.discard(key)

    def trouble(self, row: DeploymentRow) -> Trouble | None:
        """Return ARTIFACT_MISSING where its adapter could not be loaded because the store no longer has it."""
        return Trouble.ARTIFACT_MISSING if row.submission_id in self._lost else None

    def problem(self, row: DeploymentRow) -> str | None:
        """Return in a sentence why no server could take its adapter at the last look."""
        return self._faults.get(row.submission_id)

    async def load(self, deployment: Deployment, endpoint: str) -> None:
        """Have a server hold the deployment's adapter. AdapterRefused if it cannot be used, another ModelServerFault if the server does not answer."""
        if deployment.is_adapter:
            token = await self._token(deployment.server_key)
            order = await self._order(deployment.artifact_key, token)
            loading = self._model_server.load_adapter(endpoint, order)
            await await_order(loading, lambda: self._check(deployment.server_key))

    async def ready(self, row: DeploymentRow, endpoints: Sequence[str]) -> tuple[str, ...]:
        """Return those of the servers that hold what the deployment serves. Servers that lack its adapter are given it first."""
        if not row.is_adapter:
            self.forget(row.submission_id)
            return tuple(endpoints)
        found = []
        for endpoint in endpoints:
            try:
                held = await self._model_server.held_adapters(endpoint)
                if row.artifact_key not in (held or ()):
                    await self.load(Deployment.of(row), endpoint)
            except ModelServerFault as fault:
                self._note_fault(row, str(fault))
                if await self._is_lost(row.artifact_key):
                    self._lost.add(row.submission_id)
                elif isinstance(fault, AdapterRefused):
                    self._refused[row.submission_id] = str(fault)
            else:
                self._faults.pop(row.submission_id, None)
                self.forget(row.submission_id)
                found.append(endpoint)
        return tuple(found)

    async def _is_lost(self, key: str) -> bool:
        try:
            return await self._store.find(key) is None
        except StoreUnreachable:
            return False

    async def unload_unneeded(self, server_key: str, endpoints: Iterable[str]) -> None:
        """Have servers forget the adapters that no deployment needs any more. One that does not answer is asked at the next look."""
        for endpoint in endpoints:
            try:
                held = await self._model_server.held_adapters(endpoint)
                if not held:
                    continue
                # Read after the server was asked: an adapter is requested before it is loaded.
                for key in held - await self._needed_adapters(server_key):
                    order = await self._order(key, await self._token(server_key), is_read=False)
                    await self._model_server.unload_adapter(endpoint, order)
            except ModelServerFault as fault:
                logger.info("%s keeps adapters that nobody needs: %s", server_key, fault)

    async def _needed_adapters(self, server_key: str) -> set[str]:
        async with self._database.read() as session:
            users = await queries.of_engine(session, server_key)
        return {user.artifact_key for user in users}

    async def _token(self, server_key: str) -> str:
        async with self._database.read() as session:
            engine = await session.get(EngineRow, server_key)
        if engine is None or engine.token is None:
            raise ModelServerFault("The server was started without control routes.")
        return engine.token

    async def _order(self, key: str, token: str, *, is_read: bool = True) -> SwapOrder:
        uri = self._store.uri(key)
        urls = await self._store.access(key) if is_read and is_remote(uri) else {}
        return SwapOrder(uri, token, urls)

    def _note_fault(self, row: DeploymentRow, why: str) -> None:
        if self._faults.get(row.submission_id) != why:
            logger.warning("%s cannot be served: %s", row.submission_id, why)
        self._faults[row.submission_id] = why
