"""The entrance of `guanaco plan`: a model's facts from a preset, a folder or the Hub, and its plan for some traffic.

Like platform.py it names the Hub's adapter; nothing else of a platform is started or needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from guanaco.errors import CorruptWeights, InvalidInput, MissingFile
from guanaco.plans import PlanComparison, PlanRequest
from guanaco.submissions import Quantization
from guanaco_server.artifacts.checking.repo_json import MAX_CONFIG_BYTES, parse_object, read_json
from guanaco_server.artifacts.checking.weights import find_weight_files, read_tensors
from guanaco_server.artifacts.hub.hub import Hub
from guanaco_server.artifacts.hub.hugging_face import HuggingFaceHub
from guanaco_server.formats.safetensors_header import DTYPE_BYTES, TensorInfo, read_header
from guanaco_server.recipes.comparison import compare_gpus, quantized_model
from guanaco_server.recipes.hardware import find_gpus
from guanaco_server.recipes.memory import Model
from guanaco_server.recipes.model_shape import read_shape
from guanaco_server.recipes.presets import find_preset, require_repo
from guanaco_server.recipes.prices import PriceTable
from guanaco_server.runtime import threads
from guanaco_server.settings import Settings

CASTED = frozenset({"F32", "F64"})  # served as bfloat16


async def compare(request: PlanRequest, settings: Settings) -> PlanComparison:
    """Compare types of GPU. Raises InvalidInput, NoSuchGpu, or the error of the model's repo. ``model`` may be a folder."""
    find_gpus(request.gpus)
    model = await _read_model(request.model, request.quantization, settings)
    return compare_gpus(model, request, PriceTable(settings.gpu_prices), settings.gpus_per_machine)


async def _read_model(name: str, quantization: Quantization | None, settings: Settings) -> Model:
    if (local := await threads.FILES.run(_read_local, Path(name))) is not None:
        config, served_bytes = local
    elif (preset := find_preset(name)) is not None:
        config, served_bytes = preset, None
    else:
        config, served_bytes = await _read_hub(_hub(settings), require_repo(name))
    return quantized_model(name, read_shape(config), served_bytes, quantization)


async def _read_hub(hub: Hub, repo: str) -> tuple[dict[str, Any], int]:
    """Read the repo's config and the headers of its weights, but no weights."""
    snapshot = await hub.resolve(repo, None)
    config = await read_json(hub, snapshot, "config.json")
    files = await read_tensors(hub, snapshot, await find_weight_files(hub, snapshot))
    return config, _served_bytes(info for _, infos in files for info in infos)


def _read_local(path: Path) -> tuple[dict[str, Any], int | None] | None:
    """Return a folder with a config.json, its weights' headers too where it has them, or the file alone; None if nothing is there."""
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
