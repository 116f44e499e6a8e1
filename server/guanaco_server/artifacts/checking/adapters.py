"""Checks LoRA adapters: which modules of the base one changes, and how strongly, from its config and header.

    base_model.model.<module>.lora_A.weight    [r, in]      (or lora_A.default.weight)
    base_model.model.<module>.lora_B.weight    [out, r]
    <module>.weight                            [out, in]    in the base

    merged weight  =  weight of the base  +  scale · B A,   scale = alpha / r   (rsLoRA: alpha / sqrt(r))

The serializer merges them (docs/decisions/0007-lora-adapters-are-merged.md), so what could not be merged is refused
here, before any weights are fetched. ``rank_pattern`` and ``alpha_pattern`` override r and alpha of single modules as
in PEFT's get_pattern_key (peft/utils/other.py): the first key that matches `(.*\\.)?(key)$` counts. Keys are regular
expressions from a stranger, so only names, dots and a leading ^ are allowed in them, with which no match takes long.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from guanaco.errors import (
    CorruptConfig,
    CorruptWeights,
    MissingFile,
    PickleWeights,
    UnsupportedAdapter,
)
from guanaco.forms import Repo, Revision
from guanaco_server.artifacts.checking.repo_json import read_json
from guanaco_server.artifacts.checking.weights import (
    INDEX_NAME,
    WEIGHTS_NAME,
    WeightFiles,
    read_tensors,
)
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.formats.safetensors_header import TensorInfo

WEIGHT_FILE = "adapter_model.safetensors"
PICKLE_NAME = "adapter_model.bin"
LORA_KEY = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
FLOAT_DTYPES = frozenset({"F16", "BF16", "F32"})
EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings")
MAX_MATCHES = 1_000_000  # of patterns with modules: a second of regular expressions


CONFIG_NAME = "adapter_config.json"
DEFAULT_R = DEFAULT_ALPHA = 8  # PEFT's
MAX_RANK = 8_192
MAX_ALPHA = 1_000_000
MAX_PATTERNS = 4_096
PLAIN_PATTERN = re.compile(r"\^?(?:[A-Za-z0-9_-]|\\?\.)+")
UNSUPPORTED = {
    "use_dora": "DoRA",
    "fan_in_fan_out": "fan_in_fan_out",
    "lora_bias": "lora_bias",
    "modules_to_save": "modules_to_save",
    "trainable_token_indices": "trainable_token_indices",
    "layer_replication": "layer_replication",
    "target_parameters": "target_parameters",
    "alora_invocation_tokens": "Activated LoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
}  # each changes more than the weights of linear modules, or changes them otherwise
PLAIN_INITS = frozenset(
    {"gaussian", "eva", "orthogonal", "mica", "lora_ga"}
)  # leave the base as it is
AS_PLAIN_LORA = "Merge the adapter into its base with `merge_and_unload()`, and submit the result."


@dataclass(frozen=True)
class LoraModule:
    """``module``'s weight in the base becomes weight + scale · B A; ``a`` and ``b`` name the adapter's tensors."""

    module: str
    a: str
    b: str
    scale: float
    rank: int


@dataclass(frozen=True)
class CheckedAdapter:
    """``small_files`` are those that the adapter's repo has in place of the base's."""

    weight_file: str
    small_files: tuple[str, ...]
    modules: tuple[LoraModule, ...]
    weight_bytes: int


def is_adapter(snapshot: RepoSnapshot) -> bool:
    """Return whether the repo has an adapter_config.json and no full model. Trainers leave a config.json beside adapters."""
    has_model = snapshot.file("config.json") and (
        snapshot.file(WEIGHTS_NAME) or snapshot.file(INDEX_NAME)
    )
    return snapshot.file(CONFIG_NAME) is not None and not has_model


async def read_adapter_config(hub: Hub, snapshot: RepoSnapshot) -> AdapterConfig:
    return parse_adapter_config(await read_json(hub, snapshot, CONFIG_NAME))


async def resolve_base(
    hub: Hub, snapshot: RepoSnapshot, base_commit: str | None = None
) -> RepoSnapshot | None:
    """Return an adapter's base, at the pinned commit if there is one; None for a model of its own."""
    if not is_adapter(snapshot):
        return None
    config = await read_adapter_config(hub, snapshot)
    base = await hub.resolve(config.base_repo, base_commit or config.base_revision)
    if is_adapter(base):
        raise UnsupportedAdapter(
            f"The adapter's base {base.repo} is itself an adapter.", hint=AS_PLAIN_LORA
        )
    return base


