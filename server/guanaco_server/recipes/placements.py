"""In which ways a model can be split over GPUs of one machine."""

from __future__ import annotations

from collections.abc import Iterator

from guanaco_server.recipes.memory import Placement
from guanaco_server.recipes.model_shape import ModelShape


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
    """Why vLLM would refuse the split, as the end of a sentence; None where it would not."""
    tensor = placement.tensor
    if shape.heads % tensor:
        return f"{shape.heads} attention heads cannot be split over {tensor} GPUs"
    if shape.latent is None and shape.kv_heads % tensor and tensor % shape.kv_heads:
        return f"{shape.kv_heads} KV heads cannot be split over {tensor} GPUs"
    if shape.dense_layers and shape.intermediate % tensor:
        return f"MLPs {shape.intermediate} wide cannot be split over {tensor} GPUs"
    experts = shape.experts.total if shape.experts and placement.is_expert_parallel else None
    if experts is not None and experts < placement.gpus:
        return f"{experts} experts cannot be spread over {placement.gpus} GPUs"
    return _cut_block(shape, placement)


def _cut_block(shape: ModelShape, placement: Placement) -> str | None:
    """vLLM 0.32 refuses to cut fp8's blocks: ``validate_fp8_block_shape`` and its twin for mixtures."""
    block = shape.weights.block
    if block is None:
        return None
    splits = [(shape.intermediate, placement.tensor)] if shape.dense_layers else []
    if shape.experts is not None and not placement.is_expert_parallel:
        splits.append((shape.experts.intermediate, placement.gpus))
    for width, parts in splits:
        if width % (parts * block):
            return f"fp8 blocks of {block} do not come out even when {width} are split over {parts} GPUs"
    return None


def _powers_up_to(limit: int) -> Iterator[int]:
    power = 1
    while power <= limit:
        yield power
        power *= 2
