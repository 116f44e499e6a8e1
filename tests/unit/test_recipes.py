"""Tests which GPUs a model gets, and which arguments vLLM gets with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from guanaco.errors import NoRecipe, NoSuchGpu
from guanaco.recipes import ImageKind, KvCacheDtype, Recipe, RecipeOverride
from guanaco.submissions import Quantization
from guanaco_server.deployments.engines.specs import to_resources
from guanaco_server.recipes.hardware import GPUS, Vendor, find_gpus
from guanaco_server.recipes.machine import GIB, machine_needs
from guanaco_server.recipes.memory import (
    Model,
    Placement,
    Serving,
    obstacle,
    plan_memory,
    session_bytes,
)
from guanaco_server.recipes.model_shape import read_shape
from guanaco_server.recipes.presets import LLAMA_3_8B, QWEN3_235B_FP8
from guanaco_server.recipes.prices import DEFAULT_PRICES, PriceTable
from guanaco_server.recipes.recipe import Fleet, Needs, RecipePolicy, choose, pinned, to_vllm_args
from tests.fixtures.configs import DEEPSEEK_V3, GEMMA_3_27B, QWEN_2_7B

LLAMA = Model("llama", read_shape(LLAMA_3_8B))
QWEN = Model("qwen", read_shape(QWEN3_235B_FP8))
DEEPSEEK = Model("deepseek", read_shape(DEEPSEEK_V3))
CHAT = Needs(context_tokens=2_048, sessions=16)
# Long role-play: 64 people at once, 16k tokens each, replies faster than they are read.
ROLE_PLAY = Needs(context_tokens=16_384, sessions=64, tokens_per_second=40)


def fleet(*names: str, max_gpus: int = 8) -> Fleet:
    return Fleet(find_gpus(names or GPUS), max_gpus=max_gpus)


@pytest.mark.parametrize("gpu", ["MI325X", "MI300X", "H200"])
def test_qwen3_235b_fp8_is_served_as_published_on_eight_gpus(gpu: str) -> None:
    """TP 8 and EP 8 with an FP8 KV cache."""
    recipe = choose(QWEN, ROLE_PLAY, fleet(gpu))
    assert (recipe.gpu_count, recipe.tensor_parallel, recipe.data_parallel) == (8, 8, 1)
    assert recipe.expert_parallel == 8
    assert recipe.kv_cache_dtype is KvCacheDtype.FP8
    args = to_vllm_args(recipe)
    assert "--enable-expert-parallel" in args
    assert args[args.index("--tensor-parallel-size") + 1] == "8"
    assert args[args.index("--kv-cache-dtype") + 1] == "fp8"
    is_amd = gpu.startswith("MI")
    assert (recipe.image is ImageKind.ROCM) == is_amd
    assert (recipe.environment.get("VLLM_ROCM_USE_AITER") == "1") == is_amd


def test_published_split_needs_expert_parallelism_for_fp8_blocks() -> None:
    assert obstacle(QWEN.shape, Placement(8, 1, is_expert_parallel=True)) is None
    cut = obstacle(QWEN.shape, Placement(8, 1, is_expert_parallel=False))
    assert cut == "fp8 blocks of 128 do not come out even when 1536 are split over 8 GPUs"
    override = RecipeOverride(gpu="H200", gpus=8, expert_parallel=False)
    with pytest.raises(NoRecipe, match="fp8 blocks of 128 do not come out even"):
        choose(QWEN, CHAT, fleet(), override)


def test_a_small_model_gets_the_cheapest_single_gpu() -> None:
    recipe = choose(LLAMA, CHAT, fleet())
    cheapest = min(DEFAULT_PRICES, key=lambda name: DEFAULT_PRICES[name])
    assert (recipe.gpu_type, recipe.gpu_count) == (cheapest, 1)
    assert recipe.kv_cache_dtype is KvCacheDtype.AUTO
    assert "--enable-expert-parallel" not in to_vllm_args(recipe)


def test_other_prices_choose_other_gpus() -> None:
    dear = Fleet(find_gpus(GPUS), PriceTable({"L40S": 99.0, "H200": 0.01}))
    assert choose(LLAMA, CHAT, dear).gpu_type == "H200"


def test_more_speed_or_more_sessions_take_more_gpus() -> None:
    counts = [
        choose(LLAMA, Needs(8_000, sessions, speed), fleet("L40S")).gpu_count
        for sessions, speed in [(1, 0), (64, 0), (64, 20)]
    ]
    assert counts == sorted(counts)
    assert counts[0] == 1 < counts[1] < counts[2]


def test_nothing_large_enough_is_a_sentence_with_the_figures() -> None:
    with pytest.raises(NoRecipe) as refused:
        choose(QWEN, CHAT, fleet("L40S", max_gpus=4))
    assert "qwen has 236.4 GB of weights, which with 16 sessions of 2,048 tokens" in str(
        refused.value
    )
    assert "no machine with L40S can serve" in str(refused.value)


def test_an_override_is_followed_as_far_as_it_goes() -> None:
    override = RecipeOverride(
        gpu="h100",
        gpus=2,
        kv_cache_dtype=KvCacheDtype.FP8,
        max_num_seqs=32,
        gpu_memory_utilization=0.8,
        flags=["--enforce-eager"],
        environment={"VLLM_LOGGING_LEVEL": "DEBUG"},
    )
    recipe = choose(LLAMA, CHAT, fleet(), override)
    assert (recipe.gpu_type, recipe.gpu_count, recipe.tensor_parallel) == ("H100", 2, 2)
    assert recipe.environment == {"VLLM_LOGGING_LEVEL": "DEBUG"}
    args = to_vllm_args(recipe)
    assert args[-1] == "--enforce-eager"
    assert args[args.index("--max-num-seqs") + 1] == "32"
    assert args[args.index("--gpu-memory-utilization") + 1] == "0.8"


def test_an_override_of_groups_splits_each_group() -> None:
    recipe = choose(LLAMA, CHAT, fleet(), RecipeOverride(gpu="H100", gpus=4, data_parallel=2))
    assert (recipe.tensor_parallel, recipe.data_parallel) == (2, 2)
    assert "--data-parallel-size" in to_vllm_args(recipe)


def test_oversized_model_is_split_over_two_machines_on_request() -> None:
    """Each machine has half of the layers, and splits them over its own GPUs."""
    needs, h100 = Needs(context_tokens=8_192, sessions=8), fleet("H100", max_gpus=8)
    with pytest.raises(NoRecipe):
        choose(DEEPSEEK, needs, h100)
    recipe = choose(DEEPSEEK, needs, h100, RecipeOverride(nodes=2))
    assert (recipe.nodes, recipe.gpu_count, recipe.tensor_parallel) == (2, 16, 8)
    assert recipe.expert_parallel == 8
    args = to_vllm_args(recipe)
    for name, value in (("pipeline-parallel-size", "2"), ("nnodes", "2"), ("node-rank", "{rank}")):
        assert args[args.index(f"--{name}") + 1] == value
    asked = to_resources(recipe, RecipePolicy())
    assert (asked.nodes, asked.gpu_count) == (2, 8), "each machine gives its share"
    assert asked.cpus == 10


def test_two_machines_halve_weights_and_sessions_of_a_gpu() -> None:
    one, two = (
        plan_memory(LLAMA, GPUS["H100"], Serving(Placement(1, nodes=nodes), 2_048))
        for nodes in (1, 2)
    )
    assert (two.weights, two.session) == (one.weights / 2, one.session / 2)
    assert two.sessions > 2 * one.sessions


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        (
            {"gpus": 4, "nodes": 2, "data_parallel": 2},
            "groups are not spread over several machines",
        ),
        ({"gpus": 64, "nodes": 16, "tensor_parallel": 8}, "no machine"),
    ],
)
def test_a_split_over_machines_that_cannot_be_is_a_sentence(
    override: dict[str, int], reason: str
) -> None:
    with pytest.raises(NoRecipe, match=reason):
        choose(LLAMA, CHAT, fleet("H100"), RecipeOverride.model_validate(override))


def test_an_admin_may_know_memory_and_cpus_better() -> None:
    override = RecipeOverride(cpus=32, memory_bytes=96 * GIB)
    recipe = choose(LLAMA, CHAT, fleet("H100"), override)
    asked = to_resources(recipe, RecipePolicy())
    assert (asked.cpus, asked.memory_bytes) == (32, 96 * GIB)
    plain = to_resources(choose(LLAMA, CHAT, fleet("H100")), RecipePolicy())
    assert replace(asked, cpus=plain.cpus, memory_bytes=plain.memory_bytes) == plain
    small = choose(LLAMA, CHAT, fleet("H100"), RecipeOverride(memory_bytes=GIB)).machine
    assert small is not None
    assert small.shared_memory_bytes == GIB, "it is a part of the memory"


def test_a_gpu_that_the_platform_lacks_is_a_sentence() -> None:
    with pytest.raises(
        NoSuchGpu, match=r"no GPU of the type 'B200' here: there are A100-40, H100\."
    ):
        choose(LLAMA, CHAT, fleet("H100", "A100-40"), RecipeOverride(gpu="B200"))


def test_unknown_model_is_served_as_an_admin_says() -> None:
    override = RecipeOverride(gpu="MI300X", gpus=4)
    recipe = pinned(GPUS["MI300X"], CHAT, override, None, stored_bytes=10**9)
    assert (recipe.gpu_count, recipe.tensor_parallel, recipe.sessions) == (4, 4, None)
    assert recipe.machine == machine_needs(4, 10**9)


def test_replica_requests_what_its_processes_and_artifact_take() -> None:
    recipe = choose(QWEN, ROLE_PLAY, fleet("MI325X"))
    small, large = choose(LLAMA, CHAT, fleet("H100")).machine, recipe.machine
    assert small is not None
    assert large is not None
    assert (small.cpus, large.cpus) == (3, 10)
    assert (small.memory_bytes, large.memory_bytes) == (11 * GIB, 54 * GIB)
    assert (small.shared_memory_bytes, large.shared_memory_bytes) == (2 * GIB, 10 * GIB)
    assert large.cache_bytes > 235e9  # fp8: a byte a weight
    asked = to_resources(recipe, RecipePolicy())
    assert (asked.memory_bytes, asked.cpus) == (large.memory_bytes, 10)
    assert asked.disk_bytes == large.cache_bytes + large.tmp_bytes
    old = recipe.model_copy(update={"machine": None})  # was stored before recipes had it
    assert to_resources(old, RecipePolicy()).memory_bytes is None


def test_disk_holds_the_artifact_as_it_is_stored() -> None:
    plain, quantized = LLAMA, replace(LLAMA, quantization=Quantization.FP8)
    needs = [choose(model, CHAT, fleet("H100")).machine for model in (plain, quantized)]
    assert needs[0] == needs[1]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("flags", ["--port=1"], "--port is the platform's own"),
        ("flags", ["--trust-remote-code"], "the platform's own"),
        ("flags", ["rm -rf"], "looks like --name"),
        ("environment", {"A B": "1"}, "no name of a variable"),
        ("flags", ["--node-rank=1"], "--node-rank is the platform's own"),
        ("gpus", 0, "greater than or equal to 1"),
        ("nodes", 17, "less than or equal to 16"),
        ("memory_bytes", 1_000, "greater than or equal to"),
        ("gpu_memory_utilization", 1.5, "less than or equal to 0.98"),
        ("colour", "red", "Extra inputs"),
    ],
)
def test_an_override_that_makes_no_sense_is_refused(field: str, value: object, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        RecipeOverride.model_validate({field: value})


def test_heads_that_do_not_divide_leave_splits_out() -> None:
    shape = read_shape(QWEN_2_7B)  # 28 heads, 4 KV heads
    assert obstacle(shape, Placement(4)) is None
    assert obstacle(shape, Placement(8)) == "28 attention heads cannot be split over 8 GPUs"


def test_token_takes_128_kib_for_llama_and_70_for_deepseek() -> None:
    """2 · 32 layers · 8 heads · 128 · 2 bytes; 61 layers · (512 + 64) · 2 bytes."""
    assert session_bytes(LLAMA.shape, Serving(Placement(1), 16), 16) / 16 == 131_072
    assert session_bytes(DEEPSEEK.shape, Serving(Placement(1), 16), 16) / 16 == 70_272


def test_heads_are_repeated_where_gpus_outnumber_them() -> None:
    four, eight = (
        session_bytes(QWEN.shape, Serving(Placement(n, 1, True), 16), 16) for n in (4, 8)
    )
    assert four == eight


def test_latent_cache_is_not_split_so_groups_hold_more_sessions() -> None:
    split = plan_memory(DEEPSEEK, GPUS["MI325X"], Serving(Placement(8, 1, True), 16_384))
    groups = plan_memory(DEEPSEEK, GPUS["MI325X"], Serving(Placement(1, 8, True), 16_384))
    assert groups.sessions > 4 * split.sessions
    assert choose(DEEPSEEK, Needs(16_384, 500), fleet("MI325X")).data_parallel > 1


def test_a_window_bounds_what_most_of_gemmas_layers_keep() -> None:
    shape = read_shape(GEMMA_3_27B)
    short, long = (session_bytes(shape, Serving(Placement(1), n), n) for n in (1_024, 10_240))
    assert long == pytest.approx(short * (52 + 10 * 10) / 62)


def test_quantized_weights_leave_room_for_more_sessions() -> None:
    plain, fp8 = (
        plan_memory(
            Model("m", LLAMA.shape, quantization=kind), GPUS["L40S"], Serving(Placement(1), 4_096)
        )
        for kind in (None, Quantization.FP8)
    )
    assert fp8.weights < 0.6 * plain.weights
    assert fp8.sessions > plain.sessions


@given(
    st.sampled_from([LLAMA, QWEN, DEEPSEEK]),
    st.integers(1, 300),
    st.integers(16, 8_000),
    st.lists(st.sampled_from(sorted(GPUS)), min_size=1, unique=True),
)
def test_what_is_chosen_fits_into_memory(
    model: Model, sessions: int, context: int, names: Iterable[str]
) -> None:
    try:
        recipe = choose(model, Needs(context, sessions), fleet(*names))
    except NoRecipe:
        return
    assert recipe.gpu_count == recipe.tensor_parallel * recipe.data_parallel
    assert recipe.gpu_count in (1, 2, 4, 8)
    assert recipe.sessions is not None
    assert recipe.sessions >= sessions
    gpu = GPUS[recipe.gpu_type]
    placement = Placement(recipe.tensor_parallel, recipe.data_parallel, recipe.expert_parallel > 1)
    serving = Serving(placement, context, recipe.kv_cache_dtype, max_num_seqs=recipe.max_num_seqs)
    plan = plan_memory(model, gpu, serving)
    used = plan.weights + plan.activations + plan.overhead
    used += plan.session * -(-sessions // recipe.data_parallel)
    assert used <= gpu.memory_bytes * recipe.gpu_memory_utilization


def test_cluster_is_told_gpus_and_their_image() -> None:
    recipe = Recipe(gpu_type="MI300X", gpu_count=2, max_model_len=64, image=ImageKind.ROCM)
    policy = RecipePolicy(images={ImageKind.ROCM: "vllm-rocm"})
    resources = to_resources(recipe, policy)
    assert (resources.gpu_type, resources.gpu_count, resources.image) == ("MI300X", 2, "vllm-rocm")


def test_every_gpu_has_a_price_and_its_vendors_resource() -> None:
    assert set(DEFAULT_PRICES) == set(GPUS)
    assert (Vendor.NVIDIA.resource, Vendor.AMD.resource) == ("nvidia.com/gpu", "amd.com/gpu")
