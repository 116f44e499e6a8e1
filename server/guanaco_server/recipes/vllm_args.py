"""A recipe as vLLM 0.32's arguments."""

from __future__ import annotations

from guanaco.recipes import KvCacheDtype, Recipe
from guanaco.submissions import Quantization

ENGINE_QUANTIZATION = {  # vLLM 0.32's names for what it quantizes while loading
    Quantization.FP8: "fp8_per_channel",  # weights by channel, activations by token: its most exact fp8
    Quantization.INT8: "int8_per_channel_weight_only",  # a mixture's experts, and nothing else
}


def to_vllm_args(recipe: Recipe) -> tuple[str, ...]:
    """Those that the recipe decides, in an order of their own; the recipe's further flags come last and win."""
    is_fp8_cache = recipe.kv_cache_dtype is KvCacheDtype.FP8
    return (
        *("--max-model-len", str(recipe.max_model_len)),
        *quantization_args(recipe.quantization),
        *("--tensor-parallel-size", str(recipe.tensor_parallel)),
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
