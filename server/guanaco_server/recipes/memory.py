"""The memory of one GPU of a replica, and the ways to split a model over the GPUs of a machine.

    budget       memory · gpu_memory_utilization
    weights      ((attention + dense) · bytes + (vocabulary + routers) · 2) / tensor + experts · bytes / GPUs
    KV a token   layers · 2 · max(1, kv heads / tensor) · head dim · bytes       (GQA, arXiv 2305.13245)
                 layers · (kv rank + rope dim) · bytes, whole on each GPU        (MLA, arXiv 2405.04434, section 2.1)
    a session    that, times its tokens; layers with a sliding window stop at the window
    activations  of the largest batch of a step, and the logits of max_num_seqs replies in float32, twice
    overhead     the driver's context with its libraries, and the captured graphs
    nodes        layers split over n machines: weights and sessions of a GPU are an n-th; the steps of a stage follow each other
    sessions     data · ⌊(budget - weights - activations - overhead) / session⌋

More GPUs than KV heads store each head several times: twice the GPUs then hold no more sessions of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from guanaco.recipes import KvCacheDtype
from guanaco.submissions import Quantization
from guanaco_server.recipes.hardware import Gpu, Vendor
from guanaco_server.recipes.model_shape import ModelShape, count_parameters

GIB = 1024**3
BLOCK_TOKENS = 16  # vLLM's pages of the KV cache
CONTEXT_BYTES = GIB  # CUDA or HIP context, BLAS workspaces, buffers of NCCL or RCCL
GRAPH_BYTES = GIB  # vLLM 0.32 takes the graphs out of the same budget; its log shows 0.4 to 1.2 GiB
UTILIZATION = 0.92  # vLLM 0.32's own default
MAX_NUM_SEQS = 256


@dataclass(frozen=True)
class Placement:
    """One replica's GPUs: ``data`` groups, each of which splits every layer over ``tensor`` GPUs.

    On several ``nodes`` each has these for its part of the layers, one stage of a pipeline.
    """

    tensor: int
    data: int = 1
    is_expert_parallel: bool = False
    nodes: int = 1

    @property
    def stage_gpus(self) -> int:
        """The GPUs of one machine, which share its layers."""
        return self.tensor * self.data

    @property
    def gpus(self) -> int:
        return self.stage_gpus * self.nodes


@dataclass(frozen=True)
class Model:
    """``served_bytes`` is the exact size of the weights, where their headers were read."""

    name: str
    shape: ModelShape
    served_bytes: int | None = None
    quantization: Quantization | None = None


@dataclass(frozen=True)
class Serving:
    """The part of a recipe that decides how much memory is needed."""

    placement: Placement
    context_tokens: int
    kv_cache: KvCacheDtype = KvCacheDtype.AUTO
    utilization: float = UTILIZATION
    max_num_seqs: int = MAX_NUM_SEQS

    @property
    def kv_bytes(self) -> int:
        return 1 if self.kv_cache is KvCacheDtype.FP8 else 2


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one GPU; ``sessions`` of the whole replica."""

    weights: float
    activations: float
    overhead: float
    kv_cache: float
    session: float
    sessions: int


