"""What a repo must be before any of its weights are fetched: safetensors only, known code only, within limits.

Everything is read by range from the Hub at the pinned commit: configs of at most a megabyte, and the headers
of the safetensors files, which tell every tensor's name, dtype and shape.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from guanaco.errors import (
    ContextTooLong,
    CorruptConfig,
    CorruptWeights,
    MissingFile,
    ModelTooLarge,
    PickleWeights,
    RemoteCode,
    UnsupportedArchitecture,
)
from guanaco.submissions import GenerationParams
from guanaco_server.artifacts.architectures import KNOWN_ARCHITECTURES
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.engine.safetensors_header import (
    LENGTH_BYTES,
    TensorInfo,
    parameter_count,
    parse_header,
    parse_length,
)

MAX_CONFIG_BYTES = 1_000_000
MAX_TOKENIZER_BYTES = 64_000_000  # the largest known is 34 MB
MAX_FILES = 10_000
FIRST_READ_BYTES = 65_536  # holds the header of most shards, so that one request is enough
SHARDS_AT_ONCE = 4
INDEX_NAME = "model.safetensors.index.json"
WEIGHTS_NAME = "model.safetensors"
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf", ".h5", ".msgpack", ".onnx")
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class CheckLimits:
    max_parameters: int
    max_weight_bytes: int


@dataclass(frozen=True)
class CheckedModel:
    """A repo that passed. ``max_positions`` is None where the config does not say."""

    architecture: str
    parameter_count: int
    weight_bytes: int
    max_positions: int | None
    weight_files: tuple[str, ...]
    small_files: tuple[str, ...]


async def check_repo(hub: Hub, snapshot: RepoSnapshot, limits: CheckLimits) -> CheckedModel:
    """The checked model, or the SubmissionFailure that says what is wrong and what to do."""
    _check_names(snapshot)
    weight_files = await _weight_files(hub, snapshot)
    config = await _read_json(hub, snapshot, "config.json")
    await _check_no_code(hub, snapshot, config)
    architecture = _architecture(config)
    _check_tokenizer(snapshot)
    headers = await _read_headers(hub, snapshot, weight_files)
    tensors = [info for infos in headers for info in infos]
    model = CheckedModel(
        architecture=architecture,
        parameter_count=parameter_count(tensors),
        weight_bytes=sum(info.end - info.start for info in tensors),
        max_positions=_max_positions(config),
        weight_files=weight_files,
        small_files=tuple(name for name in SMALL_FILES if snapshot.file(name)),
    )
    _check_size(model, limits)
    return model


def check_context(model: CheckedModel, params: GenerationParams) -> None:
    wanted = params.max_input_tokens + params.max_output_tokens
    if model.max_positions is not None and wanted > model.max_positions:
        raise ContextTooLong(
            f"max_input_tokens + max_output_tokens is {wanted:,}, and the model has {model.max_positions:,} positions.",
            hint="Submit again with a smaller max_input_tokens.",
        )


def _check_names(snapshot: RepoSnapshot) -> None:
    if len(snapshot.files) > MAX_FILES:
        raise CorruptConfig(
            f"The repo has {len(snapshot.files):,} files; {MAX_FILES:,} are allowed."
        )
    for file in snapshot.files:
        path = PurePosixPath(file.path)
        if (
            path.is_absolute()
            or ".." in path.parts
            or "\\" in file.path
            or not file.path.isprintable()
        ):
            raise CorruptConfig(f"The repo has a file with the forbidden name {file.path[:80]!r}.")


async def _weight_files(hub: Hub, snapshot: RepoSnapshot) -> tuple[str, ...]:
    if snapshot.file(INDEX_NAME):
        return await _indexed_files(hub, snapshot)
    if snapshot.file(WEIGHTS_NAME):
        return (WEIGHTS_NAME,)
    others = [file.path for file in snapshot.files if file.path.endswith(OTHER_WEIGHTS)]
    safetensors = [
        file.path
        for file in snapshot.files
        if file.path.endswith(".safetensors") and "/" not in file.path
    ]
    if len(safetensors) == 1:
        return (safetensors[0],)
    if safetensors:
        raise MissingFile(
            f"The repo has {len(safetensors)} safetensors files and no {INDEX_NAME}.",
            hint="Save it again with `model.save_pretrained(...)`, which writes the index.",
        )
    if others:
        raise PickleWeights(
            f"The repo's weights are not safetensors ({others[0]}), and other formats are never opened.",
            hint="Convert them: load the model and `save_pretrained(..., safe_serialization=True)`, then push.",
        )
    raise MissingFile(
        "The repo has no weights: model.safetensors is missing.", hint="Push the model's weights."
    )


async def _indexed_files(hub: Hub, snapshot: RepoSnapshot) -> tuple[str, ...]:
    index = await _read_json(hub, snapshot, INDEX_NAME, MAX_TOKENIZER_BYTES)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptWeights(f"{INDEX_NAME} has no weight_map.")
    shards = sorted({str(name) for name in weight_map.values()})
    for shard in shards:
        if not shard.endswith(".safetensors"):
            raise PickleWeights(
                f"{INDEX_NAME} names {shard[:80]}, which is not a safetensors file."
            )
        if snapshot.file(shard) is None:
            raise MissingFile(f"{INDEX_NAME} names {shard[:80]}, which the repo does not have.")
    return tuple(shards)


async def _check_no_code(hub: Hub, snapshot: RepoSnapshot, config: dict[str, Any]) -> None:
    tokenizer_config = (
        await _read_json(hub, snapshot, "tokenizer_config.json")
        if snapshot.file("tokenizer_config.json")
        else {}
    )
    for name, content in (("config.json", config), ("tokenizer_config.json", tokenizer_config)):
        if "auto_map" in content:
            raise RemoteCode(
                f"{name} has an auto_map: the model needs the repo's own code, which is never run.",
                hint="Submit a model of an architecture that vLLM knows, without auto_map.",
            )


def _architecture(config: dict[str, Any]) -> str:
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise CorruptConfig("config.json must name one architecture under `architectures`.")
    architecture = str(architectures[0])
    if architecture not in KNOWN_ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"The architecture {architecture[:80]} is not one that can be served.",
            hint="Text-generation models that vLLM has built in are: Llama, Mistral, Qwen, Gemma, Phi and others.",
        )
    return architecture


def _max_positions(config: dict[str, Any]) -> int | None:
    positions = config.get("max_position_embeddings", config.get("n_positions"))
    return positions if isinstance(positions, int) and positions > 0 else None


def _check_tokenizer(snapshot: RepoSnapshot) -> None:
    tokenizer = snapshot.file("tokenizer.json")
    if tokenizer is None:
        raise MissingFile(
            "The repo has no tokenizer.json.",
            hint="Push it with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`.",
        )
    if tokenizer.size_bytes > MAX_TOKENIZER_BYTES:
        raise ModelTooLarge(
            f"tokenizer.json has {tokenizer.size_bytes:,} bytes; {MAX_TOKENIZER_BYTES:,} are allowed."
        )


def _check_size(model: CheckedModel, limits: CheckLimits) -> None:
    if model.parameter_count > limits.max_parameters:
        raise ModelTooLarge(
            f"The model has {model.parameter_count:,} parameters; {limits.max_parameters:,} are allowed.",
            hint="Submit a smaller model.",
        )
    if model.weight_bytes > limits.max_weight_bytes:
        raise ModelTooLarge(
            f"The model's weights are {model.weight_bytes:,} bytes; {limits.max_weight_bytes:,} are allowed.",
            hint="Submit a smaller model, or save it as bfloat16.",
        )


async def _read_headers(
    hub: Hub, snapshot: RepoSnapshot, weight_files: tuple[str, ...]
) -> list[tuple[TensorInfo, ...]]:
    turns = asyncio.Semaphore(SHARDS_AT_ONCE)

    async def read(path: str) -> tuple[TensorInfo, ...]:
        async with turns:
            return await _read_header(hub, snapshot, path)

    return await asyncio.gather(*(read(path) for path in weight_files))


async def _read_header(hub: Hub, snapshot: RepoSnapshot, path: str) -> tuple[TensorInfo, ...]:
    file = snapshot.file(path)
    size = file.size_bytes if file else 0
    head = await hub.read(snapshot, path, 0, min(size, FIRST_READ_BYTES))
    try:
        end = LENGTH_BYTES + parse_length(head, size)
        if len(head) < end:
            head += await hub.read(snapshot, path, len(head), end - len(head))
        return parse_header(head[LENGTH_BYTES:end], size - end)
    except ValueError as error:
        raise CorruptWeights(
            f"{path} is corrupt or truncated: {error}.", hint="Push the file again."
        ) from None


async def _read_json(
    hub: Hub, snapshot: RepoSnapshot, path: str, max_bytes: int = MAX_CONFIG_BYTES
) -> dict[str, Any]:
    file = snapshot.file(path)
    if file is None:
        raise MissingFile(f"The repo has no {path}.", hint="Push it with `save_pretrained(...)`.")
    if file.size_bytes > max_bytes:
        raise CorruptConfig(f"{path} has {file.size_bytes:,} bytes; {max_bytes:,} are allowed.")
    try:
        content = json.loads(await hub.read(snapshot, path, 0, file.size_bytes))
    except (ValueError, RecursionError):
        raise CorruptConfig(f"{path} is not valid JSON.") from None
    if not isinstance(content, dict):
        raise CorruptConfig(f"{path} is not a JSON object.")
    return content
