"""Tests which artifacts have one shape: each field of a config that counts, and each that does not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from guanaco_server.formats.manifest import Manifest, StoredFile, TensorRecord
from guanaco_server.formats.shape import computed_with, shape_of

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
    "rope_type": "llama3",
}
ROPE = {"rope_theta": 10_000.0, "rope_type": "default"}


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def manifest(*, small: str = "a", rows: int = 8, dtype: str = "BF16", key: str = "k") -> Manifest:
    record = TensorRecord(
        name="w", dtype=dtype, shape=(rows, 4), offset=0, size_bytes=64, sha256=(), crc32=()
    )
    return Manifest(
        key=key,
        repo="acme/tiny",
        commit="c",
        files=(StoredFile(path="tokenizer.json", size_bytes=1, sha256=small),),
        tensors_bytes=64,
        tensors=(record,),
        tool_versions={},
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


UNUSED = {
    "who saved it": {"transformers_version": "5.19.0", "unsloth_version": "2025.1", "unsloth_fixed": True},
    "where its training began": {"_name_or_path": "/home/somebody/base"},
    "transformers' own work": {"use_cache": False, "pretraining_tp": 2, "_attn_implementation_autoset": True},
    "training": {"initializer_range": 0.01, "attention_dropout": 0.1},
    "tokens that a swap reads": {"bos_token_id": 7, "eos_token_id": [1, 2], "pad_token_id": 3},
    "fields that older versions did not write": {"attention_bias": False, "mlp_bias": False, "head_dim": 64},
}  # fmt: skip

USED = {
    "layers": {"num_hidden_layers": 3},
    "scale of the norm": {"rms_norm_eps": 1e-5},
    "activation": {"hidden_act": "gelu"},
    "positions": {"rope_theta": 500_000.0},
    "scaled positions": {"rope_scaling": SCALING},
    "part of the dimensions": {"partial_rotary_factor": 0.5},
    "longest text": {"max_position_embeddings": 4096},
    "longest text, told apart": {"model_max_length": 4096},
    "type": {"torch_dtype": "float16"},
    "biases": {"attention_bias": True},
    "size of a head": {"head_dim": 32},
    "output": {"tie_word_embeddings": True},
    "architecture": {"architectures": ["MistralForCausalLM"]},
    "family": {"model_type": "mistral"},
    "window": {"sliding_window": 128},
    "quantization": {"quantization_config": {"quant_method": "fp8"}},
    "a field that nobody knows": {"logit_scale": 0.5},
    "an unknown field that is null": {"logit_scale": None},
}


@pytest.mark.parametrize("change", UNUSED.values(), ids=UNUSED.keys())
def test_what_vllm_does_not_compute_with_keeps_the_shape(change: dict[str, Any]) -> None:
    assert shape_of(manifest(), LLAMA | change) == shape_of(manifest(), LLAMA)


@pytest.mark.parametrize("change", USED.values(), ids=USED.keys())
def test_what_vllm_computes_with_makes_another_shape(change: dict[str, Any]) -> None:
    assert shape_of(manifest(), LLAMA | change) != shape_of(manifest(), LLAMA)


def test_the_order_and_layout_of_json_make_no_shape() -> None:
    written = json.dumps(dict(reversed(LLAMA.items())), indent=7).replace("1e-06", "0.000001")
    assert shape_of(manifest(), json.loads(written)) == shape_of(manifest(), LLAMA)


def test_tensors_make_a_shape_and_small_files_do_not() -> None:
    shape = shape_of(manifest(), LLAMA)
    assert shape_of(manifest(small="b", key="other"), LLAMA) == shape
    assert shape_of(manifest(rows=9), LLAMA) != shape
    assert shape_of(manifest(dtype="F16"), LLAMA) != shape


def test_types_are_alike_under_both_of_their_names() -> None:
    renamed = without(LLAMA, "torch_dtype") | {"dtype": "bfloat16"}
    assert computed_with(renamed) == computed_with(LLAMA)
    assert computed_with(renamed | {"torch_dtype": "float16"}) == computed_with(LLAMA), (
        "as vLLM has it"
    )
    assert computed_with(renamed | {"dtype": "float16"}) != computed_with(LLAMA)


@pytest.mark.parametrize("scaling", [None, SCALING], ids=["plain", "scaled"])
def test_positions_are_alike_as_both_versions_write_them(scaling: dict[str, Any] | None) -> None:
    older = LLAMA | {"rope_scaling": scaling}
    newer = without(LLAMA, "rope_theta") | {"rope_parameters": ROPE | (scaling or {})}
    assert computed_with(older) == computed_with(newer)
    other = {"rope_parameters": newer["rope_parameters"] | {"rope_theta": 1_000.0}}
    assert computed_with(older) != computed_with(newer | other)


@pytest.mark.parametrize(
    "change",
    [{"rope_parameters": ROPE}, {"rope_scaling": {"type": "linear", "factor": 2.0}}],
    ids=["told twice", "an older form"],
)
def test_positions_in_other_forms_are_another_shape(change: dict[str, Any]) -> None:
    assert computed_with(LLAMA | change) != computed_with(LLAMA)


def test_a_window_that_is_off_makes_no_shape() -> None:
    older = QWEN | {"use_sliding_window": False, "sliding_window": 4096}
    newer = older | {"sliding_window": None, "layer_types": ["full_attention"] * 2}
    assert computed_with(older) == computed_with(newer) == computed_with(QWEN)
    for change in (
        {"use_sliding_window": True},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"layer_types": ["full_attention"]},
        {"layer_types": 2},
    ):
        assert computed_with(older | change) != computed_with(older)


def test_a_head_without_width_has_that_of_vllm() -> None:
    assert computed_with(LLAMA | {"head_dim": None}) == computed_with(LLAMA | {"head_dim": 64})
    hostile = LLAMA | {"hidden_size": "x", "num_attention_heads": 0, "model_type": ["llama"]}
    assert computed_with(hostile) == computed_with(dict(hostile))
