"""The entrance of `guanaco plan`: a model's facts from a preset, a folder or the Hub, and its plan for some traffic.

Like platform.py it names the Hub's adapter; nothing else of a platform is started or needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from guanaco.errors import CorruptWeights, InvalidInput, MissingFile
from guanaco.forms import Repo
from guanaco.submissions import Quantization
from guanaco_server.artifacts.checking.repo_json import MAX_CONFIG_BYTES, parse_object, read_json
from guanaco_server.artifacts.checking.weights import find_weight_files, read_tensors
from guanaco_server.artifacts.hub.hub import Hub
from guanaco_server.artifacts.hub.hugging_face import HuggingFaceHub
from guanaco_server.formats.safetensors_header import DTYPE_BYTES, TensorInfo, read_header
from guanaco_server.recipes.hardware import GPUS, find_gpus
from guanaco_server.recipes.memory import Model, weight_bytes
from guanaco_server.recipes.model_shape import active_parameters, count_parameters, read_shape
from guanaco_server.recipes.prices import PriceTable
from guanaco_server.recipes.traffic import ExpectedTraffic, TrafficPlan, check_traffic, plan_traffic
from guanaco_server.settings import Settings

__all__ = ["Comparison", "ExpectedTraffic", "TrafficPlan", "compare"]  # what the command needs

CASTED = frozenset({"F32", "F64"})  # served as bfloat16

# Models whose config.json is known here, so that a plan can be made without a Hub. Figures from their repos.
LLAMA_3_8B: dict[str, Any] = {  # meta-llama/Meta-Llama-3-8B-Instruct
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4_096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
    "max_position_embeddings": 8_192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN3_235B: dict[str, Any] = {  # Qwen/Qwen3-235B-A22B
    "model_type": "qwen3_moe",
    "num_hidden_layers": 94,
    "hidden_size": 4_096,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12_288,
    "moe_intermediate_size": 1_536,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN3_235B_FP8 = QWEN3_235B | {  # Qwen/Qwen3-235B-A22B-FP8
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}
}

PRESETS: dict[str, dict[str, Any]] = {
    "llama-3-8b": LLAMA_3_8B,
    "qwen3-235b-a22b": QWEN3_235B,
    "qwen3-235b-a22b-fp8": QWEN3_235B_FP8,
}


@dataclass(frozen=True)
class Comparison:
    """A plan for each type of GPU; None where it cannot carry the traffic at all."""

    model: Model
    traffic: ExpectedTraffic
    plans: tuple[tuple[str, TrafficPlan | None], ...]

    @property
    def parameters(self) -> tuple[int, int]:
        """Return all parameters, and those that a token uses."""
        return count_parameters(self.model.shape).total, active_parameters(self.model.shape)

    @property
    def weight_bytes(self) -> float:
        return weight_bytes(self.model)


async def compare(
    name: str,
    traffic: ExpectedTraffic,
    gpu_types: Sequence[str],
    quantization: Quantization | None,
    settings: Settings,
) -> Comparison:
    """Compare these types of GPU, by default all. Raises InvalidInput, NoSuchGpu, or the error of the model's repo."""
    gpus = find_gpus(gpu_types or GPUS)
    model = await _read_model(name, quantization, settings)
    check_traffic(model, traffic)
    prices = PriceTable(settings.gpu_prices)
    plans = (
        (gpu.name, plan_traffic(model, traffic, gpu, prices, settings.gpus_per_machine))
        for gpu in gpus
    )
    return Comparison(model, traffic, tuple(plans))


async def _read_model(name: str, quantization: Quantization | None, settings: Settings) -> Model:
    key = name.lower().rpartition("/")[2]
    if (local := await asyncio.to_thread(_read_local, Path(name))) is not None:
        config, served_bytes = local
    elif key in PRESETS:
        config, served_bytes = PRESETS[key], None
    else:
        config, served_bytes = await _read_hub(_hub(settings), _repo(name))
    shape = read_shape(config)
    if quantization is not None and shape.weights.is_quantized:
        raise InvalidInput(f"{name} is quantized already, so it cannot be quantized again.")
    if quantization is Quantization.INT8 and shape.experts is None:
        raise InvalidInput(f"int8 quantizes the experts of a mixture, and {name} has none.")
    return Model(name, shape, served_bytes, quantization)


def _repo(name: str) -> str:
    try:
        return TypeAdapter(Repo).validate_python(name)
    except ValidationError:
        raise InvalidInput(
            f"{name[:80]!r} is no preset, no folder and no repo of the Hub.",
            hint=f"Presets are {', '.join(PRESETS)}; a repo looks like org/name.",
        ) from None


async def _read_hub(hub: Hub, repo: str) -> tuple[dict[str, Any], int]:
    """Read the repo's config and the headers of its weights, but no weights."""
    snapshot = await hub.resolve(repo, None)
    config = await read_json(hub, snapshot, "config.json")
    files = await read_tensors(hub, snapshot, await find_weight_files(hub, snapshot))
    return config, _served_bytes(info for _, infos in files for info in infos)


def _read_local(path: Path) -> tuple[dict[str, Any], int | None] | None:
    """A folder with a config.json, its weights' headers too where it has them, or the file alone; None if nothing is there."""
    path = path.expanduser()
    if not path.exists():
        return None
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise MissingFile(f"There is no config.json in {path}.")
    if file.stat().st_size > MAX_CONFIG_BYTES:
        raise InvalidInput(f"{file} is too large for a config.json.")
    config = parse_object(file.name, file.read_bytes())
    weights = sorted(file.parent.glob("*.safetensors")) if path.is_dir() else []
    try:
        infos = [info for weight in weights for info in read_header(weight)[0]]
    except (ValueError, OSError) as error:
        raise CorruptWeights(f"The weights in {path} cannot be read: {error}.") from None
    return config, _served_bytes(infos) or None


def _served_bytes(infos: Iterable[TensorInfo]) -> int:
    return sum(
        info.element_count * (2 if info.dtype in CASTED else DTYPE_BYTES[info.dtype])
        for info in infos
    )


def _hub(settings: Settings) -> HuggingFaceHub:
    token = settings.hub_token.get_secret_value() if settings.hub_token else None
    return HuggingFaceHub(settings.hub_endpoint, None).with_token(token)  # the operator's own
