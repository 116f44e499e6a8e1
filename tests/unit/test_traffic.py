"""Tests how many GPUs some traffic needs: what must hold whatever the figures are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from guanaco.errors import InvalidInput
from guanaco_server.recipes.hardware import GPUS
from guanaco_server.recipes.memory import Model, Placement, Serving
from guanaco_server.recipes.model_shape import read_shape
from guanaco_server.recipes.presets import LLAMA_3_8B, QWEN3_235B_FP8
from guanaco_server.recipes.prices import PriceTable
from guanaco_server.recipes.roofline import BANDWIDTH_SHARE, STEP_S, decode_step_s, prefill_s
from guanaco_server.recipes.traffic import ExpectedTraffic, TrafficPlan, check_traffic, plan_traffic

LLAMA = Model("llama", read_shape(LLAMA_3_8B))
QWEN = Model("qwen", read_shape(QWEN3_235B_FP8))
TRAFFIC = ExpectedTraffic(50, 2_048, 128, 0.8, 20)
PRICES = PriceTable({"H100": 2.0})


def plan(
    traffic: ExpectedTraffic = TRAFFIC, model: Model = LLAMA, gpu: str = "H100"
) -> TrafficPlan:
    found = plan_traffic(model, traffic, GPUS[gpu], PRICES)
    assert found is not None
    return found


def test_one_session_alone_is_bound_by_reading_the_weights() -> None:
    step = decode_step_s(LLAMA, GPUS["H100"], Serving(Placement(1), 2_048), 1, 16)
    assert step == pytest.approx(16.06e9 / (3.35e12 * BANDWIDTH_SHARE) + STEP_S, rel=0.01)


def test_prompt_is_bound_by_two_operations_per_weight_and_token() -> None:
    seconds = prefill_s(LLAMA, GPUS["H100"], Serving(Placement(1), 2_048), 1_000, 1_000)
    assert seconds == pytest.approx(2 * 7.5e9 * 1_000 / (989.5e12 / 2), rel=0.05)


def test_small_batch_of_a_mixture_reads_only_chosen_experts() -> None:
    serving = Serving(Placement(8, 1, True), 2_048)
    one, many = (decode_step_s(QWEN, GPUS["H200"], serving, n, 64) for n in (1, 256))
    assert many > 3 * one


def test_replicas_carry_the_traffic_with_room_left() -> None:
    found = plan()
    assert found.replicas * found.capacity.messages_per_second * 0.7 >= 50
    assert (found.replicas - 1) * found.capacity.messages_per_second * 0.7 < 50
    assert found.capacity.session_tokens_per_second >= 20
    assert found.cost_per_month == found.gpus * 730 * 2.0


def test_sticky_sessions_save_gpus() -> None:
    found = plan()
    assert found.uncached_gpus is not None
    assert found.gpus < found.uncached_gpus
    none = plan(replace(TRAFFIC, prefix_hit_rate=0.0))
    assert none.gpus == none.uncached_gpus == found.uncached_gpus


def test_twice_the_traffic_takes_no_less() -> None:
    assert plan(replace(TRAFFIC, messages_per_second=100)).gpus >= plan().gpus


def test_a_faster_reply_is_a_smaller_batch() -> None:
    assert plan(replace(TRAFFIC, tokens_per_second=60)).capacity.batch < plan().capacity.batch


def test_too_small_or_slow_a_gpu_has_no_plan() -> None:
    assert plan_traffic(Model("q", QWEN.shape), TRAFFIC, GPUS["L40S"], PRICES, max_gpus=2) is None
    hurried = replace(TRAFFIC, tokens_per_second=5_000)
    assert plan_traffic(LLAMA, hurried, GPUS["H100"], PRICES) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"messages_per_second": 0}, "Messages a second"),
        ({"messages_per_second": float("nan")}, "Messages a second"),
        ({"tokens_per_second": -1}, "tokens a second"),
        ({"prefix_hit_rate": 1.0}, "prefix hit rate"),
        ({"context_tokens": 0}, "must be at least 1 each"),
        ({"context_tokens": 8_100}, "8,228 tokens, and llama has 8,192 positions"),
    ],
)
def test_nonsense_is_a_sentence(changes: dict[str, float], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        check_traffic(LLAMA, replace(TRAFFIC, **changes))  # type: ignore[arg-type]
