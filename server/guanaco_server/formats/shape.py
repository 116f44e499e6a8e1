"""The shape of an artifact: what a model server must have been started with to take another artifact's weights in place.

Two artifacts of one shape have the same config and tokenizer, byte for byte, and tensors of the same names, types and
sizes. The tokenizer counts because vLLM's server keeps the one that it was started with.

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


def shape_of(manifest: Manifest) -> str:
    """Return the same text for artifacts whose weights can take each other's place in a running server."""
    facts = {
        "files": sorted((file.path, file.sha256) for file in manifest.files),
        "tensors": sorted(
            (record.name, record.dtype, list(record.shape)) for record in manifest.tensors
        ),
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


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
