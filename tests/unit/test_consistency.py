"""config.json against the headers, for the shapes that families' checkpoints have."""

from __future__ import annotations

import re
from typing import Any

import pytest

from guanaco.errors import CorruptConfig, CorruptWeights, SubmissionFailure
from guanaco_server.artifacts.checking.consistency import check_consistency
from guanaco_server.formats.safetensors_header import TensorInfo

Shapes = dict[str, tuple[int, ...]]
BASE: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 2_048,
    "tie_word_embeddings": False,
}


def attention(layer: str, head_dim: int) -> Shapes:
    return {
        f"{layer}.self_attn.q_proj.weight": (8 * head_dim, 64),
        f"{layer}.self_attn.k_proj.weight": (2 * head_dim, 64),
        f"{layer}.self_attn.v_proj.weight": (2 * head_dim, 64),
        f"{layer}.self_attn.o_proj.weight": (64, 8 * head_dim),
        f"{layer}.input_layernorm.weight": (64,),
        f"{layer}.post_attention_layernorm.weight": (64,),
    }


def mlp(name: str, width: int) -> Shapes:
    return {
        f"{name}.gate_proj.weight": (width, 64),
        f"{name}.up_proj.weight": (width, 64),
        f"{name}.down_proj.weight": (64, width),
    }


def weights(layers: int = 3, head_dim: int = 8, prefix: str = "model", **kind: Any) -> Shapes:
    found: Shapes = {f"{prefix}.embed_tokens.weight": (128, 64), f"{prefix}.norm.weight": (64,)}
    for number in range(layers):
        layer = f"{prefix}.layers.{number}"
        found |= attention(layer, head_dim) | kind.get("block", dense)(layer)
    return found if kind.get("is_tied") else found | {"lm_head.weight": (128, 64)}


def dense(layer: str) -> Shapes:
    return mlp(f"{layer}.mlp", 96)


def qwen_experts(layer: str) -> Shapes:
    experts = [mlp(f"{layer}.mlp.experts.{number}", 32) for number in range(4)]
    router: Shapes = {f"{layer}.mlp.gate.weight": (4, 64)}
    return router | {name: shape for each in experts for name, shape in each.items()}


def mixtral_experts(layer: str) -> Shapes:
    moe = f"{layer}.block_sparse_moe"
    shapes = {"w1": (96, 64), "w2": (64, 96), "w3": (96, 64)}
    found: Shapes = {f"{moe}.gate.weight": (4, 64)}
    return found | {f"{moe}.experts.{n}.{name}.weight": s for n in range(4) for name, s in shapes.items()}  # fmt: skip


def fused(shapes: Shapes) -> Shapes:
    """Return the same with the queries, keys and values in one matrix, and the gate and up projections in one."""
    found = {n: s for n, s in shapes.items() if not re.search("[qkv]_proj|gate_proj|up_proj", n)}
    for layer in range(3):
        found[f"model.layers.{layer}.self_attn.qkv_proj.weight"] = (96, 64)
        found[f"model.layers.{layer}.mlp.gate_up_proj.weight"] = (192, 64)
    return found


