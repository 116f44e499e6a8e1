"""Models that a plan can name without a Hub."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from guanaco.errors import InvalidInput
from guanaco.forms import Repo

# Models whose config.json is known here, so that a plan can be made without a Hub. Figures from their repos.
LLAMA_3_8B: dict[str, Any] = {  # meta-llama/Meta-Llama-3-8B-Instruct
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4_096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
    "max_position_embeddings": 8_192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN3_235B: dict[str, Any] = {  # Qwen/Qwen3-235B-A22B
    "model_type": "qwen3_moe",
    "num_hidden_layers": 94,
    "hidden_size": 4_096,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12_288,
    "moe_intermediate_size": 1_536,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN3_235B_FP8 = QWEN3_235B | {  # Qwen/Qwen3-235B-A22B-FP8
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}
}

PRESETS: dict[str, dict[str, Any]] = {
    "llama-3-8b": LLAMA_3_8B,
    "qwen3-235b-a22b": QWEN3_235B,
    "qwen3-235b-a22b-fp8": QWEN3_235B_FP8,
}


def find_preset(name: str) -> dict[str, Any] | None:
    """Return the config.json of a preset, named in any case and with any organisation."""
    return PRESETS.get(name.lower().rpartition("/")[2])


def require_repo(name: str) -> str:
    """InvalidInput for what can be no repo of the Hub."""
    try:
        return TypeAdapter(Repo).validate_python(name)
    except ValidationError:
        raise InvalidInput(
            f"{name[:80]!r} is no preset, no folder and no repo of the Hub.",
            hint=f"Presets are {', '.join(PRESETS)}; a repo looks like org/name.",
        ) from None
