"""What a repo must be before any of its weights are fetched: safetensors only, known code only, within limits.

Everything is read by range from the Hub at the pinned commit: configs of at most a megabyte, and the headers
of the safetensors files, which tell every tensor's name, dtype and shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from guanaco.errors import (
    ContextTooLong,
    CorruptConfig,
    MissingFile,
    ModelTooLarge,
    RemoteCode,
    UnsupportedArchitecture,
)
from guanaco.submissions import GenerationParams
from guanaco_server.artifacts.architectures import KNOWN_ARCHITECTURES
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.artifacts.repo_json import read_json
from guanaco_server.artifacts.weights import find_weight_files, read_tensors
from guanaco_server.formats.safetensors_header import parameter_count
from guanaco_server.serializer.ticket import SMALL_FILES

MAX_SMALL_FILE_BYTES = 64_000_000  # the largest known tokenizer.json is 34 MB
MAX_FILES = 10_000


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
    tensor_count: int
    max_positions: int | None
    weight_files: tuple[str, ...]
    small_files: tuple[str, ...]


async def check_repo(hub: Hub, snapshot: RepoSnapshot, limits: CheckLimits) -> CheckedModel:
    """The checked model, or the SubmissionFailure that says what is wrong and what to do."""
    _check_names(snapshot)
    weights = await find_weight_files(hub, snapshot)
    config = await read_json(hub, snapshot, "config.json")
    await _check_no_code(hub, snapshot, config)
    architecture = _architecture(config)
    small_files = _small_files(snapshot)
    tensors = await read_tensors(hub, snapshot, weights)
    model = CheckedModel(
        architecture=architecture,
        parameter_count=parameter_count(tensors),
        weight_bytes=sum(info.end - info.start for info in tensors),
        tensor_count=len(tensors),
        max_positions=_max_positions(config),
        weight_files=weights.paths,
        small_files=small_files,
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


async def _check_no_code(hub: Hub, snapshot: RepoSnapshot, config: dict[str, Any]) -> None:
    tokenizer_config = (
        await read_json(hub, snapshot, "tokenizer_config.json")
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
            f"The architecture {architecture[:80]!r} is not one that can be served.",
            hint="Text-generation models that vLLM has built in are: Llama, Mistral, Qwen, Gemma, Phi and others.",
        )
    return architecture


def _max_positions(config: dict[str, Any]) -> int | None:
    positions = config.get("max_position_embeddings", config.get("n_positions"))
    return positions if type(positions) is int and positions > 0 else None  # true is no number


def _small_files(snapshot: RepoSnapshot) -> tuple[str, ...]:
    if snapshot.file("tokenizer.json") is None:
        raise MissingFile(
            "The repo has no tokenizer.json.",
            hint="Push it with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`.",
        )
    files = [file for name in SMALL_FILES if (file := snapshot.file(name))]
    for file in files:
        if file.size_bytes > MAX_SMALL_FILE_BYTES:
            raise ModelTooLarge(
                f"{file.path} has {file.size_bytes:,} bytes; {MAX_SMALL_FILE_BYTES:,} are allowed."
            )
    return tuple(file.path for file in files)


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
