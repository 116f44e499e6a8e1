"""LoRA adapters: which modules of the base one changes, from its safetensors header.

    base_model.model.<module>.lora_A.weight    [r, in]      (or lora_A.default.weight)
    base_model.model.<module>.lora_B.weight    [out, r]
    <module>.weight                            [out, in]    in the base

The serializer merges them (docs/decisions/0007-lora-adapters-are-merged.md), so whatever could not be merged
is refused here, before any weights are fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from guanaco.errors import CorruptWeights, MissingFile, PickleWeights, UnsupportedAdapter
from guanaco_server.artifacts.adapter_config import (
    AS_PLAIN_LORA,
    CONFIG_NAME,
    AdapterConfig,
    parse_adapter_config,
)
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.artifacts.repo_json import read_json
from guanaco_server.artifacts.weights import INDEX_NAME, WEIGHTS_NAME, WeightFiles, read_tensors
from guanaco_server.formats.safetensors_header import TensorInfo

WEIGHT_FILE = "adapter_model.safetensors"
PICKLE_NAME = "adapter_model.bin"
LORA_KEY = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
FLOAT_DTYPES = frozenset({"F16", "BF16", "F32"})
EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings")
MAX_MATCHES = 1_000_000  # of patterns with modules: a second of regular expressions


@dataclass(frozen=True)
class LoraModule:
    """``module``'s weight in the base becomes weight + scale · B A."""

    module: str
    a_tensor: TensorInfo
    b_tensor: TensorInfo
    scale: float


@dataclass(frozen=True)
class CheckedAdapter:
    """``small_files`` are those that the adapter's repo has in place of the base's."""

    weight_file: str
    small_files: tuple[str, ...]
    modules: tuple[LoraModule, ...]


def is_adapter(snapshot: RepoSnapshot) -> bool:
    """It has an adapter_config.json, and no full model; trainers leave a config.json beside adapters."""
    has_model = snapshot.file("config.json") and (
        snapshot.file(WEIGHTS_NAME) or snapshot.file(INDEX_NAME)
    )
    return snapshot.file(CONFIG_NAME) is not None and not has_model


async def read_adapter_config(hub: Hub, snapshot: RepoSnapshot) -> AdapterConfig:
    return parse_adapter_config(await read_json(hub, snapshot, CONFIG_NAME))


async def resolve_base(
    hub: Hub, snapshot: RepoSnapshot, base_commit: str | None = None
) -> RepoSnapshot | None:
    """An adapter's base, at the pinned commit if there is one; None for a model of its own."""
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
) -> tuple[LoraModule, ...]:
    """The adapter's modules in the order of their names, each of which can be merged into the base."""
    _require_weights(snapshot)
    config = await read_adapter_config(hub, snapshot)
    ((_, tensors),) = await read_tensors(hub, snapshot, WeightFiles((WEIGHT_FILE,)))
    pairs = _pairs(tensors)
    if len(pairs) * config.pattern_count > MAX_MATCHES:
        raise UnsupportedAdapter(
            f"rank_pattern and alpha_pattern have {config.pattern_count:,} entries for {len(pairs):,} modules, which is too many."
        )
    base = {info.name: info for info in base_tensors}
    return tuple(
        _module(config, module, pairs[module], base.get(f"{module}.weight"))
        for module in sorted(pairs)
    )


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
    """A and B of each module."""
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
    return LoraModule(module, pair["A"], pair["B"], config.scale_of(module))


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
