"""Tests what a config.json says of a model's size against the sizes that the models' makers print."""

from __future__ import annotations

from typing import Any

import pytest

from guanaco.errors import CorruptConfig, GuanacoError, UnsupportedArchitecture
from guanaco.submissions import Quantization
from guanaco_server.recipes.memory import Model, weight_bytes
from guanaco_server.recipes.model_shape import active_parameters, count_parameters, read_shape
from guanaco_server.recipes.presets import LLAMA_3_8B, QWEN3_235B, QWEN3_235B_FP8
from tests.fixtures.configs import (
    DEEPSEEK_V3,
    GEMMA_2_9B,
    GEMMA_3_27B,
    MISTRAL_7B_V01,
    MIXTRAL_8X7B,
    PHI_3_MINI,
    QWEN_2_7B,
)

BILLION = 1e9


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (LLAMA_3_8B, 8.03, 7.50),
        (MISTRAL_7B_V01, 7.24, 7.11),
        (QWEN_2_7B, 7.62, 7.07),
        (GEMMA_2_9B, 9.24, 9.24),
        (PHI_3_MINI, 3.82, 3.72),
        (MIXTRAL_8X7B, 46.7, 12.8),
        (QWEN3_235B, 235.1, 21.6),
        (DEEPSEEK_V3, 671.0, 36.6),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_a_models_parameters_are_those_that_its_maker_counts(
    config: dict[str, Any], total: float, active: float
) -> None:
    shape = read_shape(config)
    assert count_parameters(shape).total / BILLION == pytest.approx(total, rel=0.005)
    assert active_parameters(shape) / BILLION == pytest.approx(active, rel=0.005)


@pytest.mark.parametrize(
    ("config", "window", "layers"),
    [
        (LLAMA_3_8B, None, 0),
        (QWEN_2_7B, None, 0),  # has a sliding_window, and use_sliding_window is false
        (MISTRAL_7B_V01, 4_096, 32),
        (GEMMA_2_9B, 4_096, 21),
        (GEMMA_3_27B, 1_024, 52),
        (GEMMA_3_27B | {"layer_types": ["full_attention"] * 61 + ["sliding_attention"]}, 1_024, 1),
    ],
)
def test_which_layers_see_a_window_only(
    config: dict[str, Any], window: int | None, layers: int
) -> None:
    shape = read_shape(config)
    assert (shape.window, shape.sliding_layers) == (window, layers)


def test_the_language_model_of_one_that_also_sees_is_nested() -> None:
    nested = {"model_type": "gemma3", "text_config": GEMMA_3_27B, "quantization_config": None}
    assert read_shape(nested) == read_shape(GEMMA_3_27B)


@pytest.mark.parametrize(
    ("quantization", "gigabytes"),
    [
        ({"quant_method": "fp8"}, 9.1),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 5.7),
        ({"quant_method": "awq", "w_bit": 4}, 5.7),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 5.7),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}}}, 9.1),
    ],
)  # fmt: skip
def test_quantized_weights_take_fewer_bytes_and_the_vocabulary_does_not(
    quantization: dict[str, Any], gigabytes: float
) -> None:
    shape = read_shape(LLAMA_3_8B | {"quantization_config": quantization})
    assert weight_bytes(Model("m", shape)) / BILLION == pytest.approx(gigabytes, rel=0.02)


def test_online_quantization_halves_layers_and_int8_only_experts() -> None:
    dense = Model("m", read_shape(LLAMA_3_8B), quantization=Quantization.FP8)
    assert weight_bytes(dense) / BILLION == pytest.approx(9.08, rel=0.01)
    experts = Model("m", read_shape(QWEN3_235B), quantization=Quantization.INT8)
    assert weight_bytes(experts) / BILLION == pytest.approx(227.1 + 2 * 8.0, rel=0.01)


def test_the_headers_exact_size_counts_where_it_is_known() -> None:
    shape = read_shape(QWEN3_235B_FP8)
    assert weight_bytes(Model("m", shape, served_bytes=240 * 10**9)) == pytest.approx(240e9)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"model_type": "mamba"}, UnsupportedArchitecture, "'mamba'"),
        ({"model_type": None}, UnsupportedArchitecture, "'None'"),
        ({"hidden_size": None}, CorruptConfig, "hidden_size"),
        ({"num_hidden_layers": "many"}, CorruptConfig, "num_hidden_layers: many"),
        ({"num_hidden_layers": True}, CorruptConfig, "num_hidden_layers"),
        ({"num_attention_heads": -1}, CorruptConfig, "num_attention_heads"),
        ({"vocab_size": 10**12}, CorruptConfig, "vocab_size"),
        ({"num_key_value_heads": 5}, CorruptConfig, "5 KV heads"),
        ({"quantization_config": "fp8"}, CorruptConfig, "no object"),
        ({"quantization_config": {"quant_method": "magic"}}, CorruptConfig, "'magic'"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, CorruptConfig, "groups"),
    ],
)
def test_what_cannot_be_understood_is_a_sentence(
    changes: dict[str, Any], error: type[GuanacoError], says: str
) -> None:
    with pytest.raises(error, match=says):
        read_shape(LLAMA_3_8B | changes)


def test_a_mixture_cannot_use_more_experts_than_it_has() -> None:
    with pytest.raises(CorruptConfig, match="200 active experts out of 128"):
        read_shape(QWEN3_235B | {"num_experts_per_tok": 200})