async def read_modules(
    hub: Hub, snapshot: RepoSnapshot, base_tensors: Iterable[TensorInfo]
) -> tuple[tuple[LoraModule, ...], int]:
    """Read the adapter's modules in the order of their names, and the bytes of their tensors. Each can be merged into the base."""
    _require_weights(snapshot)
    config = await read_adapter_config(hub, snapshot)
    ((_, tensors),) = await read_tensors(hub, snapshot, WeightFiles((WEIGHT_FILE,)))
    pairs = _pairs(tensors)
    if len(pairs) * config.pattern_count > MAX_MATCHES:
        raise UnsupportedAdapter(
            f"rank_pattern and alpha_pattern have {config.pattern_count:,} entries for {len(pairs):,} modules, which is too many."
        )
    base = {info.name: info for info in base_tensors}
    modules = tuple(
        _module(config, module, pairs[module], base.get(f"{module}.weight"))
        for module in sorted(pairs)
    )
    return modules, sum(info.end - info.start for info in tensors)


def _require_weights(snapshot: RepoSnapshot) -> None:
    if snapshot.file(WEIGHT_FILE) is not None:
        return
    if snapshot.file(PICKLE_NAME):
        raise PickleWeights(
            f"The adapter's weights are not safetensors ({PICKLE_NAME}), and other formats are never opened.",
            hint="Load the adapter with PEFT, `save_pretrained(...)`, then push.",
        )
    raise MissingFile(f"The adapter has no {WEIGHT_FILE}.", hint="Push the adapter's weights.")


def _pairs(tensors: Iterable[TensorInfo]) -> dict[str, dict[str, TensorInfo]]:
    """Return a and B of each module."""
    pairs: dict[str, dict[str, TensorInfo]] = {}
    for info in tensors:
        match = LORA_KEY.fullmatch(info.name)
        if match is None:
            raise UnsupportedAdapter(
                f"The adapter has the tensor {info.name[:120]!r}, which is not of a LoRA on a linear module.",
                hint=AS_PLAIN_LORA,
            )
        pair = pairs.setdefault(match[1], {})
        if match[2] in pair:
            raise CorruptWeights(f"The adapter has lora_{match[2]} of {match[1][:120]!r} twice.")
        pair[match[2]] = info
    if not pairs:
        raise CorruptWeights(f"{WEIGHT_FILE} has no tensors.")
    return pairs


def _module(
    config: AdapterConfig, module: str, pair: dict[str, TensorInfo], base: TensorInfo | None
) -> LoraModule:
    shown = repr(module[:120])
    if len(pair) != 2:
        raise CorruptWeights(f"The adapter has only lora_{'A' if 'A' in pair else 'B'} of {shown}.")
    if module.rpartition(".")[2] in EMBEDDINGS:
        raise UnsupportedAdapter(
            f"The adapter changes the embedding {shown}, which cannot be served.",
            hint=AS_PLAIN_LORA,
        )
    if base is None:
        raise UnsupportedAdapter(
            f"The adapter changes {shown}, of which the base has no weight.", hint=AS_PLAIN_LORA
        )
    for info in (pair["A"], pair["B"], base):
        if info.dtype not in FLOAT_DTYPES:
            raise UnsupportedAdapter(
                f"The tensor {info.name[:120]!r} is {info.dtype}; adapter and base must be F16, BF16 or F32.",
                hint="Name the base that is not quantized as base_model_name_or_path.",
            )
    _require_shapes(config.rank_of(module), pair["A"], pair["B"], base)
    rank, scale = config.rank_of(module), config.scale_of(module)
    return LoraModule(module, pair["A"].name, pair["B"].name, scale, rank)


def _require_shapes(rank: int, a: TensorInfo, b: TensorInfo, base: TensorInfo) -> None:
    if len(base.shape) != 2:
        raise UnsupportedAdapter(f"The base's {base.name[:120]!r} is not a matrix.")
    rows, columns = base.shape
    for info, wanted in ((a, (rank, columns)), (b, (rows, rank))):
        if info.shape != wanted:
            raise CorruptWeights(
                f"The adapter's {info.name[:120]!r} has the shape {list(info.shape)}; its rank and its base want {list(wanted)}.",
                hint="Push the weights and the adapter_config.json of the same training, with its own base.",
            )


@dataclass(frozen=True)
class AdapterConfig:
    """``rank_pattern`` and ``alpha_pattern`` are (pattern, value) in the file's order."""

    base_repo: str
    base_revision: str | None
    r: int
    alpha: float
    is_rslora: bool
    rank_pattern: tuple[tuple[str, int], ...]
    alpha_pattern: tuple[tuple[str, float], ...]
    target_modules: tuple[str, ...]

    @property
    def pattern_count(self) -> int:
        return len(self.rank_pattern) + len(self.alpha_pattern)

    def rank_of(self, module: str) -> int:
        return next((r for key, r in self.rank_pattern if _matches(key, module)), self.r)

    def scale_of(self, module: str) -> float:
        alpha = next((a for key, a in self.alpha_pattern if _matches(key, module)), self.alpha)
        r = self.rank_of(module)
        return alpha / math.sqrt(r) if self.is_rslora else alpha / r


