"""Estimates how fast a replica can be at best, and how much of that servers reach.

A step's time is the longer of reading and computing (the roofline: Williams, Waterman, Patterson, CACM 2009):

    decode    reads the weights that its batch touches, and each session's KV cache; bound by bandwidth
    prefill   2 · active weights operations a token, and 4 · heads · head dim a token that it looks back at, in each
              layer; bound by compute (Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 3)
    network   two all-reduces a layer where layers are split, each of 2·(n-1)/n times the activations

``BANDWIDTH_SHARE`` is what decoding reaches of the memory's bandwidth; Databricks' "LLM Inference Performance
Engineering" (2023) measured 55 to 60 %. ``COMPUTE_SHARE`` is what prefill reaches of the dense peak: Pope et al.
reached 76 % on TPUs; half is what we plan with. Neither was measured by us.
"""

from __future__ import annotations

from guanaco_server.recipes.hardware import Gpu
from guanaco_server.recipes.memory import Model, Serving, session_bytes, touched_weights
from guanaco_server.recipes.model_shape import ModelShape, active_parameters

BANDWIDTH_SHARE = 0.6
COMPUTE_SHARE = 0.5
LINK_SHARE = 0.6
ALL_REDUCE_S = 10e-6  # of a small message within one machine, NCCL's order of magnitude
STEP_S = 1e-3  # scheduling, sampling and detokenizing between two steps


def decode_step_s(model: Model, gpu: Gpu, serving: Serving, batch: int, context: int) -> float:
    """One token more for each of ``batch`` sessions that hold ``context`` tokens."""
    placement = serving.placement
    sessions_a_group = -(-batch // placement.data)
    read = touched_weights(model, placement, batch)
    read += sessions_a_group * session_bytes(model.shape, serving, context)
    reading = read / (gpu.bandwidth_bytes * BANDWIDTH_SHARE)
    computing = _compute_s(model, gpu, serving, batch, context)
    return max(reading, computing) + _network_s(model.shape, gpu, serving, batch) + STEP_S


def prefill_s(model: Model, gpu: Gpu, serving: Serving, tokens: float, context: int) -> float:
    """``tokens`` new ones of a prompt of ``context``; what the prefix cache has costs nothing."""
    looked_back_at = context - int(tokens / 2)
    computing = _compute_s(model, gpu, serving, tokens, looked_back_at)
    return computing + _network_s(model.shape, gpu, serving, tokens)


def _compute_s(
    model: Model, gpu: Gpu, serving: Serving, tokens: float, looked_back_at: int
) -> float:
    shape = model.shape
    windowed = min(looked_back_at, shape.window or looked_back_at)
    full_layers = shape.layers - shape.sliding_layers
    seen = full_layers * looked_back_at + shape.sliding_layers * windowed
    operations = tokens * (2 * active_parameters(shape) + 4 * shape.heads * shape.head_dim * seen)
    return operations / (serving.placement.stage_gpus * _flops(model, gpu) * COMPUTE_SHARE)


def _flops(model: Model, gpu: Gpu) -> float:
    is_fp8 = model.shape.weights.quantized(model.quantization).is_fp8
    return gpu.fp8_flops if is_fp8 and gpu.fp8_flops is not None else gpu.bf16_flops


def _network_s(shape: ModelShape, gpu: Gpu, serving: Serving, tokens: float) -> float:
    """The link's figure counts both directions, of which an all-reduce uses each."""
    ranks = serving.placement.stage_gpus
    if ranks == 1:
        return 0.0
    sent = tokens / serving.placement.data * shape.hidden * 2 * 2 * (ranks - 1) / ranks
    one = sent / (gpu.interconnect_bytes / 2 * LINK_SHARE) + ALL_REDUCE_S
    return 2 * shape.layers * one
