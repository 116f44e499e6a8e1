"""Settings of the model servers on every kind of cluster, and of the checks that a submission must pass."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, field_validator

from guanaco_server.settings.storage import GIB


class EngineSettings(BaseModel):
    """Model servers"""

    cluster: Literal["local", "kubernetes"] = Field(
        default="local",
        description="Where jobs and model servers run: as processes of this machine, or in Kubernetes.",
    )
    engine_python: Path = Field(
        default=Path(sys.executable),
        description="Python of the environment that has vLLM, torch and tensorizer (`make engine` makes .venv-engine).",
    )
    engine_args: list[str] = Field(
        default=[], description="Further vLLM arguments for every model server."
    )
    engine_command: list[str] | None = Field(
        default=None,
        description="Replaces the engine's own command (`ENGINE_PYTHON -m guanaco_server.engine.serve`), for a wrapper or a scripted server in tests.",
    )
    engine_cache_dir: Path | None = Field(
        default=None,
        description="Folder in which this machine keeps artifacts of a remote store. Default: engine-cache/ in the data folder.",
    )
    engine_cache_bytes: int = Field(
        default=50 * GIB,
        ge=0,
        description="Size limit of that folder; the least recently used artifacts are deleted first. 0 keeps none.",
    )
    engine_memory_bytes: int = Field(
        default=6 * GIB,
        ge=GIB,
        description="Main memory that a model server on this machine may take beside twice its weights, a KV cache on the CPU included.",
    )
    engine_nursery: bool = Field(
        default=True,
        description="Fork model servers on this machine from a process that has imported vLLM, so that a start needs no imports. It takes 0.6 GB from the check of a submission until 15 minutes after the last start. The CPU build only.",
    )
    hot_engines: int | None = Field(
        default=None,
        ge=0,
        le=64,
        description="Model servers that stay although their submissions sleep or are torn down (on Kubernetes those that were claimed from a pool), so that the next one of the same shape that wakes or is submitted takes over its process by a swap of the weights. Where room is asked for, as many go as are needed. No server is kept while the machine has less than 3 GB of memory left. 0 keeps none. Default: 1 on one machine without GPUs, 0 elsewhere, where a server that waits holds a GPU.",
    )
    hot_engine_s: float = Field(
        default=900,
        ge=0,
        description="Seconds for which such a server stays; 0 is until its room is needed.",
    )
    hot_engine_requests: int = Field(
        default=2,
        ge=0,
        le=1_000,
        description="Model servers of one shape that must have been asked for within `hot_engine_s` (an hour where that is 0) before one is started ahead of the next submission, while fewer than `hot_engines` wait and nobody needs the room; one more for as many requests again. On Kubernetes it claims a pod of a pool, and never the last one that waits. 0 starts none ahead.",
    )
    sleep_memory_bytes: int = Field(
        default=16 * GIB,
        ge=0,
        description="Main memory that the weights of model servers may take which stay (`hot_engines`) and sleep beside their GPU, so that they wake without reading them again; what is beyond sleeps without weights. On one machine 3 GB stay free; on Kubernetes only servers whose recipe asks for so much memory keep them. 0 keeps none. Nothing sleeps so on a CPU.",
    )
    lora_serving: Literal["merged", "adapter"] | None = Field(
        default=None,
        description="How LoRA adapters are served: `merged` makes a whole model and a model server of each; `adapter` adds them to one model server of their base, within seconds, and merges what cannot be served so. Default: `adapter` on one machine whose model servers are started by the platform's own command, `merged` elsewhere: set `adapter` there when no process of an earlier version runs any more.",
    )
    lora_max_rank: Literal[8, 16, 32, 64, 128, 256] = Field(
        default=64,
        description="Highest rank of an adapter that is served unmerged; one of a higher rank is merged. Each step up takes memory of every such model server.",
    )
    lora_promote_after: int = Field(
        default=0,
        ge=0,
        description="Votes in the competition `open` after which an adapter that does well is merged into its base as `guanaco promote` does it: it is shown to be better than at least half of the others, by a test that holds at every look. 0 promotes none.",
    )
    lora_at_once: int = Field(
        default=8,
        ge=1,
        le=64,
        description="Adapters with which a model server computes at the same time; requests for further ones wait their turn.",
    )
    lora_kept: int = Field(
        default=32,
        ge=1,
        le=1_024,
        description="Adapters that a model server keeps in main memory, at least `lora_at_once`; others of it are read from its disk when they are asked for.",
    )
    engine_ports: tuple[int, int] = Field(
        default=(21_000, 29_999), description="Ports of model servers, first and last."
    )
    ready_timeout_s: float = Field(
        default=600,
        gt=0,
        description="Longest a model server may take to answer; the tiny model takes 40 s on two cores.",
    )
    restart_limit: int = Field(
        default=3,
        ge=0,
        description="Times a published model server is started again before its submission fails.",
    )
    lifeline_grace_s: float = Field(
        default=60,
        ge=0,
        description="How long model servers outlive a platform that was killed, so that a restart finds them.",
    )

    @field_validator("lora_max_rank", mode="before")
    @classmethod
    def _read_number(cls, value: object) -> object:
        """Take the text of an environment variable as the number that it is."""
        is_number = isinstance(value, str) and value.strip().isdecimal()
        return int(str(value)) if is_number else value


class CheckSettings(BaseModel):
    """Checks before publishing"""

    quantization_max_perplexity_ratio: float = Field(
        default=1.1,
        ge=1,
        description="Largest allowed perplexity of a quantized model on a fixed text, as a multiple of the unquantized model's.",
    )
    stress_requests: int = Field(
        default=60,
        ge=1,
        description="Requests on which the stress check's verdict rests. With 60, a model server that keeps to its limits does so with 95 % confidence.",
    )
    stress_duration_s: float = Field(
        default=3,
        gt=0,
        description="Seconds in which the stress check sends them to a model server that bears it; a slower one has longer.",
    )
    stress_rate: float = Field(
        default=2,
        gt=0,
        description="Requests a second that a model server must bear, sent whether or not earlier ones ended.",
    )
    stress_max_ttft_p95_ms: float = Field(
        default=5_000, gt=0, description="Slowest allowed 95th percentile of time to first token."
    )
    stress_max_tpot_p95_ms: float = Field(
        default=500, gt=0, description="Slowest allowed 95th percentile of time per output token."
    )
    stress_max_e2e_p95_ms: float = Field(
        default=20_000, gt=0, description="Slowest allowed 95th percentile of a whole reply."
    )