GOOD: dict[str, tuple[dict[str, Any], Shapes]] = {
    "llama": ({}, weights()),
    "a head size of its own": ({"model_type": "qwen3", "head_dim": 16}, weights(head_dim=16)),
    "gemma, tied by its class": ({"model_type": "gemma2", "tie_word_embeddings": None}, weights(is_tied=True)),
    "mixtral": ({"model_type": "mixtral", "num_local_experts": 4}, weights(block=mixtral_experts)),
    "qwen3 moe": ({"model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 32}, weights(block=qwen_experts)),
    "a layer that predicts further": ({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1}, weights(layers=4)),
    "fused projections": ({"model_type": "phi3"}, fused(weights())),
    "experts in one tensor": ({"model_type": "qwen3_moe", "num_experts": 4}, weights(block=lambda layer: {f"{layer}.mlp.experts.gate_up_proj": (4, 64, 64)})),
    "some dense layers of a mixture": ({"model_type": "qwen2_moe", "num_experts": 4}, weights()),
    "an unknown family": ({"model_type": "unheard_of", "n_layer": 3, "num_attention_heads": 77}, weights()),
    "nothing said": ({name: None for name in BASE}, weights()),
    "packed projections": ({"quantization_config": {"quant_method": "gptq"}}, weights(head_dim=5)),
}  # fmt: skip


def check(changes: dict[str, Any], shapes: Shapes, *, has_head: bool = True) -> None:
    config = {name: value for name, value in (BASE | changes).items() if value is not None}
    tensors = [TensorInfo(name, "BF16", shape, 0, 0) for name, shape in shapes.items()]
    check_consistency(config, tensors, has_head=has_head)


@pytest.mark.parametrize("kind", GOOD)
def test_what_belongs_together_passes(kind: str) -> None:
    check(*GOOD[kind])


def test_a_multimodal_models_text_part_is_compared() -> None:
    nested = {"text_config": BASE, "architectures": ["Gemma3ForConditionalGeneration"]}
    shapes = weights(prefix="language_model.model")
    vision: Shapes = {f"vision_tower.layers.{n}.x.weight": (2, 2) for n in range(9)}
    tensors = [TensorInfo(name, "BF16", s, 0, 0) for name, s in (shapes | vision).items()]
    check_consistency(nested, tensors, has_head=True)
    nested["text_config"] = BASE | {"num_hidden_layers": 4}
    with pytest.raises(CorruptConfig, match="4 layers"):
        check_consistency(nested, tensors, has_head=True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers in config.json is 1000000000; 1,000"),
        ({"num_hidden_layers": 4}, "has 4 layers, and the weights have no layer 3"),
        ({"num_hidden_layers": 2}, "has 2 layers, and the weights have 3"),
        ({"hidden_size": 32}, "hidden_size in config.json is 32, and the embedding has 64"),
        ({"vocab_size": 129}, "vocab_size in config.json is 129, and the embedding has 128"),
        ({"vocab_size": 100}, "vocab_size in config.json is 100"),
        ({"num_attention_heads": 4}, "q_proj.weight of layer 0 is 64 x 64|k_proj.weight of layer 0 is 32 x 64"),
        ({"num_key_value_heads": 4}, "k_proj.weight of layer 0 is 32 x 64, and in the weights it is 16 x 64"),
        ({"num_key_value_heads": 3}, "8 heads, which 3 KV heads cannot share"),
        ({"head_dim": 16}, "q_proj.weight of layer 0 is 128 x 64"),
        ({"intermediate_size": 97}, "gate_proj.weight of layer 0 is 97 x 64"),
        ({"max_position_embeddings": 10**9}, "max_position_embeddings in config.json is 1000000000"),
        ({"rope_scaling": {"factor": 1e9}}, "factor of rope_scaling"),
    ],
)  # fmt: skip
def test_a_config_of_another_model_is_refused_in_a_sentence(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(CorruptConfig, match=says) as refused:
        check(changes, weights())
    assert "\n" not in refused.value.detail


@pytest.mark.parametrize(
    ("changes", "shapes", "says"),
    [
        (GOOD["mixtral"][0] | {"num_local_experts": 8}, GOOD["mixtral"][1], "8 experts, and layer 0 of the weights has 4"),
        (GOOD["qwen3 moe"][0] | {"moe_intermediate_size": 33}, GOOD["qwen3 moe"][1], "gate_proj.weight of layer 0 is 33 x 64"),
        ({}, weights(is_tied=True), "have no lm_head.weight"),
        ({}, weights() | {"lm_head.weight": (64, 64)}, "lm_head.weight is 64 x 64, and the embedding is 128 x 64"),
        ({}, {"a": (2, 2)}, "the weights have none"),
        ({"model_type": "unheard_of", "num_hidden_layers": 9}, weights(), "no layer 3"),
        ({"model_type": "unheard_of", "hidden_size": 65}, weights(), "hidden_size"),
    ],
)  # fmt: skip
def test_other_contradictions_are_refused(
    changes: dict[str, Any], shapes: Shapes, says: str
) -> None:
    with pytest.raises(SubmissionFailure, match=says):
        check(changes, shapes)


def test_a_layer_that_lacks_a_projection_is_named() -> None:
    shapes = weights()
    del shapes["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(CorruptWeights, match=r"no mlp\.up_proj\.weight of layer 1"):
        check({}, shapes)


@pytest.mark.parametrize(
    ("kind", "pattern", "says"),
    [
        ("llama", r"layers\.1\.(self_attn|mlp|post)", "no post_attention_layernorm.weight of layer 1"),
        ("llama", r"layers\.1\.self_attn", "no self_attn.q_proj.weight of layer 1"),
        ("llama", r"layers\.2\.mlp", "no mlp.gate_proj.weight of layer 2"),
        ("llama", "embed_tokens", "no embed_tokens.weight"),
        ("llama", r"layernorm", "no input_layernorm.weight of layer 0"),
        ("llama", r"^model\.norm", "no norm.weight after the last layer"),
        ("packed projections", r"layers\.0\.mlp\.up", "no mlp.up_proj.weight of layer 0"),
        ("fused projections", "qkv_proj", "no self_attn.qkv_proj.weight of layer 0"),
        ("fused projections", r"1\.mlp\.down", "no mlp.down_proj.weight of layer 1"),
        ("mixtral", r"layers\.1\..*experts", "has 4 experts, and layer 1 of the weights has 0"),
        ("qwen3 moe", r"experts\.3\.", "has 4 experts, and layer 0 of the weights has 3"),
        ("qwen3 moe", r"layers\.2.*experts\.3\.up", "no up_proj.weight of expert 3 in layer 2"),
    ],
)  # fmt: skip
def test_a_part_that_is_wholly_missing_is_named(kind: str, pattern: str, says: str) -> None:
    changes, shapes = GOOD[kind]
    with pytest.raises(SubmissionFailure, match=says):
        check(changes, {n: s for n, s in shapes.items() if not re.search(pattern, n)})


@pytest.mark.parametrize("value", ["8", 8.0, [8]])
def test_a_size_of_a_known_family_is_a_whole_number(value: object) -> None:
    with pytest.raises(CorruptConfig, match=r"head_dim in config\.json is .* not a whole number"):
        check({"head_dim": value}, weights())


def test_a_reward_model_needs_no_output_matrix() -> None:
    check({}, weights(is_tied=True), has_head=False)
