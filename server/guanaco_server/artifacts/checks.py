"""What a repo must be before any of its weights are fetched: safetensors only, known code only, within limits.

Everything is read by range from the Hub at the pinned commit: configs of at most a megabyte, and the headers
of the safetensors files, which tell every tensor's name, dtype and shape. Of a LoRA adapter, its base is
checked as a model, and then the adapter against it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from guanaco.errors import ContextTooLong, ModelTooLarge, UnsupportedAdapter
from guanaco.submissions import GenerationParams, SubmissionKind
from guanaco_server.artifacts import small_files
from guanaco_server.artifacts.adapter_config import AS_PLAIN_LORA
from guanaco_server.artifacts.adapters import (
    WEIGHT_FILE,
    CheckedAdapter,
    LoraModule,
    read_modules,
    resolve_base,
)
from guanaco_server.artifacts.file_names import check_names
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.artifacts.model_config import (
    architecture_of,
    check_no_code,
    max_positions_of,
)
from guanaco_server.artifacts.repo_json import read_json
from guanaco_server.artifacts.score_head import check_score_head
from guanaco_server.artifacts.weights import FileTensors, find_weight_files, read_tensors
from guanaco_server.formats.safetensors_header import TensorInfo, parameter_count

TRANSPOSED = frozenset(
    {"GPT2LMHeadModel", "GPT2ForSequenceClassification"}
)  # their linear layers are stored as [in, out]


@dataclass(frozen=True)
class CheckLimits:
    max_parameters: int
    max_weight_bytes: int


@dataclass(frozen=True)
class CheckedModel:
    """A repo that passed. ``max_positions`` is None where the config does not say.

    With an ``adapter``, all else is of its ``base``, whose ``small_files`` the adapter's own add to.
    """

    architecture: str
    parameter_count: int
    weight_bytes: int
    max_positions: int | None
    weight_files: tuple[str, ...]
    small_files: tuple[str, ...]
    tensor_count: int
    tensors: FileTensors
    is_tied: bool = False
    adapter: CheckedAdapter | None = None
    base: RepoSnapshot | None = None


async def check_repo(
    hub: Hub,
    snapshot: RepoSnapshot,
    limits: CheckLimits,
    base_commit: str | None = None,
    kind: SubmissionKind = SubmissionKind.CHAT,
) -> CheckedModel:
    """The checked model, or the SubmissionFailure that says what is wrong and what to do.

    ``base_commit`` is that of an adapter's base, where it is pinned already.
    """
    check_names(snapshot)
    base = await resolve_base(hub, snapshot, base_commit)
    if base is None:
        return await _check_model(hub, snapshot, limits, kind)
    check_names(base)
    model = await _check_model(hub, base, limits, kind)
    return await _check_adapter(hub, snapshot, base, model, limits)


def check_context(
    model: CheckedModel, params: GenerationParams, kind: SubmissionKind = SubmissionKind.CHAT
) -> None:
    """ContextTooLong where prompt and reply, or what a reward model reads, have more tokens than the model has positions."""
    if kind is SubmissionKind.REWARD:
        _check_positions(model, "max_input_tokens", params.max_input_tokens)
        return
    wanted = params.max_input_tokens + params.max_output_tokens
    _check_positions(model, "max_input_tokens + max_output_tokens", wanted)


def _check_positions(model: CheckedModel, what: str, wanted: int) -> None:
    if model.max_positions is not None and wanted > model.max_positions:
        raise ContextTooLong(
            f"{what} is {wanted:,}, and the model has {model.max_positions:,} positions.",
            hint="Submit again with a smaller max_input_tokens.",
        )


async def _check_model(
    hub: Hub, snapshot: RepoSnapshot, limits: CheckLimits, kind: SubmissionKind
) -> CheckedModel:
    weights = await find_weight_files(hub, snapshot)
    config = await read_json(hub, snapshot, "config.json")
    await check_no_code(hub, snapshot)
    architecture = architecture_of(config, kind)
    files = small_files.model_files(snapshot)
    tensors = await read_tensors(hub, snapshot, weights)
    infos = _flat(tensors)
    if kind is SubmissionKind.REWARD:
        check_score_head(config, infos)
    model = CheckedModel(
        architecture=architecture,
        parameter_count=parameter_count(infos),
        weight_bytes=_size(infos),
        max_positions=max_positions_of(config),
        weight_files=weights.paths,
        small_files=files,
        tensor_count=len(infos),
        tensors=tensors,
        is_tied=config.get("tie_word_embeddings") is True,
    )
    _check_size(model, limits)
    return model


async def _check_adapter(
    hub: Hub,
    snapshot: RepoSnapshot,
    base: RepoSnapshot,
    model: CheckedModel,
    limits: CheckLimits,
) -> CheckedModel:
    """The base's facts with the adapter's; the tokenizer is the adapter's, if it has one."""
    await check_no_code(hub, snapshot)
    infos = _flat(model.tensors)
    modules = await read_modules(hub, snapshot, infos)
    _check_linear(model, modules)
    size = sum(_size((module.a_tensor, module.b_tensor)) for module in modules)
    if size > limits.max_weight_bytes:
        raise ModelTooLarge(
            f"The adapter's weights are {size:,} bytes; {limits.max_weight_bytes:,} are allowed."
        )
    own = small_files.adapter_files(snapshot)
    kept = model.small_files
    if own:
        await small_files.check_tokenizer_fits(hub, snapshot, infos)
        kept = tuple(path for path in kept if path in small_files.MODEL_FILES)
    adapter = CheckedAdapter(WEIGHT_FILE, own, modules)
    return replace(model, small_files=kept, adapter=adapter, base=base)


def _check_linear(model: CheckedModel, modules: tuple[LoraModule, ...]) -> None:
    """A square matrix does not show by its shape that it is stored the other way round."""
    if model.architecture in TRANSPOSED:
        raise UnsupportedAdapter(
            f"Adapters of {model.architecture} cannot be served.", hint=AS_PLAIN_LORA
        )
    if model.is_tied and any(module.module.endswith("lm_head") for module in modules):
        raise UnsupportedAdapter(
            "The adapter changes lm_head, which is the embedding in this base.", hint=AS_PLAIN_LORA
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


def _flat(tensors: FileTensors) -> tuple[TensorInfo, ...]:
    return tuple(info for _, infos in tensors for info in infos)


def _size(infos: Iterable[TensorInfo]) -> int:
    return sum(info.end - info.start for info in infos)
