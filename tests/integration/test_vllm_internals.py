"""engine/vllm_internals.py was written for one version of vLLM: this test runs in the real vLLM's environment and says so."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from guanaco_server.formats.shape import computed_with
from guanaco_server.submissions.pipeline.adapter_choice import ARCHITECTURES
from tests.fixtures.engine_interpreter import EngineInterpreter

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "server" / "guanaco_server" / "engine" / "vllm_internals.py"

# Names that the source uses of what it imports, and the parameters that it gives them.
USED: dict[str, list[str]] = {
    "torch:cpu._is_amx_tile_supported": [],
    "torch:cpu._init_amx": [],
    "vllm.model_executor.model_loader.default_loader:DefaultModelLoader._init_ep_weight_filter": [
        "self",
        "model_config",
    ],
    "vllm.model_executor.model_loader.base_loader:BaseModelLoader.download_model": [],
    "vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_weights": [],
    "vllm.model_executor.models:ModelRegistry.models": [],
    "vllm.model_executor.models:ModelRegistry.register_model": [],
    "vllm.model_executor.models.registry:_BaseRegisteredModel.load_model_cls": [],
    "vllm.v1.executor.uniproc_executor:UniProcExecutor._init_executor": ["self"],
    "vllm.v1.executor.uniproc_executor:UniProcExecutor.initialize_from_config": [
        "self",
        "kv_cache_configs",
    ],
    "vllm.engine.arg_utils:AsyncEngineArgs.from_cli_args": [],
    "vllm.engine.arg_utils:AsyncEngineArgs.create_engine_config": ["usage_context"],
    "vllm.v1.engine.async_llm:AsyncLLM.from_vllm_config": ["vllm_config", "usage_context"],
    "vllm.v1.engine.async_llm:AsyncLLM.shutdown": ["timeout"],
    "vllm.v1.engine.async_llm:AsyncLLM.collective_rpc": ["method", "kwargs"],
    "vllm.v1.engine.async_llm:AsyncLLM.reset_prefix_cache": [],
    "vllm.v1.engine.async_llm:AsyncLLM.sleep": ["level"],
    "vllm.v1.engine.async_llm:AsyncLLM.wake_up": [],
    "vllm.platforms.interface:Platform.is_sleep_mode_available": [],
    "vllm.engine.arg_utils:AsyncEngineArgs.enable_sleep_mode": [],
    "vllm.v1.engine.async_llm:AsyncLLM.generate": ["prompt", "sampling_params", "request_id"],
    "vllm.tokenizers.registry:get_tokenizer": ["tokenizer_name", "kwargs"],
    "vllm.tokenizers.hf:maybe_make_thread_pool": ["tokenizer", "copies"],
    "vllm.config:ModelConfig.try_get_generation_config": [],
    "vllm.config:ModelConfig.renderer_num_workers": [],
    "vllm.v1.engine.input_processor:InputProcessor.tokenizer": [],
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.reload_weights": ["weights_iterator"],
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.get_model": [],
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.reset_lora_state": [],
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.reset_encoder_cache": [],
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.reset_mm_cache": [],
    "vllm.entrypoints.openai.models.serving:OpenAIServingModels.load_lora_adapter": ["request"],
    "vllm.entrypoints.openai.models.serving:OpenAIServingModels.unload_lora_adapter": ["request"],
    "vllm.platforms.cpu:CpuPlatform.get_punica_wrapper": [],
    "vllm.lora.layers.base:BaseLayerWithLoRA.set_mapping": ["punica_wrapper"],
    "vllm.lora.layers.column_parallel_linear:ColumnParallelLinearWithLoRA.forward": ["input_"],
    "vllm.lora.layers.row_parallel_linear:RowParallelLinearWithLoRA.forward": ["input_"],
    "vllm.engine.arg_utils:AsyncEngineArgs.lora_target_modules": [],
    "vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU.update_metadata": [],
    "vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU.token_lora_indices": [],
    "vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU.add_lora_linear": [],
    "vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU._shrink_prefill": [
        "y",
        "x",
        "w_t_all",
        "scale",
    ],
    "vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU._expand_prefill": [
        "y",
        "x",
        "w_t_all",
        "add_inputs",
    ],
    "vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU._expand_slice_prefill": [
        "y",
        "x",
        "w_t_all",
        "y_offset",
        "y_slice_size",
        "add_inputs",
    ],
    "vllm.usage.usage_lib:UsageContext.OPENAI_API_SERVER": [],
    "vllm.entrypoints.launchers.api_server.entry:setup_server": ["args", "reuse_port"],
    "vllm.entrypoints.launchers.api_server.entry:build_and_serve": ["engine_client", "args"],
}
CHECK = """
import importlib, inspect, json, sys
import vllm
problems = []
for place, parameters in json.loads(sys.argv[1]).items():
    module, _, name = place.partition(":")
    try:
        found = importlib.import_module(module)
        for part in filter(None, name.split(".")):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        problems.append(f"{place} is gone")
        continue
    missing = [one for one in parameters if one not in inspect.signature(found).parameters] if parameters else []
    if missing:
        problems.append(f"{place} no longer takes {', '.join(missing)}")
print(json.dumps({"version": vllm.__version__, "problems": problems}))
"""
SUPPORT = """
import json, sys
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.interfaces import supports_lora
print(json.dumps([one for one in sys.argv[1:] if not supports_lora(ModelRegistry.models[one].load_model_cls())]))
"""

LAYOUT = """
import json
from torch import empty, nn, zeros
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.model_loader.reload.layerwise import record_metadata_for_reloading
from guanaco_server.engine.vllm_internals import keeps_layout

