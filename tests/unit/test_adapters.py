"""LoRA adapters: what is found out from their headers, and every way in which one is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from guanaco import errors
from guanaco_server.artifacts.checking.adapters import parse_adapter_config, resolve_base
from guanaco_server.artifacts.checking.checks import (
    CheckedModel,
    CheckLimits,
    check_repo,
    require_rows,
)
from guanaco_server.artifacts.hub.memory import MemoryHub
from tests.fixtures.repos import (
    BASE_SHAPES,
    DOWN_PROJ,
    Q_PROJ,
    Files,
    adapter_repo,
    base_repo,
    lora,
    safetensors,
    tokenizer_json,
)

LIMITS = CheckLimits(max_parameters=10_000, max_weight_bytes=40_000)
Q_ONLY = lora(Q_PROJ, 2, 8, 8)
EMBEDDING = {"base_model.model.model.embed_tokens.lora_embedding_A": (2, 32)}


async def check(adapter: Files, base: Files | None = None, **limits: int) -> CheckedModel:
    hub = MemoryHub()
    hub.add_repo("acme/base", base or base_repo())
    hub.add_repo("acme/lora", adapter)
    snapshot = await hub.resolve("acme/lora", None)
    return await check_repo(hub, snapshot, LIMITS if not limits else CheckLimits(**limits))


def parsed(**config: Any) -> Any:
    return parse_adapter_config(json.loads(adapter_repo(**config)["adapter_config.json"]))


async def test_an_adapter_has_its_bases_facts_and_its_own_modules() -> None:
    model = await check(adapter_repo())
    assert (model.architecture, model.max_positions) == ("LlamaForCausalLM", 2_048)
    assert model.parameter_count == sum(math.prod(shape) for shape in BASE_SHAPES.values())
    assert model.tensor_count == len(BASE_SHAPES)
    assert model.weight_files == ("model.safetensors",)
    assert model.base is not None
    assert model.base.repo == "acme/base"
    assert model.adapter is not None
    assert model.adapter.weight_file == "adapter_model.safetensors"
    down, q = model.adapter.modules
    assert (down.module, q.module) == (DOWN_PROJ, Q_PROJ)
    assert (down.a, down.b, down.scale) == (*(lora(DOWN_PROJ, 2, 8, 16)), 2.0)


async def test_a_full_model_has_no_adapter_and_no_base() -> None:
    hub = MemoryHub()
    hub.add_repo("acme/x", base_repo())
    snapshot = await hub.resolve("acme/x", None)
    model = await check_repo(hub, snapshot, LIMITS)
    assert (model.adapter, model.base) == (None, None)
    assert await resolve_base(hub, snapshot) is None


async def test_full_model_beside_an_adapter_is_a_full_model() -> None:
    model = await check(base_repo() | adapter_repo())
    assert model.adapter is None


async def test_trainers_config_beside_an_adapter_makes_no_model() -> None:
    model = await check(adapter_repo() | {"config.json": b"{}"})
    assert model.adapter is not None


async def test_a_pinned_base_is_taken_at_its_commit() -> None:
    hub = MemoryHub()
    commit = hub.add_repo("acme/base", base_repo())
    hub.add_repo("acme/lora", adapter_repo(revision="main"))
    snapshot = await hub.resolve("acme/lora", None)
    base = await resolve_base(hub, snapshot)
    assert base is not None
    assert base.commit == commit
    hub.add_repo("acme/base", base_repo(rope_theta=1))
    with pytest.raises(errors.RevisionNotFound):  # a memory hub has only the newest commit
        await check_repo(hub, snapshot, LIMITS, base_commit=commit)


async def test_the_tokenizer_is_the_adapters_if_it_has_one() -> None:
    plain = await check(adapter_repo())
    assert plain.small_files == ("config.json", "tokenizer.json", "tokenizer_config.json")
    assert plain.adapter is not None
    assert plain.adapter.small_files == ()
    own = await check(
        adapter_repo() | {"tokenizer.json": tokenizer_json(), "chat_template.jinja": b""}
    )
    assert own.small_files == ("config.json",)
    assert own.adapter is not None
    assert own.adapter.small_files == ("tokenizer.json", "chat_template.jinja")


async def test_keys_with_an_adapters_name_are_read_too() -> None:
    model = await check(adapter_repo(lora(Q_PROJ, 2, 8, 8, suffix=".default")))
    assert model.adapter is not None
    assert [module.module for module in model.adapter.modules] == [Q_PROJ]


@pytest.mark.parametrize(
    ("config", "rank", "scale"),
    [
        ({}, 2, 2.0),
        ({"use_rslora": True}, 2, 4 / math.sqrt(2)),
        ({"lora_alpha": 0.5}, 2, 0.25),
        ({"rank_pattern": {"q_proj": 4}}, 4, 1.0),
        ({"rank_pattern": {"k_proj": 4}}, 2, 2.0),
        ({"rank_pattern": {"proj": 4}}, 2, 2.0),  # only whole parts of a name count
        ({"rank_pattern": {Q_PROJ: 4}, "alpha_pattern": {"self_attn.q_proj": 16}}, 4, 4.0),
        ({"alpha_pattern": {"q_proj": 8, Q_PROJ: 16}}, 2, 4.0),  # the first that matches
        ({"alpha_pattern": {"^self_attn.q_proj": 8}}, 2, 2.0),
        ({"alpha_pattern": {f"^{Q_PROJ}": 8}}, 2, 4.0),
        ({"alpha_pattern": {r"layers\.0\.self_attn\.q_proj": 8}}, 2, 4.0),
        ({"rank_pattern": {"q_proj": 4}, "use_rslora": True}, 4, 2.0),
        ({"rank_pattern": None, "alpha_pattern": None}, 2, 2.0),
    ],
)  # fmt: skip
def test_rank_and_scale_of_a_module_are_pefts(config: Any, rank: int, scale: float) -> None:
    config = parsed(**config)
    assert (config.rank_of(Q_PROJ), config.scale_of(Q_PROJ)) == (rank, pytest.approx(scale))


def without(name: str, files: Files) -> Files:
    return {path: data for path, data in files.items() if path != name}


def half(letter: str) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in Q_ONLY.items() if f"lora_{letter}" in name}


@pytest.mark.parametrize(
    ("files", "kind", "says"),
    [
        (adapter_repo(peft_type="IA3"), errors.UnsupportedAdapter, "peft_type is 'IA3'; only LORA"),
        (adapter_repo(use_dora=True), errors.UnsupportedAdapter, "uses DoRA"),
        (adapter_repo(bias="all"), errors.UnsupportedAdapter, "trains biases"),
        (adapter_repo(modules_to_save=["lm_head"]), errors.UnsupportedAdapter, "uses modules_to_save"),
        (adapter_repo(fan_in_fan_out=True), errors.UnsupportedAdapter, "uses fan_in_fan_out"),
        (adapter_repo(lora_bias=True), errors.UnsupportedAdapter, "uses lora_bias"),
        (adapter_repo(trainable_token_indices=[1]), errors.UnsupportedAdapter, "trainable_token_indices"),
        (adapter_repo(layer_replication=[[0, 4]]), errors.UnsupportedAdapter, "layer_replication"),
        (adapter_repo(init_lora_weights="pissa"), errors.UnsupportedAdapter, "'pissa', which changes the base"),
        (adapter_repo(base_model_name_or_path="/home/me/llama"), errors.UnsupportedAdapter, "no repo of the Hub"),
        (adapter_repo(base_model_name_or_path=None), errors.UnsupportedAdapter, "no repo of the Hub"),
        (adapter_repo(base_model_name_or_path="acme/gone"), errors.RepoNotFound, "acme/gone"),
        (adapter_repo(revision="gone"), errors.RevisionNotFound, "acme/base has no revision gone"),
        (adapter_repo(revision="../x"), errors.CorruptConfig, "no branch, tag or commit"),
        (adapter_repo(r=0), errors.CorruptConfig, "'r' in adapter_config.json must be"),
        (adapter_repo(r=True), errors.CorruptConfig, "'r' in adapter_config.json must be"),
        (adapter_repo(lora_alpha=float("nan")), errors.CorruptConfig, "'lora_alpha'"),
        (adapter_repo(lora_alpha=10**400), errors.CorruptConfig, "'lora_alpha'"),
        (adapter_repo(rank_pattern=[]) | {"x": b""}, None, ""),
        (adapter_repo(rank_pattern=[1]), errors.CorruptConfig, "rank_pattern in adapter_config.json must be an object"),
        (adapter_repo(rank_pattern={"(a+)+b": 4}), errors.UnsupportedAdapter, "only module names"),
        (adapter_repo(rank_pattern={"q_proj": 4}), errors.CorruptWeights, r"shape \[2, 8\].*want \[4, 8\]"),
        (adapter_repo(target_modules=[1]), errors.CorruptConfig, "target_modules"),
        (without("adapter_model.safetensors", adapter_repo()) | {"adapter_model.bin": b""}, errors.PickleWeights, "not safetensors"),
        (without("adapter_model.safetensors", adapter_repo()), errors.MissingFile, "no adapter_model.safetensors"),
        (adapter_repo() | {"adapter_model.safetensors": b"\xff" * 9}, errors.CorruptWeights, "corrupt or truncated"),
        (adapter_repo() | {"adapter_config.json": b"[" * 200 + b"]" * 200}, errors.CorruptConfig, "not a JSON object"),
        (adapter_repo({}), errors.CorruptWeights, "no tensors"),
        (adapter_repo(half("A")), errors.CorruptWeights, "only lora_A of 'model.layers.0.self_attn.q_proj'"),
        (adapter_repo(half("B")), errors.CorruptWeights, "only lora_B"),
        (adapter_repo(Q_ONLY | lora(Q_PROJ, 2, 8, 8, ".default")), errors.CorruptWeights, "twice"),
        (adapter_repo(EMBEDDING), errors.UnsupportedAdapter, "embed_tokens.lora_embedding_A"),
        (adapter_repo(lora("model.embed_tokens", 2, 32, 8)), errors.UnsupportedAdapter, "changes the embedding"),
        (adapter_repo({"base_model.model.lm_head.weight": (32, 8)}), errors.UnsupportedAdapter, "not of a LoRA"),
        (adapter_repo(lora("model.layers.9.q_proj", 2, 8, 8)), errors.UnsupportedAdapter, "the base has no weight"),
        (adapter_repo(lora(Q_PROJ, 2, 9, 8)), errors.CorruptWeights, r"\[9, 2\].*want \[8, 2\]"),
        (adapter_repo(lora(Q_PROJ, 2, 8, 7)), errors.CorruptWeights, r"\[2, 7\].*want \[2, 8\]"),
        (adapter_repo(Q_ONLY, dtype="U8"), errors.UnsupportedAdapter, "is U8; adapter and base must be"),
        (adapter_repo() | {"tokenizer_config.json": b'{"auto_map": {}}'}, errors.RemoteCode, "auto_map"),
    ],
)  # fmt: skip
async def test_unmergeable_adapter_is_refused_with_the_reason(
    files: Files, kind: type[errors.SubmissionFailure] | None, says: str
) -> None:
    if kind is None:
        await check(files)
        return
    with pytest.raises(kind, match=says):
        await check(files)


async def test_the_base_of_an_adapter_is_no_adapter() -> None:
    with pytest.raises(errors.UnsupportedAdapter, match="acme/base is itself an adapter"):
        await check(adapter_repo(), base=adapter_repo())


@pytest.mark.parametrize(
    ("base", "adapter", "says"),
    [
        (base_repo(architectures=["GPT2LMHeadModel"]), adapter_repo(), "GPT2LMHeadModel cannot"),
        (base_repo(tie_word_embeddings=True), adapter_repo(lora("lm_head", 2, 32, 8)), "lm_head, which is the embedding"),
        (base_repo() | {"model.safetensors": safetensors(BASE_SHAPES, "F8_E4M3")}, adapter_repo(), "is F8_E4M3"),
        (base_repo() | {"model.safetensors": safetensors({f"{Q_PROJ}.weight": (64,)})}, adapter_repo(Q_ONLY), "not a matrix"),
    ],
)  # fmt: skip
async def test_a_base_that_cannot_be_merged_into_is_refused(
    base: Files, adapter: Files, says: str
) -> None:
    with pytest.raises(errors.UnsupportedAdapter, match=says):
        await check(adapter, base)


async def test_a_base_is_checked_as_a_model_of_its_own() -> None:
    with pytest.raises(errors.RemoteCode, match="auto_map"):
        await check(adapter_repo(), base_repo(auto_map={}))
    with pytest.raises(errors.CorruptConfig, match="forbidden name"):
        await check(adapter_repo(), base_repo() | {"../x": b""})
    with pytest.raises(errors.ModelTooLarge):
        await check(adapter_repo(), max_parameters=10, max_weight_bytes=10)


async def test_patterns_that_would_take_long_are_refused() -> None:
    patterns = {f"layer.{number}.q_proj": 2 for number in range(4_000)}
    modules = {
        name: shape for number in range(251) for name, shape in lora(f"m{number}", 2, 8, 8).items()
    }
    with pytest.raises(errors.UnsupportedAdapter, match="4,000 entries for 251 modules"):
        await check(adapter_repo(modules, rank_pattern=patterns))


async def test_an_adapter_larger_than_a_model_may_be_is_refused() -> None:
    wide = base_repo() | {"model.safetensors": safetensors({f"{Q_PROJ}.weight": (8, 8)})}
    adapter = adapter_repo(lora(Q_PROJ, 100, 8, 8), r=100)
    with pytest.raises(errors.ModelTooLarge, match="adapter's weights are 6,400 bytes; 300 are"):
        await check(adapter, wide, max_parameters=100, max_weight_bytes=300)


async def test_adapter_tokenizer_has_no_more_entries_than_base_rows() -> None:
    model = await check(adapter_repo() | {"tokenizer.json": b"{}"})
    require_rows(32, model)
    with pytest.raises(errors.UnsupportedTokenizer, match=r"33 entries.*only 32"):
        require_rows(33, model)
