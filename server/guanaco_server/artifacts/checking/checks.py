"""Checks a repo before any of its weights are fetched: safetensors only, known code only, within limits.

Everything is read by range from the Hub at the pinned commit: configs of at most a megabyte, and the headers of the
safetensors files, which tell every tensor's name, dtype and shape. The platform has this done in a process of its own
(process.py). For a LoRA adapter, the base is checked as a model,
and then the adapter against it. Each file's name must mean the same one file on every file system.
"""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from guanaco.errors import (
    ContextTooLong,
    CorruptConfig,
    CorruptWeights,
    MissingFile,
    ModelTooLarge,
    QuantizationUnsupported,
    UnsupportedAdapter,
    UnsupportedArchitecture,
    UnsupportedTokenizer,
)
from guanaco.submissions import GenerationParams, Quantization, SubmissionKind
from guanaco_server.artifacts.checking.adapters import (
    AS_PLAIN_LORA,
    WEIGHT_FILE,
    CheckedAdapter,
    LoraModule,
    read_modules,
    resolve_base,
)
from guanaco_server.artifacts.checking.consistency import check_consistency, is_embedding
from guanaco_server.artifacts.checking.model_card import ParsedCard, read_card
from guanaco_server.artifacts.checking.model_config import (
    architecture_of,
    check_no_code,
    has_experts,
    max_positions_of,
)
from guanaco_server.artifacts.checking.repo_json import read_json
from guanaco_server.artifacts.checking.weights import FileTensors, find_weight_files, read_tensors
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.formats.safetensors_header import TensorInfo, parameter_count
from guanaco_server.recipes.model_shape import ModelShape, read_shape
from guanaco_server.serializer.task import SMALL_FILES
from guanaco_server.tokenization.declared import MAX_TOKENIZER_BYTES

TRANSPOSED = frozenset(
    {"GPT2LMHeadModel", "GPT2ForSequenceClassification"}
)  # their linear layers are stored as [in, out]


MAX_FILES = 10_000
MAX_PART_BYTES = 255  # of most file systems
FORBIDDEN_PARTS = frozenset({"", ".", "..", ".git"})
DEVICES = frozenset(
    ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"]
    + [f"{port}{number}" for port in ("COM", "LPT") for number in range(10)]
)  # open a device on Windows, with any extension
HEAD = "score.weight"  # the name in every architecture of REWARD_ARCHITECTURES
TRANSFORMERS_LABELS = 2  # where a config does not say
ONE_OF_SEVERAL = (None, "single_label_classification")
MAX_SMALL_FILE_BYTES = MAX_TOKENIZER_BYTES
TOKENIZER_NAME = "tokenizer.json"
SENTENCEPIECE_NAME = "tokenizer.model"  # converted by serializer/tokenizers/tokenizer_files.py
MODEL_FILES = frozenset({"config.json", "generation_config.json"})  # always the base's own
TOKENIZER_FILES = tuple(name for name in SMALL_FILES if name not in MODEL_FILES)


@dataclass(frozen=True)
class CheckLimits:
    max_parameters: int
    max_weight_bytes: int


@dataclass(frozen=True)
class CheckedModel:
    """The facts about a repo that passed its checks. ``max_positions`` is None where the config does not say.

    With an ``adapter``, all else is of its ``base``, whose ``small_files`` the adapter's own add to.
    """

    architecture: str
    parameter_count: int
    weight_bytes: int
    max_positions: int | None
    weight_files: tuple[str, ...]
    small_files: tuple[str, ...]
    tensor_count: int
    embedding_rows: int | None = None
    is_tied: bool = False
    is_quantized: bool = False
    has_experts: bool = False
    adapter: CheckedAdapter | None = None
    base: RepoSnapshot | None = None
    card: ParsedCard | None = None
    shape: ModelShape | None = None


async def check_repo(
    hub: Hub,
    snapshot: RepoSnapshot,
    limits: CheckLimits,
    base_commit: str | None = None,
    kind: SubmissionKind = SubmissionKind.CHAT,
) -> CheckedModel:
    """Check a repo. Raise the SubmissionFailure that says what is wrong and what to do.

    ``base_commit`` is that of an adapter's base, where it is pinned already.
    """
    check_names(snapshot)
    base = await resolve_base(hub, snapshot, base_commit)
    if base is None:
        model, _ = await _check_model(hub, snapshot, limits, kind)
    else:
        check_names(base)
        model, infos = await _check_model(hub, base, limits, kind)
        model = await _check_adapter(hub, snapshot, base, model, infos, limits)
    return replace(model, card=await read_card(hub, snapshot))


