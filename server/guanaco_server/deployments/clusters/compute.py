"""The compute adapter: a cluster, and everything else that depends on the kind of cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from guanaco_server.deployments.clusters.cluster import Cluster


class Leadership(Protocol):
    """Decides which of several platforms that share a cluster may change it. Started and stopped as a loop."""

    def is_leading(self) -> bool: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class SoleLeadership:
    """Leads always: no other platform works with this cluster."""

    def is_leading(self) -> bool:
        return True

    async def start(self) -> None:
        """Nothing to win."""

    async def stop(self) -> None:
        """Nothing to give up."""


@dataclass(frozen=True)
class Compute:
    """Where jobs and model servers run.

    ``python`` is the interpreter that has vLLM and the serializer there, ``cache_dir`` the folder in which a model
    server's machine keeps artifacts. ``regions`` names the clusters, where there are several. With
    ``shares_addresses`` one address stands for all replicas of a deployment.
    """

    cluster: Cluster
    leadership: Leadership
    python: str
    cache_dir: Path
    regions: frozenset[str] = frozenset()
    shares_addresses: bool = False
