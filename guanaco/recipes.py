"""Models of recipes: the GPUs that serve a model, how it is split, with which arguments; and what an admin has set."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo

from guanaco.contract import is_tolerant
from guanaco.open_enum import OpenEnum
from guanaco.submissions import Quantization

OWN_FLAGS = frozenset(  # the platform's own, which a recipe may not change
    {
        "--model",
        "--host",
        "--port",
        "--served-model-name",
        "--load-format",
        "--model-loader-extra-config",
        "--max-model-len",
        "--trust-remote-code",
        "--config",
        "--api-key",
        "--nnodes",
        "--node-rank",
        "--master-addr",
        "--headless",
    }
)
FLAG = re.compile(r"--[a-z][a-z0-9-]*(=.+)?")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")


class ImageKind(OpenEnum):
    """The builds of vLLM that a model server may need."""

    CUDA = "cuda"
    ROCM = "rocm"
    CPU = "cpu"


class KvCacheDtype(OpenEnum):
    """``auto`` is the model's own type."""

    AUTO = "auto"
    FP8 = "fp8"


def _check_flag(flag: str, info: ValidationInfo) -> str:
    """A flag that was stored stays valid when a later version makes it the platform's own."""
    if is_tolerant(info):
        return flag
    if FLAG.fullmatch(flag) is None:
        raise ValueError("A flag looks like --name or --name=value")
    if flag.partition("=")[0] in OWN_FLAGS:
        raise ValueError(f"{flag.partition('=')[0]} is the platform's own")
    return flag


def _check_variables(environment: dict[str, str]) -> dict[str, str]:
    if wrong := next((name for name in environment if VARIABLE.fullmatch(name) is None), None):
        raise ValueError(f"{wrong[:80]!r} is no name of a variable")
    return environment


Flag = Annotated[str, StringConstraints(max_length=512), AfterValidator(_check_flag)]
Environment = Annotated[dict[str, str], AfterValidator(_check_variables)]
GpuCount = Annotated[int, Field(ge=1, le=64)]


class MachineNeeds(BaseModel):
    """The CPUs, memory and disk that one replica takes of each of its machines. Shared memory is a part of the memory."""

    model_config = ConfigDict(frozen=True)

    cpus: int
    memory_bytes: int
    shared_memory_bytes: int
    cache_bytes: int = Field(description="Disk for the artifact.")
    tmp_bytes: int = Field(description="Disk for temporary files.")

    @property
    def disk_bytes(self) -> int:
        return self.cache_bytes + self.tmp_bytes


class Recipe(BaseModel):
    """One replica: ``gpu_count`` GPUs of one type, which is ``nodes`` times ``tensor_parallel`` times ``data_parallel``."""

    model_config = ConfigDict(frozen=True)

    gpu_type: str
    gpu_count: int
    nodes: int = Field(
        default=1,
        description="Machines that share the replica: each has the same number of its GPUs, and a part of the layers (pipeline parallel).",
    )
    tensor_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: int = Field(default=1, description="GPUs over which whole experts are spread.")
    gpu_memory_utilization: float = 0.92
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO
    quantization: Quantization | None = None
    max_num_seqs: int = 256
    max_model_len: int
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    image: ImageKind = ImageKind.CUDA
    sessions: int | None = Field(
        default=None, description="Sessions of max_model_len tokens that fit; None if nobody knows."
    )
    machine: MachineNeeds | None = Field(
        default=None,
        description="Null if an earlier version chose: then the cluster's defaults count.",
    )


class RecipeOverride(BaseModel):
    """An admin's own choices for a submission; None leaves a choice to the platform."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu: str | None = Field(default=None, description="A type of GPU that the platform has.")
    gpus: GpuCount | None = Field(
        default=None, description="GPUs of one replica, on all its machines together."
    )
    nodes: int | None = Field(
        default=None,
        ge=1,
        le=16,
        description="Machines over which the layers of one replica are split. More than one needs LeaderWorkerSet on Kubernetes.",
    )
    tensor_parallel: GpuCount | None = None
    data_parallel: GpuCount | None = None
    expert_parallel: bool | None = Field(
        default=None, description="True if a mixture's experts are spread whole over the GPUs."
    )
    gpu_memory_utilization: float | None = Field(default=None, ge=0.1, le=0.98)
    kv_cache_dtype: KvCacheDtype | None = None
    max_num_seqs: int | None = Field(default=None, ge=1, le=4_096)
    cpus: int | None = Field(
        default=None, ge=1, le=1_024, description="CPUs that a replica asks each machine for."
    )
    memory_bytes: int | None = Field(
        default=None,
        ge=2**30,
        le=2**44,
        description="Memory that a replica asks each machine for, its shared memory included.",
    )
    flags: list[Flag] = Field(default=[], max_length=32, description="Further vLLM flags.")
    environment: Environment = Field(default={}, max_length=32)


class RecipeStatus(BaseModel):
    """``override`` counts from the next redeploy on; ``served`` is what the model server runs with now."""

    submission_id: str
    override: RecipeOverride | None
    served: Recipe | None
