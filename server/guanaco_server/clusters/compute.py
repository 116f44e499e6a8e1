"""The compute adapter: a cluster, and everything else that depends on the kind of cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from guanaco_server.clusters.cluster import Cluster
from guanaco_server.clusters.leadership import Leadership
from guanaco_server.clusters.redacted import RedactedCluster
from guanaco_server.observability.redaction import Redaction


@dataclass(frozen=True)
class Compute:
    """The place where jobs and model servers run.

    ``python`` is the interpreter that has vLLM and the serializer there, ``cache_dir`` the folder in which a model
    server's machine keeps artifacts. ``regions`` names the clusters, where there are several. With
    ``shares_addresses`` one address stands for all replicas of a deployment. ``has_memory`` tells whether
    servers that nobody uses may stay, beside what takes the given bytes.
    """

    cluster: Cluster
    leadership: Leadership
    python: str
    cache_dir: Path
    regions: frozenset[str]
    shares_addresses: bool
    has_memory: Callable[[int], bool]

    def redacted(self, redaction: Redaction) -> Compute:
        """Return the same, where whatever jobs and model servers say is cleaned first."""
        return replace(self, cluster=RedactedCluster(self.cluster, redaction))