def packed(weight):
    return lambda x, weight_, bias: weight

def plain(x, weight, bias):
    return nn.functional.linear(x, weight, bias)

layer = nn.Linear(4, 4, bias=False)
model = nn.Sequential(layer)
layer.quant_method = UnquantizedLinearMethod.__new__(UnquantizedLinearMethod)
record_metadata_for_reloading(model)
said = {"nothing decided": keeps_layout(model)}
layer.cpu_linear = plain
said["by torch"] = keeps_layout(model)
layer.cpu_linear = packed(zeros(4, 4))
said["packed beside"] = keeps_layout(model)
layer.cpu_linear, layer.weight = plain, nn.Parameter(empty(0))
said["packed away"] = keeps_layout(model)
print(json.dumps(said))
"""

READ_CONFIGS = """
import json, sys, tempfile
from pathlib import Path
from vllm.transformers_utils.config import get_config
from guanaco_server.formats.shape import UNUSED

def read(config):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        return get_config(folder, trust_remote_code=False).to_dict()

found = []
for one, other in json.loads(sys.argv[1]):
    one, other = read(one), read(other)
    names = (one.keys() | other.keys()) - UNUSED
    found.append(sorted(name for name in names if one.get(name) != other.get(name)))
print(json.dumps(found, default=str))
"""
SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
    "rope_type": "llama3",
}
OLDER: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "rope_theta": 10_000.0,
    "torch_dtype": "bfloat16",
}
WINDOWED = OLDER | {"use_sliding_window": False, "sliding_window": 4096}
NEWER: dict[str, Any] = {
    **{name: value for name, value in OLDER.items() if name not in ("rope_theta", "torch_dtype")},
    "dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"},
    "transformers_version": "5.19.0",
    "use_cache": False,
    "pretraining_tp": 1,
    "attention_dropout": 0.1,
    "eos_token_id": [1, 2],
}
SAVED_TWICE = [
    (OLDER, NEWER | {"head_dim": 64, "attention_bias": False, "mlp_bias": False}),
    (
        OLDER | {"rope_scaling": SCALING},
        NEWER | {"rope_parameters": SCALING | {"rope_theta": 10_000.0}},
    ),
    (OLDER | {"model_type": "mistral"}, NEWER | {"model_type": "mistral", "head_dim": 64}),
    *(
        (
            WINDOWED | {"model_type": family, "head_dim": 64},
            NEWER
            | {"model_type": family, "head_dim": 64, "sliding_window": None}
            | {"use_sliding_window": False, "layer_types": ["full_attention"] * 2},
        )
        for family in ("qwen2", "qwen3")
    ),
]

pytestmark = [
    pytest.mark.timeout(900),  # the first one waits for the imports
    pytest.mark.engine,
]


def imported_names() -> dict[str, list[str]]:
    """Every vLLM name that the source imports, also those imported within functions."""
    names: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            names |= {f"{node.module}:{alias.name}": [] for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {f"{a.name}:": [] for a in node.names if a.name.split(".")[0] == "vllm"}
    return names


def version_written_for() -> str:
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VLLM_VERSION":
            return str(ast.literal_eval(node.value))
    raise AssertionError(f"{SOURCE.name} does not say VLLM_VERSION")


def test_vllm_is_the_version_its_internals_were_written_for(
    engine_interpreter: EngineInterpreter,
) -> None:
    names = imported_names() | USED
    assert len(names) > 20
    found = json.loads(engine_interpreter.run(CHECK, json.dumps(names)).splitlines()[-1])
    wanted = version_written_for()
    assert found["version"].split(".")[:2] == wanted.split("."), (
        f"engine/vllm_internals.py was written for vLLM {wanted}, and this is {found['version']}: compare each of its "
        "functions with the new vLLM, run tests/integration/test_engine*.py, then change VLLM_VERSION."
    )
    assert not found["problems"], (
        f"vLLM {found['version']} lacks what engine/vllm_internals.py uses: {'; '.join(found['problems'])}."
    )


def test_vllm_adds_adapters_to_the_architectures_that_we_name(
    engine_interpreter: EngineInterpreter,
) -> None:
    refused = json.loads(engine_interpreter.run(SUPPORT, *ARCHITECTURES).splitlines()[-1])
    assert refused == []


def test_weights_are_reloaded_in_place_only_where_nothing_is_packed(
    engine_interpreter: EngineInterpreter,
) -> None:
    said = json.loads(engine_interpreter.run(LAYOUT).splitlines()[-1])
    assert [why for why, is_in_place in said.items() if is_in_place] == ["by torch"]


def test_vllm_reads_configs_of_one_shape_alike(engine_interpreter: EngineInterpreter) -> None:
    """Each pair has one shape; what vLLM makes of the two differs only in the fields that formats/shape.py leaves out."""
    pairs = [(older, newer) for older, newer in SAVED_TWICE if shape_is_alike(older, newer)]
    assert len(pairs) == len(SAVED_TWICE)
    said = json.loads(engine_interpreter.run(READ_CONFIGS, json.dumps(pairs)).splitlines()[-1])
    assert said == [[]] * len(pairs)


def shape_is_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return computed_with(one) == computed_with(other)
