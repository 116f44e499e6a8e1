"""The replicas of a deployment, each with its state and where it answers."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.deployments.tables import DeploymentRow, Phase

WITHOUT = frozenset({Phase.WAITING, Phase.SLEEPING, Phase.WAKING})  # there is none


@dataclass(frozen=True)
class Replica:
    """``endpoint`` is None for one that does not answer (yet, or any more)."""

    state: Phase
    endpoint: str | None


def replicas_of(row: DeploymentRow) -> list[Replica]:
    """Those that answer first, the nearest at the top; as the reconciler last saw them."""
    if row.phase in WITHOUT:
        return []
    answering = [Replica(row.phase, endpoint) for endpoint in row.endpoints]
    missing = max(0, row.applied_replicas - len(answering))
    silent = Phase.STARTING if row.phase is Phase.READY else row.phase
    return answering + [Replica(silent, None)] * missing
