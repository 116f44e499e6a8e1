"""Tests which adapters are served on their base's model server, and why the others are merged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from guanaco.submissions import Quantization, Submission, SubmissionKind
from guanaco_server.artifacts.checking.adapters import CheckedAdapter, LoraModule
from guanaco_server.artifacts.checking.checks import CheckedModel
from guanaco_server.settings import Settings
from guanaco_server.submissions.pipeline.adapter_choice import (
    AdapterPolicy,
    can_have_adapters,
    why_merged,
)

MODULE = LoraModule("model.layers.0.self_attn.q_proj", "a", "b", 2.0, 8)
MODEL = CheckedModel(
    architecture="LlamaForCausalLM",
    parameter_count=1,
    weight_bytes=1,
    max_positions=None,
    weight_files=(),
    small_files=(),
    tensor_count=1,
    adapter=CheckedAdapter("adapter_model.safetensors", (), (MODULE,), 64),
)
POLICY = AdapterPolicy(True, 64, can_add=True)
PLAIN = Submission.model_construct(kind=SubmissionKind.CHAT, quantization=None)


def test_one_machine_serves_adapters_unmerged_by_default() -> None:
    assert Settings().serves_adapters
    assert not Settings(lora_serving="merged").serves_adapters
    assert not Settings(engine_command=["another-server"]).serves_adapters
    assert not Settings(cluster="kubernetes").serves_adapters
    assert Settings(cluster="kubernetes", lora_serving="adapter").serves_adapters


def test_servers_of_bases_take_adapters_from_the_start_without_gpus() -> None:
    assert Settings().starts_bases_for_adapters
    assert not Settings(gpu_types=["H100"]).starts_bases_for_adapters
    assert not Settings(lora_serving="merged").starts_bases_for_adapters
    assert not Settings(cluster="kubernetes", lora_serving="adapter").starts_bases_for_adapters


@pytest.mark.parametrize(
    ("changed", "can"),
    [
        ({}, True),
        ({"kind": SubmissionKind.REWARD}, False),
        ({"quantization": Quantization.FP8}, False),
        ({"architecture": "MixtralForCausalLM"}, False),
        ({"base_repo": "acme/base"}, False),
    ],
)
def test_only_whole_chat_models_of_known_architectures_have_adapters(
    changed: dict[str, Any], can: bool
) -> None:
    whole = PLAIN.model_copy(update={"architecture": "LlamaForCausalLM", "base_repo": None})
    assert can_have_adapters(POLICY, whole.model_copy(update=changed)) is can
    assert not can_have_adapters(AdapterPolicy(False, 64, can_add=True), whole)


def test_a_plain_adapter_is_not_merged() -> None:
    assert why_merged(POLICY, PLAIN, MODEL) is None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"is_wanted": False}, "merges adapters"),
        ({"can_add": False}, "take no adapters while they run"),
        ({"max_rank": 4}, "rank is 8"),
    ],
)
def test_the_platform_may_want_a_merge(changed: dict[str, Any], why: str) -> None:
    assert why in (why_merged(replace(POLICY, **changed), PLAIN, MODEL) or "")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"kind": SubmissionKind.REWARD}, "reward models"),
        ({"quantization": Quantization.FP8}, "quantized to fp8"),
    ],
)
def test_what_the_submission_wants_may_need_a_merge(changed: dict[str, Any], why: str) -> None:
    assert why in (why_merged(POLICY, PLAIN.model_copy(update=changed), MODEL) or "")


def test_what_the_adapter_changes_may_need_a_merge() -> None:
    assert MODEL.adapter is not None
    head = replace(MODULE, module="lm_head")
    changed = replace(MODEL, adapter=replace(MODEL.adapter, modules=(MODULE, head)))
    assert "'lm_head'" in (why_merged(POLICY, PLAIN, changed) or "")
    own = replace(MODEL, adapter=replace(MODEL.adapter, small_files=("tokenizer.json",)))
    assert "tokenizer" in (why_merged(POLICY, PLAIN, own) or "")
    other = replace(MODEL, architecture="MixtralForCausalLM")
    assert "MixtralForCausalLM" in (why_merged(POLICY, PLAIN, other) or "")
