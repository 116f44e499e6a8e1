"""Settings of ``cluster = "kubernetes"``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class PoolSettings(BaseModel):
    """A pool of warm pods: how many wait, at most how many after as many claims, and what each asks of its machine, as a recipe would ask for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(ge=0, le=1_000)
    max_size: int | None = Field(default=None, ge=1, le=1_000)
    image: str | None = None
    gpu_type: str | None = None
    gpu_count: int = Field(default=0, ge=0)
    memory_bytes: int | None = Field(default=None, gt=0)
    disk_bytes: int | None = Field(default=None, gt=0)
    shared_memory_bytes: int | None = Field(default=None, gt=0)
    cpus: int | None = Field(default=None, gt=0)


class KubernetesSettings(BaseModel):
    """Kubernetes"""

    kubernetes_contexts: list[str] = Field(
        default=["in-cluster"],
        min_length=1,
        description="The clusters: contexts of the kubeconfig (context or context:namespace), or in-cluster for the one that the platform runs in. Several are regions; jobs run and the Lease is in the first.",
    )
    kubernetes_weights: dict[str, float] = Field(
        default={},
        description="Share of each of several clusters, as JSON by its entry in kubernetes_contexts; 1 where none is given, 0 drains it.",
    )
    kubernetes_kubeconfig: Path | None = Field(
        default=None, description="The kubeconfig. Default: KUBECONFIG or ~/.kube/config."
    )
    kubernetes_namespace: str = Field(
        default="guanaco",
        description="Namespace of jobs and model servers, where the context names none.",
    )
    kubernetes_platform_namespace: str | None = Field(
        default=None,
        description="Namespace of the platform's pods (app.kubernetes.io/name: guanaco), which alone may reach model servers. Default: the same namespace.",
    )
    engine_image: str | None = Field(
        default=None, description="Image of model servers; required with Kubernetes."
    )
    serializer_image: str | None = Field(
        default=None, description="Image of serializer jobs; required with Kubernetes."
    )
    kubernetes_python: str = Field(
        default="python", description="Python within those images, in place of engine_python."
    )
    kubernetes_priority_class: str | None = Field(
        default=None, description="Priority class of the pods. Default: the cluster's own."
    )
    kubernetes_gpu_nodes: dict[str, dict[str, str]] = Field(
        default={},
        description="Node labels of each kind of GPU, as JSON; a kind that is not named is refused. With none named, any GPU will do.",
    )
    kubernetes_server_pod: dict[str, Any] = Field(
        default={},
        description="Further fields of the spec of model servers' pods, as JSON: tolerations, nodeSelector, affinity, runtimeClassName, imagePullSecrets and the like. Objects are merged, lists are added to.",
    )
    kubernetes_job_pod: dict[str, Any] = Field(
        default={}, description="The same for serializer jobs' pods."
    )
    kubernetes_queue: str | None = Field(
        default=None,
        pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        description="LocalQueue of Kueue in their namespace by which model servers' pods are admitted; Kueue's integration for pods must be on. Default: Kueue is not asked.",
    )
    kubernetes_cache_claim: str | None = Field(
        default=None,
        description="A PersistentVolumeClaim in their namespace in which model servers keep artifacts (ReadWriteMany where they run on several nodes). Default: a folder that goes with the pod.",
    )
    kubernetes_cache_path: str | None = Field(
        default=None,
        description="A folder of each node in its place, which user 10001 may write. The namespace must allow hostPath volumes.",
    )
    kubernetes_pools: dict[str, PoolSettings] = Field(
        default={},
        description='Warm pods that wait with vLLM imported, as JSON by the name of their pool: {"small": {"size": 2, "memory_bytes": 8589934592}}; also gpu_type, gpu_count, cpus, disk_bytes, shared_memory_bytes and image. With max_size as many wait as were claimed within the last 15 minutes, from size to max_size. A model server that fits claims one instead of starting a pod. Size 0 keeps none. Not with kubernetes_queue.',
    )
    kubernetes_engine_egress: list[str] = Field(
        default=[],
        description="Where model servers may connect to beside DNS (0.0.0.0/0:443): the artifact store; required with Kubernetes. Private and link-local addresses within are left out; a store in the cluster is named by its own network (10.42.0.0/16:9000).",
    )
    kubernetes_serializer_egress: list[str] = Field(
        default=["0.0.0.0/0:443"],
        description="Where serializer jobs may connect to beside DNS: the artifact store and the Hub; private addresses as above.",
    )
    kubernetes_endpoint: str = Field(
        default="http://{address}:8000",
        description="How the platform reaches a replica, by its pod's {address} or name ({pod}); {context} tells several clusters apart. With neither, one address stands for all replicas of a submission: http://{name}.{namespace}.svc:8000 is its Service's, which is made then only.",
    )
    kubernetes_pending_s: float = Field(
        default=300,
        gt=0,
        description="How long a pod may wait for a machine; autoscalers take minutes.",
    )