def check_context(
    model: CheckedModel, params: GenerationParams, kind: SubmissionKind = SubmissionKind.CHAT
) -> None:
    """ContextTooLong where prompt and reply, or what a reward model reads, have more tokens than the model has positions."""
    if kind is SubmissionKind.REWARD:
        _check_positions(model, "max_input_tokens", params.max_input_tokens)
        return
    wanted = params.max_input_tokens + params.max_output_tokens
    _check_positions(model, "max_input_tokens + max_output_tokens", wanted)


def check_quantization(
    quantization: Quantization, *, is_quantized: bool, has_experts: bool
) -> None:
    """QuantizationUnsupported where vLLM would refuse it for such a model, or do nothing."""
    if is_quantized:
        raise QuantizationUnsupported(
            f"The checkpoint is quantized already, so it cannot be quantized to {quantization} when it is served.",
            hint="Submit it without --quantization.",
        )
    if quantization is Quantization.INT8 and not has_experts:
        raise QuantizationUnsupported(
            "int8 quantizes the experts of a mixture, and this model has none.",
            hint="Submit it with --quantization fp8, or without.",
        )


def _check_positions(model: CheckedModel, what: str, wanted: int) -> None:
    if model.max_positions is not None and wanted > model.max_positions:
        raise ContextTooLong(
            f"{what} is {wanted:,}, and the model has {model.max_positions:,} positions.",
            hint="Submit again with a smaller max_input_tokens.",
        )


async def _check_model(
    hub: Hub, snapshot: RepoSnapshot, limits: CheckLimits, kind: SubmissionKind
) -> tuple[CheckedModel, tuple[TensorInfo, ...]]:
    weights = await find_weight_files(hub, snapshot)
    config = await read_json(hub, snapshot, "config.json")
    await check_no_code(hub, snapshot)
    architecture = architecture_of(config, kind)
    files = model_files(snapshot)
    infos = _flat(await read_tensors(hub, snapshot, weights))
    check_consistency(config, infos, has_head=kind is SubmissionKind.CHAT)
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
        embedding_rows=next((info.shape[0] for info in infos if is_embedding(info)), None),
        is_tied=config.get("tie_word_embeddings") is True,
        is_quantized="quantization_config" in config,
        has_experts=has_experts(config) and any(".experts." in info.name for info in infos),
        shape=_shape_of(config),
    )
    _check_size(model, limits)
    return model, infos


def _shape_of(config: dict[str, Any]) -> ModelShape | None:
    """Return None for a family whose layers are not known: no plan can be made for it."""
    with contextlib.suppress(CorruptConfig, UnsupportedArchitecture):
        return read_shape(config)
    return None


async def _check_adapter(
    hub: Hub,
    snapshot: RepoSnapshot,
    base: RepoSnapshot,
    model: CheckedModel,
    infos: tuple[TensorInfo, ...],
    limits: CheckLimits,
) -> CheckedModel:
    """Add the adapter's facts to the base's. The tokenizer is the adapter's, if it has one."""
    await check_no_code(hub, snapshot)
    modules, size = await read_modules(hub, snapshot, infos)
    _check_linear(model, modules)
    if size > limits.max_weight_bytes:
        raise ModelTooLarge(
            f"The adapter's weights are {size:,} bytes; {limits.max_weight_bytes:,} are allowed."
        )
    own = adapter_files(snapshot)
    kept = model.small_files
    if own:
        kept = tuple(path for path in kept if path in MODEL_FILES)
    adapter = CheckedAdapter(WEIGHT_FILE, own, modules, size)
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


def require_few_files(snapshot: RepoSnapshot) -> None:
    """CorruptConfig for a repo whose list of files is too long to be looked at."""
    if len(snapshot.files) > MAX_FILES:
        raise CorruptConfig(
            f"The repo has {len(snapshot.files):,} files; {MAX_FILES:,} are allowed."
        )


