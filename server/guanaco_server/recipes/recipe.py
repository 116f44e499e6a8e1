"""Finds the cheapest GPUs of the platform that can serve a model as it is asked for.

    for each type of GPU, for 1, 2, 4 … of them, for each way to split the model over them:
        do weights, activations and the wanted sessions' KV cache fit?      memory.py
        does each session get its tokens a second when all generate?        roofline.py
    the cheapest of those; of equals the fewest GPUs, then the one with room for most sessions

The KV cache is fp8 where weights are fp8 already and the GPU computes fp8, else as the model is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from guanaco.errors import NoRecipe
from guanaco.recipes import ImageKind, KvCacheDtype, Recipe, RecipeOverride
from guanaco.submissions import Quantization
from guanaco_server.recipes.hardware import Gpu, Vendor, find_gpu
from guanaco_server.recipes.machine import machine_needs
from guanaco_server.recipes.memory import (
    MAX_NUM_SEQS,
    UTILIZATION,
    Model,
    Placement,
    Serving,
    obstacle,
    plan_memory,
    possible_placements,
    stored_bytes,
    weight_bytes,
)
from guanaco_server.recipes.prices import DEFAULT_TABLE, PriceTable
from guanaco_server.recipes.roofline import decode_step_s

GB = 10**9
NO_OVERRIDE = RecipeOverride()
# AMD's vLLM guide: https://rocm.docs.amd.com/en/latest/how-to/rocm-for-ai/inference-optimization/vllm-optimization.html
ROCM_ENVIRONMENT = {
    "VLLM_ROCM_USE_AITER": "1",  # AMD's own kernels; vLLM 0.32 leaves them off
    "HIP_FORCE_DEV_KERNARG": "1",
    "TORCH_BLAS_PREFER_HIPBLASLT": "1",
}
ROCM_MANY_ENVIRONMENT = {"NCCL_MIN_NCHANNELS": "112"}  # the same guide, for several GPUs


@dataclass(frozen=True)
class Needs:
    """``sessions`` of ``context_tokens`` at once in one replica, each with at least ``tokens_per_second``."""

    context_tokens: int
    sessions: int = 1
    tokens_per_second: float = 0.0


@dataclass(frozen=True)
class Fleet:
    """The GPUs that a platform may use; ``max_gpus`` is what one machine has."""

    gpus: tuple[Gpu, ...] = ()
    prices: PriceTable = DEFAULT_TABLE
    max_gpus: int = 8

    def named(self, name: str) -> Gpu:
        """NoSuchGpu for a type that the platform does not have."""
        return find_gpu(name, [gpu.name for gpu in self.gpus])


NO_GPUS = Fleet()


@dataclass(frozen=True)
class RecipeCandidate:
    gpu: Gpu
    serving: Serving
    sessions: int


def choose(
    model: Model, needs: Needs, fleet: Fleet, override: RecipeOverride = NO_OVERRIDE
) -> Recipe:
    """Return the cheapest recipe that meets the needs; NoRecipe where there is none, NoSuchGpu for an override's."""
    gpus = (fleet.named(override.gpu),) if override.gpu else fleet.gpus
    candidates = [
        candidate
        for gpu in gpus
        for candidate in _candidates(model, gpu, needs, fleet.max_gpus, override)
        if _is_enough(model, candidate, needs)
    ]
    if not candidates:
        raise _no_recipe(model, needs, gpus, override)
    best = min(candidates, key=lambda each: _cost(each, fleet.prices))
    return as_recipe(
        best.gpu, best.serving, model.quantization, override, best.sessions, stored_bytes(model)
    )


def pinned(
    gpu: Gpu,
    needs: Needs,
    override: RecipeOverride,
    quantization: Quantization | None,
    stored_bytes: float,
) -> Recipe:
    """Make the recipe from the override alone, for models whose shape is not known."""
    stage = (override.tensor_parallel or 1) * (override.data_parallel or 1)
    placement = _overridden(Placement(1), override.gpus or stage * (override.nodes or 1), override)
    serving = _serving(gpu, placement, needs, override, KvCacheDtype.AUTO)
    return as_recipe(gpu, serving, quantization, override, None, stored_bytes)


