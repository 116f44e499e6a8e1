"""The tables of the deployments: what should be served, and where it is."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict
from sqlalchemy import BigInteger, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from guanaco.contract import unknown_members
from guanaco.open_enum import OpenEnum
from guanaco.recipes import Recipe
from guanaco.submissions import Quantization
from guanaco_server.database.tables import Table
from guanaco_server.database.types import EnumText, JsonColumn, Pydantic, UtcDateTime
from guanaco_server.deployments.versions import is_adapter, is_beside, served_model, submission_of


class Phase(OpenEnum):
    """Only the reconciler and the autoscaler move a published deployment.

    waiting (for room) → starting → ready ⇄ restarting
    ready → sleeping (scaled to zero) → waking (for room) → restarting
    any → draining: a newer version has taken its place, and it finishes its replies
    """

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    SLEEPING = "sleeping"
    WAKING = "waking"
    DRAINING = "draining"

    @property
    def has_server(self) -> bool:
        """Return whether its model server should run."""
        return self in (Phase.READY, Phase.DRAINING) or self.is_getting_ready

    @property
    def is_getting_ready(self) -> bool:
        return self in (Phase.STARTING, Phase.RESTARTING)


class DeploymentRow(Table):
    """A submission that should be served, by a model server if its phase says so. If there is no row, nothing should run.

    ``endpoints`` are those of its replicas that answer, as the reconciler last saw them, the nearest first.
    ``endpoint``, the first of them, is for processes of the version before, and goes with the next one.
    ``wanted_replicas`` is the autoscaler's, ``applied_replicas`` what the cluster was last told. ``capacity`` is
    what the stress check showed of one replica, ``start_s`` how long its last start took, ``wake_s`` its last start or swap.

    ``used_tokens`` are those of all of its replies, weighted as for costs (``costs/meter.py``).

    ``yields_to`` is the deployment for which it makes room: it takes new conversations only where no other has room.

    ``base_key`` is the artifact that its server holds, where that takes adapters: the same as ``artifact_key``, or the base of that.

    ``queue`` is the competition's in which its model server waits for a place, None for the platform's own.

    ``unserved_since`` is set while it has a published server and no endpoint; ``trouble`` and ``problem`` say what keeps it.

    While a redeploy replaces a server there are two rows: the submission's own, which serves, and one beside it
    (``versions.py``). ``server`` is the engine that it uses, if that is not named after its own key (``engines/assignment.py``);
    ``share`` of the conversations that began after ``takes_since`` go to the server beside.
    """

    __tablename__ = "deployments"

    submission_id: Mapped[str] = mapped_column(String(160), primary_key=True)
    server: Mapped[str | None] = mapped_column(String(160), index=True)
    queue: Mapped[str | None] = mapped_column(String(63))
    run: Mapped[int]
    artifact_key: Mapped[str] = mapped_column(String(64))
    base_key: Mapped[str | None] = mapped_column(String(64))
    max_model_tokens: Mapped[int]
    quantization: Mapped[Quantization | None] = mapped_column(EnumText(Quantization))
    recipe: Mapped[Recipe | None] = mapped_column(Pydantic(Recipe))
    developer: Mapped[str] = mapped_column(String(64), default="")
    phase: Mapped[Phase] = mapped_column(EnumText(Phase))
    endpoints: Mapped[list[str]] = mapped_column(JsonColumn, default=list)
    endpoint: Mapped[str | None] = mapped_column(String(255))
    restarts: Mapped[int] = mapped_column(default=0)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    gpu_count: Mapped[int] = mapped_column(default=1)
    wanted_replicas: Mapped[int] = mapped_column(default=1)
    applied_replicas: Mapped[int] = mapped_column(default=1)
    capacity: Mapped[int | None]
    start_s: Mapped[float | None]
    wake_s: Mapped[float | None]
    used_tokens: Mapped[float | None]
    yields_to: Mapped[str | None] = mapped_column(String(160))
    scaled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_traffic_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    waits_for: Mapped[str | None] = mapped_column(Text)
    region: Mapped[str | None] = mapped_column(String(64))
    trouble: Mapped[str | None] = mapped_column(String(32))
    problem: Mapped[str | None] = mapped_column(Text)
    unserved_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    share: Mapped[float | None]
    takes_since: Mapped[datetime | None] = mapped_column(UtcDateTime)

    @property
    def server_key(self) -> str:
        """The engine that it uses, which is also the key after which the model server is named on the cluster."""
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
    def owner(self) -> str:
        """The submission that it serves, also for a row beside."""
        return submission_of(self.submission_id)

    @property
    def is_beside(self) -> bool:
        return is_beside(self.submission_id)

    @property
    def is_asleep(self) -> bool:
        """Return whether it sleeps, or waits for room to wake."""
        return self.phase in (Phase.SLEEPING, Phase.WAKING)

    @property
    def is_draining(self) -> bool:
        return self.phase is Phase.DRAINING

    def is_as_seen(self, other: DeploymentRow | None) -> bool:
        """Return whether both rows are of the same run, in the same phase, on the same engine."""
        return other is not None and (self.run, self.phase, self.server_key) == (
            other.run,
            other.phase,
            other.server_key,
        )

    @property
    def is_understood(self) -> bool:
        """Return whether this version knows its phase and all of how it is served; else it leaves the server alone."""
        return not any(unknown_members([self.phase, self.quantization, self.recipe]))


class SpareServer(BaseModel):
    """The facts of a model server that no deployment uses: what it holds and was started with, and since when it has no users.

    One that ``is_starting`` was started ahead of demand, and has not answered yet. The version before does not know ``takes_adapters``, and
    takes the server over for models of its shape without any.
    """

    model_config = ConfigDict(frozen=True)

    artifact_key: str
    max_model_tokens: int
    quantization: Quantization | None = None
    recipe: Recipe | None = None
    queue: str | None = None
    since: datetime
    is_starting: bool = False
    takes_adapters: bool = False

    @property
    def gpu_count(self) -> int:
        return self.recipe.gpu_count if self.recipe else 1


class EngineRow(Table):
    """A model server that deployments share (``engines/assignment.py``). ``run`` is that of the deployment that began it.

    ``digest`` says what it is; None where nobody joins it (any more). ``token`` opens the control routes of its model server.

    ``taken_by`` is the submission and the run that took its server over from another one, with the mark between them.

    ``spare`` says what it is while no deployment uses it (``engines/spares.py``).
    """

    __tablename__ = "engines"

    id: Mapped[str] = mapped_column(String(160), primary_key=True)
    digest: Mapped[str | None] = mapped_column(String(64), unique=True)
    run: Mapped[int]
    token: Mapped[str | None] = mapped_column(String(64))
    made_at: Mapped[datetime] = mapped_column(UtcDateTime)
    taken_by: Mapped[str | None] = mapped_column(String(160))
    spare: Mapped[SpareServer | None] = mapped_column(Pydantic(SpareServer))


class ServerRequestRow(Table):
    """A model server that was asked for, by a new submission or one that woke: ``server`` is what it was to be (``requests.py``)."""

    __tablename__ = "server_requests"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    server: Mapped[SpareServer] = mapped_column(Pydantic(SpareServer))


class ArtifactMachineRow(Table):
    """A machine of the cluster on which a server of the artifact has run lately, so that its cache may hold it (``engines/machines.py``)."""

    __tablename__ = "artifact_machines"

    artifact_key: Mapped[str] = mapped_column(String(64), primary_key=True)
    machine: Mapped[str] = mapped_column(String(253), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