def check_names(snapshot: RepoSnapshot) -> None:
    """CorruptConfig for names that leave the folder, are no plain name, or that some file system cannot tell apart."""
    require_few_files(snapshot)
    seen: dict[str, str] = {}
    for file in snapshot.files:
        if "\\" in file.path or not file.path.isprintable() or not _are_plain(file.path):
            raise CorruptConfig(f"The repo has a file with the forbidden name {file.path[:80]!r}.")
        other = seen.setdefault(_folded(file.path), file.path)
        if other != file.path:
            raise CorruptConfig(
                f"The repo has both {other[:80]!r} and {file.path[:80]!r}, which some file systems cannot tell apart.",
                hint="Rename or delete one of them.",
            )


def _are_plain(path: str) -> bool:
    return all(_is_plain(part) for part in path.split("/"))


def _is_plain(part: str) -> bool:
    is_device = part.partition(".")[0].rstrip().upper() in DEVICES
    is_short = len(part.encode()) <= MAX_PART_BYTES
    return part.casefold() not in FORBIDDEN_PARTS and is_short and not is_device


def _folded(path: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())


def check_score_head(config: dict[str, Any], tensors: Iterable[TensorInfo]) -> None:
    """CorruptWeights without a head, CorruptConfig where its labels make no score."""
    head = next((info for info in tensors if info.name == HEAD), None)
    if head is None or len(head.shape) != 2:
        raise CorruptWeights(
            f"The weights have no {HEAD}: this is no classifier that was trained.",
            hint="Save it from the class that it was trained as, such as AutoModelForSequenceClassification.",
        )
    labels = _label_count(config)
    if labels != head.shape[0]:
        raise CorruptConfig(
            f"config.json has {labels} labels, and {HEAD} has {head.shape[0]} rows.",
            hint="Set num_labels (or id2label) to what the model was trained with.",
        )
    if labels > 1 and config.get("problem_type") not in ONE_OF_SEVERAL:
        raise CorruptConfig(
            f"A reward model with {labels} labels must choose one of them; problem_type is {str(config['problem_type'])[:40]!r}.",
            hint="Several labels that are no alternatives make no single score: train a head with one label.",
        )


def _label_count(config: dict[str, Any]) -> int:
    """Count the labels as transformers and vLLM do."""
    names = config.get("id2label")
    if isinstance(names, dict):
        return len(names)
    count = config.get("num_labels")
    return count if type(count) is int else TRANSFORMERS_LABELS


def model_files(snapshot: RepoSnapshot) -> tuple[str, ...]:
    """Return a model's small files, a tokenizer among them."""
    if snapshot.file(TOKENIZER_NAME) is None and snapshot.file(SENTENCEPIECE_NAME) is None:
        raise MissingFile(
            f"The repo has no {TOKENIZER_NAME} and no {SENTENCEPIECE_NAME}.",
            hint="Push it with `AutoTokenizer.from_pretrained(...).save_pretrained(...)`.",
        )
    return _present(snapshot, SMALL_FILES)


def adapter_files(snapshot: RepoSnapshot) -> tuple[str, ...]:
    """Return the tokenizer's files if the adapter brings a tokenizer: all of them, because a mixture would not work."""
    return _present(snapshot, TOKENIZER_FILES) if snapshot.file(TOKENIZER_NAME) else ()


def require_rows(entries: int, model: CheckedModel) -> None:
    """UnsupportedTokenizer where a tokenizer has more entries than the model's embedding has rows."""
    rows = model.embedding_rows
    if rows is None or entries <= rows:
        return
    if model.adapter is not None and model.adapter.small_files:
        raise UnsupportedTokenizer(
            f"The adapter's tokenizer has {entries:,} entries, and the base's embedding only {rows:,}.",
            hint="Merge the adapter into its resized base, and submit the result.",
        )
    raise UnsupportedTokenizer(
        f"The tokenizer has {entries:,} entries, and the model's embedding only {rows:,}.",
        hint="Call `model.resize_token_embeddings(len(tokenizer))` before saving, or push the tokenizer that the model was trained with.",
    )


def _present(snapshot: RepoSnapshot, names: Iterable[str]) -> tuple[str, ...]:
    files = [file for name in names if (file := snapshot.file(name))]
    for file in files:
        if file.size_bytes > MAX_SMALL_FILE_BYTES:
            raise ModelTooLarge(
                f"{file.path} has {file.size_bytes:,} bytes; {MAX_SMALL_FILE_BYTES:,} are allowed."
            )
    return tuple(file.path for file in files)
