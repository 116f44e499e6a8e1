"""A deployment as it is requested, and its replicas as the reconciler last saw them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from guanaco.recipes import Recipe
from guanaco.submissions import Quantization
from guanaco_server.deployments.tables import DeploymentRow, Phase, SpareServer
from guanaco_server.deployments.versions import (
    ServedVersion,
    is_adapter,
    served_model,
    submission_of,
)

PUBLISHED = (Phase.READY, Phase.RESTARTING)  # its server should answer

_WITHOUT_REPLICAS = frozenset({Phase.WAITING, Phase.SLEEPING, Phase.WAKING})


@dataclass(frozen=True)
class Deployment:
    """A deployment: what should be served. ``submission_id`` is the deployment's key; ``server`` is the engine that it was given, if that is not named so.

    A private one shares its model server with no other. A version beside that ``joins`` uses a server of others, where the next one would begin its own. ``base_key`` is the artifact that its server holds, where that
    takes adapters: its own, or the base's of an adapter.
    """

    submission_id: str
    run: int
    artifact_key: str
    max_model_tokens: int
    quantization: Quantization | None = None
    replicas: int = 1
    recipe: Recipe | None = None
    developer: str = ""
    server: str | None = None
    queue: str | None = None
    is_private: bool = False
    base_key: str | None = None
    joins: bool = False

    @staticmethod
    def of(row: DeploymentRow) -> Deployment:
        return Deployment(
            row.submission_id,
            row.run,
            row.artifact_key,
            row.max_model_tokens,
            row.quantization,
            row.wanted_replicas,
            row.recipe,
            row.developer,
            row.server,
            row.queue,
            base_key=row.base_key,
        )

    @staticmethod
    def of_spare(engine: str, spare: SpareServer) -> Deployment:
        """Return what a server without users holds, as a deployment of it."""
        return Deployment(
            engine,
            0,
            spare.artifact_key,
            spare.max_model_tokens,
            spare.quantization,
            recipe=spare.recipe,
            queue=spare.queue,
            base_key=spare.artifact_key if spare.takes_adapters else None,
        )

    def as_spare(self, since: datetime, *, is_starting: bool = False) -> SpareServer:
        """Return its server as one without users."""
        return SpareServer(
            artifact_key=self.held_key,
            takes_adapters=self.base_key is not None,
            max_model_tokens=self.max_model_tokens,
            quantization=self.quantization,
            recipe=self.recipe,
            queue=self.queue,
            since=since,
            is_starting=is_starting,
        )

    def as_version(self, version: ServedVersion) -> Deployment:
        """Return the same, as that version was served."""
        return replace(
            self,
            artifact_key=version.artifact_key,
            max_model_tokens=version.max_model_tokens,
            quantization=version.quantization,
            recipe=version.recipe,
            base_key=version.base_key,
        )

    @property
    def server_key(self) -> str:
        return self.server or self.submission_id

    @property
    def engine_name(self) -> str:
        """The name by which its model server knows any model that it holds: that of the submission which began the engine."""
        return submission_of(self.server_key)

    @property
    def model(self) -> str:
        """The model that a request to its server expects there."""
        return served_model(self.server_key, self.artifact_key, self.base_key)

    @property
    def held_key(self) -> str:
        """The artifact that its model server holds."""
        return self.base_key or self.artifact_key

    @property
    def is_adapter(self) -> bool:
        """Return whether it is an adapter on a server that holds its base."""
        return is_adapter(self.artifact_key, self.base_key)

    @property
    def gpu_count(self) -> int:
        """Return the GPUs of one replica. A server without a recipe counts as one."""
        return self.recipe.gpu_count if self.recipe else 1


@dataclass(frozen=True)
class ReplicaStatus:
    """One replica of a deployment. ``endpoint`` is None while it does not answer."""

    state: Phase
    endpoint: str | None


def replicas_of(row: DeploymentRow) -> list[ReplicaStatus]:
    """Return the replicas as the reconciler last saw them: those that answer first, the nearest at the top."""
    if row.phase in _WITHOUT_REPLICAS:
        return []
    answering = [ReplicaStatus(row.phase, endpoint) for endpoint in row.endpoints]
    missing = max(0, row.applied_replicas - len(answering))
    silent = Phase.STARTING if row.phase is Phase.READY else row.phase
    return answering + [ReplicaStatus(silent, None)] * missing