def plan_memory(model: Model, gpu: Gpu, serving: Serving) -> MemoryPlan:
    """``sessions`` is 0 where not even one fits beside the weights."""
    weights = weights_a_gpu(model, serving.placement)
    activations = activation_bytes(model.shape, gpu, serving)
    overhead = float(CONTEXT_BYTES + GRAPH_BYTES)
    left = max(0.0, gpu.memory_bytes * serving.utilization - weights - activations - overhead)
    session = session_bytes(model.shape, serving, serving.context_tokens) / serving.placement.nodes
    sessions = serving.placement.data * int(left // session)
    return MemoryPlan(weights, activations, overhead, left, session, sessions)


def weight_bytes(model: Model) -> float:
    """Return the bytes of all weights, as they are served."""
    fixed, experts = _parts(model)
    return fixed + experts


def stored_bytes(model: Model) -> float:
    """Return the bytes of all weights, as the artifact has them."""
    return weight_bytes(replace(model, quantization=None))


def weights_a_gpu(model: Model, placement: Placement) -> float:
    fixed, experts = _parts(model)
    return (fixed / placement.tensor + experts / placement.stage_gpus) / placement.nodes


def touched_weights(model: Model, placement: Placement, tokens: int) -> float:
    """Bytes of weights that one GPU of each stage, one after another, reads for a step of this number of tokens; of the experts, only those that a token chose."""
    fixed, experts = _parts(model)
    shape = model.shape.experts
    share = 1 - (1 - shape.active / shape.total) ** tokens if shape else 0.0
    return fixed / placement.tensor + experts / placement.stage_gpus * share


def session_bytes(shape: ModelShape, serving: Serving, tokens: int) -> float:
    """Return the KV cache of one session on each GPU of its group."""
    tokens = -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS
    if shape.latent is not None:
        a_layer = (shape.latent.kv_rank + shape.latent.rope_dim) * serving.kv_bytes
    else:
        heads = max(1, -(-shape.kv_heads // serving.placement.tensor))
        a_layer = 2 * heads * shape.head_dim * serving.kv_bytes
    windowed = min(tokens, shape.window or tokens)
    full_layers = shape.layers - shape.sliding_layers
    return float(a_layer * (full_layers * tokens + shape.sliding_layers * windowed))


def activation_bytes(shape: ModelShape, gpu: Gpu, serving: Serving) -> float:
    """Residual, its normed copy, queries, keys and values, and the widest MLP of the largest step, in bfloat16."""
    tensor = serving.placement.tensor
    attention = (shape.heads + 2 * shape.kv_heads) * shape.head_dim / tensor
    mlp = 2 * shape.intermediate / tensor if shape.dense_layers else 0.0
    if shape.experts is not None:  # each token's copies, one for each expert that it chose
        inner = shape.experts.intermediate
        split = 1 if serving.placement.is_expert_parallel else tensor
        mlp = max(mlp, shape.experts.active * (2 * inner / split + shape.hidden))
    step = batched_tokens(gpu) * 2 * (4 * shape.hidden + attention + mlp)
    return step + serving.max_num_seqs * shape.vocab * 2 * 4


def batched_tokens(gpu: Gpu) -> int:
    """vLLM 0.32's default of ``max_num_batched_tokens`` for a server: EngineArgs, by the GPU's memory."""
    if gpu.memory_bytes >= 160 * GIB:
        return 16_384
    is_a100 = gpu.vendor is Vendor.NVIDIA and gpu.name.startswith("A100")
    return 8_192 if gpu.memory_bytes >= 70 * GIB and not is_a100 else 2_048


def _parts(model: Model) -> tuple[float, float]:
    """Bytes of what is split by ``tensor``, and of the experts; scaled to the exact size where it is known."""
    stored = _formula(model, None)
    factor = model.served_bytes / sum(stored) if model.served_bytes else 1.0
    fixed, experts = _formula(model, model.quantization)
    return fixed * factor, experts * factor


def _formula(model: Model, quantization: Quantization | None) -> tuple[float, float]:
    weights = model.shape.weights.quantized(quantization)
    parameters = count_parameters(model.shape)
    fixed = (parameters.attention + parameters.dense) * weights.linear_bytes
    plain = (parameters.vocabulary + parameters.router) * weights.plain_bytes
    return fixed + plain, parameters.experts * weights.expert_bytes


def possible_placements(shape: ModelShape, max_gpus: int) -> Iterator[Placement]:
    """Smallest first; a power of two GPUs. A mixture keeps its experts whole, once there are two GPUs.

    Models with latent attention may also be replicated in groups (data parallel): their KV cache cannot be split.
    """
    gpus = 1
    while gpus <= max_gpus:
        for data in _powers_up_to(gpus) if shape.latent and shape.experts else (1,):
            placement = Placement(gpus // data, data, shape.experts is not None and gpus > 1)
            if obstacle(shape, placement) is None:
                yield placement
        gpus *= 2


def obstacle(shape: ModelShape, placement: Placement) -> str | None:
    """Return why vLLM would refuse the split, as the end of a sentence; None if it would not."""
    tensor = placement.tensor
    if placement.nodes > 1 and placement.data > 1:
        return "data parallel groups are not spread over several machines"
    if shape.layers < placement.nodes:
        return f"{shape.layers} layers cannot be split over {placement.nodes} machines"
    if shape.heads % tensor:
        return f"{shape.heads} attention heads cannot be split over {tensor} GPUs"
    if shape.latent is None and shape.kv_heads % tensor and tensor % shape.kv_heads:
        return f"{shape.kv_heads} KV heads cannot be split over {tensor} GPUs"
    if shape.dense_layers and shape.intermediate % tensor:
        return f"MLPs {shape.intermediate} wide cannot be split over {tensor} GPUs"
    experts = shape.experts.total if shape.experts and placement.is_expert_parallel else None
    if experts is not None and experts < placement.stage_gpus:
        return f"{experts} experts cannot be spread over {placement.stage_gpus} GPUs"
    return _cut_block(shape, placement)


def _cut_block(shape: ModelShape, placement: Placement) -> str | None:
    """vLLM 0.32 refuses to cut fp8's blocks: ``validate_fp8_block_shape`` and its twin for mixtures."""
    block = shape.weights.block
    if block is None:
        return None
    splits = [(shape.intermediate, placement.tensor)] if shape.dense_layers else []
    if shape.experts is not None and not placement.is_expert_parallel:
        splits.append((shape.experts.intermediate, placement.stage_gpus))
    for width, parts in splits:
        if width % (parts * block):
            return f"fp8 blocks of {block} do not come out even when {width} are split over {parts} GPUs"
    return None


def _powers_up_to(limit: int) -> Iterator[int]:
    power = 1
    while power <= limit:
        yield power
        power *= 2
