"""Checks that config.json describes the tensors that the headers name, which vLLM would report after minutes or never.

    always            no number beyond what any model has: vLLM makes layers, caches and tables of that size
    every model       layers, rows of the embedding, and the hidden size, where the config says them
    known families    besides, the shape of each projection, from heads, KV heads, head size, widths and experts;
                      an embedding and a last norm, and in each layer attention, norms and an MLP or all experts;
                      an output matrix unless it is the embedding

A checkpoint that is quantized already packs its projections: what it lacks is found there too, shapes are not compared.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from guanaco.errors import CorruptConfig, CorruptWeights
from guanaco_server.formats.safetensors_header import TensorInfo
from guanaco_server.recipes.model_shape import GATED, MIXTURES, TIED_BY_DEFAULT, text_config

EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "tok_embeddings.weight",
    "embeddings.weight",
)
MOST = {
    "num_hidden_layers": 1_000,
    "n_layer": 1_000,
    "num_layers": 1_000,
    "hidden_size": 100_000,
    "n_embd": 100_000,
    "intermediate_size": 1_000_000,
    "moe_intermediate_size": 1_000_000,
    "shared_expert_intermediate_size": 1_000_000,
    "num_attention_heads": 4_096,
    "n_head": 4_096,
    "num_key_value_heads": 4_096,
    "head_dim": 8_192,
    "vocab_size": 10_000_000,
    "num_experts": 8_192,
    "num_local_experts": 8_192,
    "n_routed_experts": 8_192,
    "num_experts_per_tok": 8_192,
    "max_position_embeddings": 20_000_000,  # Llama 4 Scout has 10,485,760
    "n_positions": 20_000_000,
    "original_max_position_embeddings": 20_000_000,
    "num_nextn_predict_layers": 16,
}
# Counts that are above 0 in every model. A known family says a whole number; another may give a list, one for each layer.
POSITIVE = (
    *("num_hidden_layers", "n_layer", "num_layers", "hidden_size", "n_embd", "intermediate_size"),
    *("num_attention_heads", "n_head", "vocab_size"),
)
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")
HIDDEN_SIZES = ("hidden_size", "n_embd")
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,6})\.(.+)")
COMPARED_MIXTURES = MIXTURES - {"phimoe"}  # whose projections have other names
FAMILIES = GATED | COMPARED_MIXTURES
# The parts of each layer in the known families; the second way is that of checkpoints with fused projections.
NORMS = ("input_layernorm", "post_attention_layernorm")
ATTENTION = (
    tuple(f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")),
    ("self_attn.qkv_proj", "self_attn.o_proj"),
)
MLP = (
    ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    ("mlp.gate_up_proj", "mlp.down_proj"),
)
EXPERT_COUNTS = ("num_experts", "num_local_experts")
EXPERT = re.compile(r"\.experts\.(\d{1,6})\.(\w+)")
SAME_SAVE = "Push the config and the weights of the same save."

Config = dict[str, Any]
Shapes = Mapping[str, tuple[int, ...]]


def check_consistency(config: Config, tensors: Iterable[TensorInfo], *, has_head: bool) -> None:
    """CorruptConfig or CorruptWeights where the two contradict each other. ``has_head`` of a model that generates."""
    text = text_config(config)
    for part in (config, text):
        _require_sane(part)
    shapes = {info.name: info.shape for info in tensors}
    layers = _layers(shapes)
    _check_layers(text, layers)
    is_known = text.get("model_type") in FAMILIES
    _check_vocabulary(text, shapes, is_known=is_known)
    if is_known:
        _require_complete(text, shapes, layers)
    if "quantization_config" in config or "quantization_config" in text:
        return
    if is_known and _int(text, "num_attention_heads"):
        _check_projections(text, layers)
        if has_head:
            _check_output(config, text, shapes)


def is_embedding(info: TensorInfo) -> bool:
    return len(info.shape) == 2 and info.name.endswith(EMBEDDINGS)


def _require_sane(config: Config) -> None:
    is_known = config.get("model_type") in FAMILIES
    for name, most in MOST.items():
        value = config.get(name)
        if value is None:
            continue
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_known and type(value) is not int:
            raise CorruptConfig(
                f"{name} in config.json is {str(value)[:40]!r}, and not a whole number."
            )
        if is_number and value > most:
            raise CorruptConfig(
                f"{name} in config.json is {str(value)[:40]}; {most:,} are allowed."
            )
    for name in POSITIVE:
        if name in config and not _is_count(config[name], is_known):
            raise CorruptConfig(
                f"{name} in config.json is {str(config[name])[:40]}, and not a whole number over 0."
            )
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if isinstance(scaling, dict):
        positions = _int(config, "max_position_embeddings") or 1
        factor = scaling.get("factor")
        most = MOST["max_position_embeddings"]
        if isinstance(factor, (int, float)) and not 0 < factor * positions <= 16 * most:
            raise CorruptConfig(f"The factor of rope_scaling in config.json is {str(factor)[:40]}.")


def _is_count(value: object, is_known: bool) -> bool:
    if not is_known and (value is None or isinstance(value, list)):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _layers(shapes: Shapes) -> dict[int, dict[str, tuple[int, ...]]]:
    """Return the tensors of each layer, by their names inside it. Other stacks, as of a vision part, are left out."""
    found: dict[str, dict[int, dict[str, tuple[int, ...]]]] = defaultdict(lambda: defaultdict(dict))
    for name, shape in shapes.items():
        match = LAYER.search(name)
        if match is not None and "vision" not in name and "audio" not in name:
            found[name[: match.start()]][int(match[1])][match[2]] = shape
    return max(found.values(), key=len, default={})


def _check_layers(text: Config, layers: Mapping[int, object]) -> None:
    declared = next((_int(text, name) for name in LAYER_COUNTS if _int(text, name)), None)
    if declared is None or not layers:
        if declared is not None and text.get("model_type") in FAMILIES:
            raise CorruptConfig(
                f"config.json has {declared:,} layers, and the weights have none.",
                hint=SAME_SAVE,
            )
        return
    missing = next((number for number in range(declared) if number not in layers), None)
    if missing is not None:
        raise CorruptConfig(
            f"config.json has {declared:,} layers, and the weights have no layer {missing:,} (they have {len(layers):,}).",
            hint=SAME_SAVE,
        )
    extra = len(layers) - declared - (_int(text, "num_nextn_predict_layers") or 0)
    if extra > 0 and text.get("model_type") in FAMILIES:
        raise CorruptConfig(
            f"config.json has {declared:,} layers, and the weights have {len(layers):,}.",
            hint=SAME_SAVE,
        )


def _check_vocabulary(text: Config, shapes: Shapes, *, is_known: bool) -> None:
    embedding = _embedding(shapes)
    hidden = next((_int(text, name) for name in HIDDEN_SIZES if _int(text, name)), None)
    rows = _int(text, "vocab_size")
    if embedding is None:
        return
    if rows is not None and (rows > embedding[0] or (is_known and rows != embedding[0])):
        raise CorruptConfig(
            f"vocab_size in config.json is {rows:,}, and the embedding has {embedding[0]:,} rows.",
            hint=SAME_SAVE,
        )
    if hidden is not None and (hidden != embedding[1] if is_known else not _occurs(hidden, shapes)):
        raise CorruptConfig(
            f"hidden_size in config.json is {hidden:,}, and the embedding has {embedding[1]:,} columns.",
            hint=SAME_SAVE,
        )


def _embedding(shapes: Shapes) -> tuple[int, ...] | None:
    return next((s for n, s in shapes.items() if len(s) == 2 and n.endswith(EMBEDDINGS)), None)


def _occurs(size: int, shapes: Shapes) -> bool:
    return any(size in shape for shape in shapes.values())


def _check_projections(text: Config, layers: Mapping[int, Shapes]) -> None:
    expected = _expected(text)
    for number, tensors in sorted(layers.items()):
        if number >= (_int(text, "num_hidden_layers") or 0):
            continue  # it predicts further tokens, and has a shape of its own
        for name, shape in tensors.items():
            wanted = expected.get(re.sub(r"\.experts\.\d+\.", ".experts.*.", name))
            if wanted is not None and shape != wanted:
                raise CorruptConfig(
                    f"By config.json {name} of layer {number} is {_format_shape(wanted)}, and in the weights it is {_format_shape(shape)}.",
                    hint=SAME_SAVE,
                )


def _require_complete(text: Config, shapes: Shapes, layers: Mapping[int, Shapes]) -> None:
    """CorruptWeights where the weights lack something that every model of a known family has."""
    if _embedding(shapes) is None:
        raise _missing("embed_tokens.weight")
    if not any(name.endswith("norm.weight") and not LAYER.search(name) for name in shapes):
        raise _missing("norm.weight after the last layer")
    for number in range(_int(text, "num_hidden_layers") or 0):
        tensors = layers[number]
        modules = {name.rpartition(".")[0] for name in tensors}
        _require(modules, number, NORMS)
        _require(modules, number, *ATTENTION)
        if text.get("model_type") in COMPARED_MIXTURES and not modules.issuperset(MLP[0]):
            _require_experts(text, number, tensors)
        else:
            _require(modules, number, *MLP)


def _require(modules: AbstractSet[str], number: int, *ways: Sequence[str]) -> None:
    """Require all that one of the ways names; of several, what the likeliest one lacks is named."""
    way = max(ways, key=lambda names: sum(name in modules for name in names) / len(names))
    gone = next((name for name in way if name not in modules), None)
    if gone is not None:
        raise _missing(f"{gone}.weight of layer {number}")


def _require_experts(text: Config, number: int, tensors: Shapes) -> None:
    """Require as many experts as the config has, all of the same parts. Experts in one tensor are not counted."""
    parts: dict[int, set[str]] = defaultdict(set)
    for name in tensors:
        if match := EXPERT.search(name):
            parts[int(match[1])].add(match[2])
    if not parts and any("experts." in name for name in tensors):
        return
    count = next((_int(text, n) for n in EXPERT_COUNTS if _int(text, n)), None)
    if count is not None and len(parts) != count:
        raise CorruptConfig(
            f"config.json has {count:,} experts, and layer {number} of the weights has {len(parts):,}.",
            hint=SAME_SAVE,
        )
    whole = set[str]().union(*parts.values())
    for expert, there in sorted(parts.items()):
        if gone := sorted(whole - there):
            raise _missing(f"{gone[0]}.weight of expert {expert} in layer {number}")


def _missing(what: str) -> CorruptWeights:
    return CorruptWeights(f"The weights have no {what}.", hint="Push the weights again.")


def _check_output(config: Config, text: Config, shapes: Shapes) -> None:
    default = text.get("model_type") in TIED_BY_DEFAULT
    is_tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", default))
    head = next((shape for name, shape in shapes.items() if name.endswith("lm_head.weight")), None)
    embedding = _embedding(shapes)
    if head is None and embedding is not None and is_tied is not True:
        raise CorruptWeights(
            "The weights have no lm_head.weight, and config.json does not tie it to the embedding.",
            hint="Set tie_word_embeddings to true if the model was trained so, or push the missing tensor.",
        )
    if head is not None and embedding is not None and head != embedding:
        raise CorruptWeights(
            f"lm_head.weight is {_format_shape(head)}, and the embedding is {_format_shape(embedding)}."
        )


def _expected(text: Config) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's matrices in the known families, by name; those that the config does not tell are left out."""
    hidden, heads = _int(text, "hidden_size"), _int(text, "num_attention_heads")
    if hidden is None or heads is None:
        return {}
    kv_heads = _int(text, "num_key_value_heads") or heads
    head_dim = _int(text, "head_dim") or hidden // heads
    queries, keys = heads * head_dim, kv_heads * head_dim
    if heads % kv_heads:
        raise CorruptConfig(
            f"config.json has {heads} heads, which {kv_heads} KV heads cannot share."
        )
    found = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.qkv_proj.weight": (queries + 2 * keys, hidden),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if width := _int(text, "intermediate_size"):
        found |= _mlp("mlp", width, hidden) | {"mlp.gate_up_proj.weight": (2 * width, hidden)}
        for name, shape in (
            ("w1", (width, hidden)),
            ("w2", (hidden, width)),
            ("w3", (width, hidden)),
        ):
            found[f"block_sparse_moe.experts.*.{name}.weight"] = shape
    if width := _int(text, "moe_intermediate_size"):
        found |= _mlp("mlp.experts.*", width, hidden)
    if width := _int(text, "shared_expert_intermediate_size"):
        found |= _mlp("mlp.shared_expert", width, hidden)
    if experts := _int(text, "num_experts"):
        found["mlp.gate.weight"] = (experts, hidden)
    if experts := _int(text, "num_local_experts"):
        found["block_sparse_moe.gate.weight"] = (experts, hidden)
    return found


def _mlp(name: str, width: int, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.gate_proj.weight": (width, hidden),
        f"{name}.up_proj.weight": (width, hidden),
        f"{name}.down_proj.weight": (hidden, width),
    }


def _format_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape)


def _int(config: Config, name: str) -> int | None:
    """Return the number, where it is one above 0."""
    value = config.get(name)
    return value if type(value) is int and value > 0 else None
