"""Tests that what a recipe says on vLLM's command line is read by vLLM's own parser, of the version that we serve with."""

from __future__ import annotations

import json

import pytest

from guanaco.recipes import RecipeOverride
from guanaco_server.recipes.hardware import find_gpus
from guanaco_server.recipes.memory import Model
from guanaco_server.recipes.model_shape import read_shape
from guanaco_server.recipes.presets import QWEN3_235B_FP8
from guanaco_server.recipes.recipe import Fleet, Needs, choose, to_vllm_args
from tests.fixtures.engine_interpreter import EngineInterpreter

pytestmark = [
    pytest.mark.timeout(900),  # the first one waits for the imports
    pytest.mark.engine,
]

ARGUMENTS = f"""
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
parsed = [parser.parse_args(arguments) for arguments in json.loads(sys.argv[1])]
names = {
    json.dumps(
        [
            "tensor_parallel_size",
            "data_parallel_size",
            "enable_expert_parallel",
            "kv_cache_dtype",
            "gpu_memory_utilization",
            "max_num_seqs",
            "max_model_len",
            "quantization",
            "enforce_eager",
            "pipeline_parallel_size",
            "nnodes",
            "node_rank",
            "master_addr",
        ]
    )
}
print(json.dumps([{{name: getattr(each, name) for name in names}} for each in parsed]))
"""

ONE_NODE = {
    "pipeline_parallel_size": 1,
    "nnodes": 1,
    "node_rank": 0,
    "master_addr": "127.0.0.1",
}


def test_vllm_itself_reads_the_arguments(engine_interpreter: EngineInterpreter) -> None:
    """Its own parser, of the version that we serve with; one start of vLLM reads those for both makers' GPUs."""
    override = RecipeOverride(flags=["--enforce-eager"])
    model = Model("qwen", read_shape(QWEN3_235B_FP8))
    needs = Needs(16_384, 64, 40)
    chosen = [choose(model, needs, Fleet(find_gpus([gpu])), override) for gpu in ("MI325X", "H200")]
    recipes = [
        recipe.model_copy(update={"quantization": "fp8", "data_parallel": 2}) for recipe in chosen
    ]
    slow = Needs(16_384, 64)
    over_two = choose(model, slow, Fleet(find_gpus(["H200"])), RecipeOverride(nodes=2, gpus=8))
    of_second = ["1" if arg == "{rank}" else arg for arg in to_vllm_args(over_two)]
    arguments = json.dumps([*map(to_vllm_args, recipes), of_second])
    expected = {
        "tensor_parallel_size": 8,
        "data_parallel_size": 2,
        "enable_expert_parallel": True,
        "kv_cache_dtype": "fp8",
        "gpu_memory_utilization": 0.92,
        "max_num_seqs": 256,
        "max_model_len": 16_384,
        "quantization": "fp8_per_channel",
        "enforce_eager": True,
    }
    *single, second = json.loads(engine_interpreter.run(ARGUMENTS, arguments).splitlines()[-1])
    assert single == [{**expected, **ONE_NODE}] * 2
    assert {name: second[name] for name in ONE_NODE} == {
        "pipeline_parallel_size": 2,
        "nnodes": 2,
        "node_rank": 1,
        "master_addr": "{leader}",
    }