def parse_adapter_config(content: dict[str, Any]) -> AdapterConfig:
    """Parse the file's JSON object. Raise UnsupportedAdapter or CorruptConfig."""
    _require_plain_lora(content)
    return AdapterConfig(
        base_repo=_base_repo(content.get("base_model_name_or_path")),
        base_revision=_base_revision(content.get("revision")),
        r=_rank("r", content.get("r", DEFAULT_R)),
        alpha=_alpha("lora_alpha", content.get("lora_alpha", DEFAULT_ALPHA)),
        is_rslora=bool(content.get("use_rslora")),
        rank_pattern=tuple((k, _rank(k, v)) for k, v in _patterns(content, "rank_pattern")),
        alpha_pattern=tuple((k, _alpha(k, v)) for k, v in _patterns(content, "alpha_pattern")),
        target_modules=_target_modules(content.get("target_modules")),
    )


def _require_plain_lora(content: dict[str, Any]) -> None:
    kind = content.get("peft_type")
    if kind != "LORA":
        raise UnsupportedAdapter(
            f"The adapter's peft_type is {str(kind)[:40]!r}; only LORA can be served.",
            hint=AS_PLAIN_LORA,
        )
    if content.get("bias", "none") != "none":
        raise UnsupportedAdapter(
            "The adapter trains biases (bias is not none), which cannot be served.",
            hint=AS_PLAIN_LORA,
        )
    for field, name in UNSUPPORTED.items():
        if content.get(field):
            raise UnsupportedAdapter(
                f"The adapter uses {name}, which cannot be served.", hint=AS_PLAIN_LORA
            )
    init = content.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower() not in PLAIN_INITS:
        raise UnsupportedAdapter(
            f"The adapter was begun with init_lora_weights {init[:40]!r}, which changes the base's own weights.",
            hint=AS_PLAIN_LORA,
        )


def _base_repo(name: Any) -> str:
    try:
        return TypeAdapter(Repo).validate_python(name)
    except ValidationError:
        raise UnsupportedAdapter(
            f"base_model_name_or_path in {CONFIG_NAME} is {str(name)[:80]!r}, which is no repo of the Hub.",
            hint="Name the base as org/name, as on the Hub, and push the adapter again.",
        ) from None


def _base_revision(revision: Any) -> str | None:
    try:
        return TypeAdapter(Revision | None).validate_python(revision or None)
    except ValidationError:
        raise CorruptConfig(
            f"revision in {CONFIG_NAME} is {str(revision)[:80]!r}, which is no branch, tag or commit."
        ) from None


def _rank(name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_RANK:
        raise CorruptConfig(
            f"The rank {name[:80]!r} in {CONFIG_NAME} must be a whole number from 1 to {MAX_RANK:,}."
        )
    return value


def _alpha(name: str, value: Any) -> float:
    is_number = type(value) is int or type(value) is float
    if not is_number or not abs(value) <= MAX_ALPHA:  # nan is not
        raise CorruptConfig(
            f"The alpha {name[:80]!r} in {CONFIG_NAME} must be a number of at most {MAX_ALPHA:,}."
        )
    return float(value)


def _patterns(content: dict[str, Any], field: str) -> list[tuple[str, Any]]:
    patterns = content.get(field) or {}
    if not isinstance(patterns, dict) or len(patterns) > MAX_PATTERNS:
        raise CorruptConfig(
            f"{field} in {CONFIG_NAME} must be an object of at most {MAX_PATTERNS:,} names."
        )
    for pattern in patterns:
        if not PLAIN_PATTERN.fullmatch(pattern) or len(pattern) > 1_024:
            raise UnsupportedAdapter(
                f"{field} in {CONFIG_NAME} has the key {pattern[:80]!r}; only module names are allowed there.",
                hint="Write one entry for each module, by its full name.",
            )
    return list(patterns.items())


def _target_modules(targets: Any) -> tuple[str, ...]:
    """Read the target modules, for people only: the tensors tell which modules are changed."""
    if targets is None or isinstance(targets, str):
        return (targets,) if targets else ()
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise CorruptConfig(f"target_modules in {CONFIG_NAME} must be names.")
    return tuple(targets)


def _matches(pattern: str, module: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", module) is not None
