"""The shape of an artifact: what a model server must have been started with to take another artifact's weights in place.

Two artifacts of one shape have tensors of the same names, types and sizes, and configs with which vLLM computes the same. A
swap reads the other small files again (tokenizer, tokens that end a reply), and nothing reads chat templates or sampling
defaults, so these do not count.

``SWAPPABLE`` is by vLLM's names of architectures and of what it quantizes to while loading. It names what was shown to be right after a swap by tests/integration/test_swapped_engines.py: the log-probabilities are
those of a fresh server, to the last digit. What is not in it is started in a process of its own. vLLM 0.32 leaves tensors of
the old model behind, without an error, where the output's weights are tied to the embedding's, and in mixtures of experts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from guanaco_server.formats.manifest import Manifest

# The architectures of vLLM, with the quantizations of the deployment; None is the checkpoint's own type.
SWAPPABLE: Mapping[str, frozenset[str | None]] = {
    "LlamaForCausalLM": frozenset({None, "fp8_per_channel", "int8_per_channel_weight_only"}),
    "MistralForCausalLM": frozenset({None}),
    "Qwen2ForCausalLM": frozenset({None}),
    "Qwen3ForCausalLM": frozenset({None}),
}

SCHEME = 2  # the version before hashed all small files; its digests equal none of these

# Fields with which vLLM computes nothing in any of these architectures. Every other field counts, whether it is known or not.
UNUSED = frozenset(
    {
        "_name_or_path",  # the folder or repo that the trainer began with
        "transformers_version",  # who saved it; the tokenizer depends on it, and a swap reads that too
        "unsloth_version",  # who saved it
        "unsloth_fixed",  # the same
        "use_cache",  # vLLM always has a cache of keys and values
        "_attn_implementation_autoset",  # of transformers' attention, which does not run
        "pretraining_tp",  # how transformers splits a multiplication
        "initializer_range",  # of weights before training
        "attention_dropout",  # while training
        "bos_token_id",  # the tokenizer's is used, which a swap reads
        "eos_token_id",  # a swap reads it
        "pad_token_id",  # nothing is padded
    }
)
# Values that vLLM takes where a field is missing. Newer versions of transformers write these, older ones did not.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"attention_bias": False, "mlp_bias": False, "head_dim": None},
    "mistral": {"head_dim": None},
}
WINDOWED = frozenset({"qwen2", "qwen3"})  # whose sliding window has a switch of its own
FULL = "full_attention"


def shape_of(manifest: Manifest, config: Mapping[str, Any]) -> str:
    """Return the same text for artifacts whose weights can take each other's place in a running server.

    ``config`` is the artifact's config.json.
    """
    facts = {
        "scheme": SCHEME,
        "config": computed_with(config),
        "tensors": sorted(
            (record.name, record.dtype, list(record.shape)) for record in manifest.tensors
        ),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def computed_with(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what vLLM computes with of a config, spelled alike whichever version of transformers saved it."""
    kept = {name: value for name, value in config.items() if name not in UNUSED}
    saved_as = kept.pop("torch_dtype", None)  # before transformers 5
    if kept.get("dtype") is None:
        kept["dtype"] = saved_as
    kept = dict(DEFAULTS.get(_text(config, "model_type"), {})) | _with_rope_parameters(kept)
    if "head_dim" in kept and kept["head_dim"] is None:
        kept["head_dim"] = _head_dim(config)
    return _without_unused_window(kept)


def _with_rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Write rotary embeddings as transformers 5 does. What it would not read like this stays as it is."""
    theta, scaling = config.get("rope_theta"), config.get("rope_scaling")
    if config.get("rope_parameters") is not None or theta is None:
        return config
    if scaling is not None and not (isinstance(scaling, dict) and "rope_type" in scaling):
        return config
    others = {
        name: value
        for name, value in config.items()
        if name not in ("rope_theta", "rope_scaling", "rope_parameters")
    }
    parameters = {"rope_theta": theta, "rope_type": "default", **(scaling or {})}
    return {**others, "rope_parameters": parameters}


def _without_unused_window(config: dict[str, Any]) -> dict[str, Any]:
    """Leave out the size of a window that is switched off, and a list of layers that says so once more."""
    is_off = config.get("use_sliding_window", False) is False
    if _text(config, "model_type") not in WINDOWED or not is_off:
        return config
    layers, count = config.get("layer_types"), config.get("num_hidden_layers")
    if layers is not None and not (isinstance(count, int) and layers == [FULL] * count):
        return config
    unused = ("use_sliding_window", "sliding_window", "layer_types")
    return {name: value for name, value in config.items() if name not in unused}


def _head_dim(config: Mapping[str, Any]) -> Any:
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        return hidden // heads
    return None


def _text(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name)
    return value if isinstance(value, str) else ""


def swap_refusal(config: Mapping[str, Any], quantization: str | None) -> str | None:
    """Say why a model of this config cannot be swapped; None if it can."""
    names = config.get("architectures")
    architecture = names[0] if isinstance(names, list) and len(names) == 1 else None
    quantizations = SWAPPABLE.get(str(architecture))
    if quantizations is None:
        return f"The architecture {architecture} is not known to be right after a swap."
    if config.get("tie_word_embeddings", False):
        return "A model whose output is tied to its embedding keeps the output of the one before in a swap."
    if config.get("quantization_config"):
        return "A checkpoint that is quantized itself is not known to be right after a swap."
    if quantization not in quantizations:
        return f"{architecture} with the quantization {quantization} is not known to be right after a swap."
    return None