def servings(
    model: Model, gpu: Gpu, needs: Needs, max_gpus: int, override: RecipeOverride = NO_OVERRIDE
) -> Iterator[Serving]:
    """Every way in which vLLM could split the model over GPUs of this type, and the override allows."""
    weights = model.shape.weights.quantized(model.quantization)
    kv_cache = KvCacheDtype.FP8 if weights.is_fp8 and gpu.has_fp8 else KvCacheDtype.AUTO
    for placement in _placements(model, max_gpus, override):
        yield _serving(gpu, placement, needs, override, kv_cache)


def as_recipe(
    gpu: Gpu,
    serving: Serving,
    quantization: Quantization | None,
    override: RecipeOverride,
    sessions: int | None,
    stored_bytes: float,
) -> Recipe:
    is_rocm = gpu.vendor is Vendor.AMD
    placement = serving.placement
    environment = ROCM_ENVIRONMENT if is_rocm else {}
    if is_rocm and placement.gpus > 1:
        environment = environment | ROCM_MANY_ENVIRONMENT
    return Recipe(
        gpu_type=gpu.name,
        gpu_count=placement.gpus,
        tensor_parallel=placement.tensor,
        data_parallel=placement.data,
        nodes=placement.nodes,
        expert_parallel=placement.stage_gpus if placement.is_expert_parallel else 1,
        gpu_memory_utilization=serving.utilization,
        kv_cache_dtype=serving.kv_cache,
        quantization=quantization,
        max_num_seqs=serving.max_num_seqs,
        max_model_len=serving.context_tokens,
        flags=tuple(override.flags),
        environment=environment | override.environment,
        image=ImageKind.ROCM if is_rocm else ImageKind.CUDA,
        sessions=sessions,
        machine=machine_needs(
            placement.stage_gpus, stored_bytes, override.cpus, override.memory_bytes
        ),
    )


def _candidates(
    model: Model, gpu: Gpu, needs: Needs, max_gpus: int, override: RecipeOverride
) -> Iterator[RecipeCandidate]:
    for serving in servings(model, gpu, needs, max_gpus, override):
        yield RecipeCandidate(gpu, serving, plan_memory(model, gpu, serving).sessions)


def _placements(model: Model, max_gpus: int, override: RecipeOverride) -> Iterator[Placement]:
    """Yield the possible placements that the override allows, also those that would not be chosen otherwise."""
    if not _splits(override):
        yield from possible_placements(model.shape, max_gpus)
        return
    for gpus in [override.gpus] if override.gpus else [1, 2, 4, 8, 16, 32, 64]:
        placement = _overridden(_default(model, gpus), gpus, override)
        is_allowed = placement.gpus == gpus <= max(max_gpus * placement.nodes, override.gpus or 1)
        if is_allowed and obstacle(model.shape, placement) is None:
            yield placement


def _splits(override: RecipeOverride) -> bool:
    own = (
        override.gpus,
        override.nodes,
        override.tensor_parallel,
        override.data_parallel,
        override.expert_parallel,
    )
    return any(each is not None for each in own)


def _default(model: Model, gpus: int) -> Placement:
    return Placement(gpus, 1, model.shape.experts is not None and gpus > 1)


def _overridden(default: Placement, gpus: int, override: RecipeOverride) -> Placement:
    nodes = override.nodes or 1
    stage = max(1, gpus // nodes)
    data = override.data_parallel or max(1, stage // (override.tensor_parallel or stage))
    tensor = override.tensor_parallel or max(1, stage // data)
    whole = override.expert_parallel
    return Placement(tensor, data, default.is_expert_parallel if whole is None else whole, nodes)


def _serving(
    gpu: Gpu, placement: Placement, needs: Needs, override: RecipeOverride, kv_cache: KvCacheDtype
) -> Serving:
    return Serving(
        placement=placement,
        context_tokens=needs.context_tokens,
        kv_cache=override.kv_cache_dtype or kv_cache,
        utilization=override.gpu_memory_utilization or UTILIZATION,
        max_num_seqs=override.max_num_seqs or min(1_024, max(MAX_NUM_SEQS, needs.sessions)),
    )


def _is_enough(model: Model, candidate: RecipeCandidate, needs: Needs) -> bool:
    if candidate.sessions < needs.sessions:
        return False
    step = decode_step_s(
        model, candidate.gpu, candidate.serving, needs.sessions, needs.context_tokens
    )
    return 1 / step >= needs.tokens_per_second


def _cost(candidate: RecipeCandidate, prices: PriceTable) -> tuple[float, int, int]:
    gpus = candidate.serving.placement.gpus
    return gpus * prices.per_hour(candidate.gpu.name), gpus, -candidate.sessions


def _no_recipe(
    model: Model, needs: Needs, gpus: Sequence[Gpu], override: RecipeOverride
) -> NoRecipe:
    if override.gpus:
        reason = obstacle(
            model.shape, _overridden(_default(model, override.gpus), override.gpus, override)
        )
        if reason is not None:
            return NoRecipe(
                f"{model.name} cannot be served so: {reason}.",
                hint="Choose another number of GPUs.",
            )
    speed = f" at {needs.tokens_per_second:g} tokens a second" if needs.tokens_per_second else ""
    what = f"{model.name} has {weight_bytes(model) / GB:,.1f} GB of weights"
    names = ", ".join(gpu.name for gpu in gpus) or "no type of GPU"
    count = f"{override.gpus} of " if override.gpus else ""
    return NoRecipe(
        f"{what}, which with {needs.sessions} sessions of {needs.context_tokens:,} tokens{speed} no machine with {count}{names} can serve.",
        hint="Ask for a shorter context or for quantization; an operator adds larger GPUs to gpu_types.",
    )


@dataclass(frozen=True)
class RecipePolicy:
    """The rules by which recipes are made; none are made without GPUs. ``images`` are model servers' images, where they differ from the cluster's own."""

    fleet: Fleet = NO_GPUS
    sessions: int = 16
    tokens_per_second: float = 0.0
    images: Mapping[ImageKind, str] = field(default_factory=dict)

    @property
    def has_gpus(self) -> bool:
        return bool(self.fleet.gpus)

    def needs(self, max_model_tokens: int) -> Needs:
        return Needs(max_model_tokens, self.sessions, self.tokens_per_second)


NO_RECIPES = RecipePolicy()


NODE_ARGS = ("--node-rank", "{rank}", "--master-addr", "{leader}")  # filled in by the cluster
ENGINE_QUANTIZATION = {  # vLLM 0.32's names for what it quantizes while loading
    Quantization.FP8: "fp8_per_channel",  # weights by channel, activations by token: its most exact fp8
    Quantization.INT8: "int8_per_channel_weight_only",  # a mixture's experts, and nothing else
}


def to_vllm_args(recipe: Recipe) -> tuple[str, ...]:
    """Return the arguments that the recipe decides. Its further flags come last and win."""
    is_fp8_cache = recipe.kv_cache_dtype is KvCacheDtype.FP8
    return (
        *("--max-model-len", str(recipe.max_model_len)),
        *quantization_args(recipe.quantization),
        *("--tensor-parallel-size", str(recipe.tensor_parallel)),
        *_when(recipe.nodes > 1, "--pipeline-parallel-size", str(recipe.nodes), *NODE_ARGS),
        *_when(recipe.nodes > 1, "--nnodes", str(recipe.nodes)),
        *_when(recipe.data_parallel > 1, "--data-parallel-size", str(recipe.data_parallel)),
        *_when(recipe.expert_parallel > 1, "--enable-expert-parallel"),
        *("--gpu-memory-utilization", f"{recipe.gpu_memory_utilization:g}"),
        *_when(is_fp8_cache, "--kv-cache-dtype", KvCacheDtype.FP8.value),
        *("--max-num-seqs", str(recipe.max_num_seqs)),
        *recipe.flags,
    )


def quantization_args(quantization: Quantization | None) -> tuple[str, ...]:
    return ("--quantization", ENGINE_QUANTIZATION[quantization]) if quantization else ()


def _when(is_wanted: bool, *args: str) -> tuple[str, ...]:
    return args if is_wanted else ()
