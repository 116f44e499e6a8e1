"""adapter_config.json of a LoRA adapter: what is merged into the base, and how strongly.

    weight of a module  =  weight of the base  +  scale · B A,   scale = alpha / r   (rsLoRA: alpha / sqrt(r))

``rank_pattern`` and ``alpha_pattern`` override r and alpha of single modules as in PEFT's get_pattern_key
(peft/utils/other.py): the first key that matches `(.*\\.)?(key)$` counts. Keys are regular expressions from
a stranger, so only names, dots and a leading ^ are allowed in them, with which no match takes long.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from guanaco.errors import CorruptConfig, UnsupportedAdapter
from guanaco.forms import Repo, Revision

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
    """From the file's JSON object; UnsupportedAdapter or CorruptConfig."""
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
    """For people only: which modules are changed is told by the tensors."""
    if targets is None or isinstance(targets, str):
        return (targets,) if targets else ()
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise CorruptConfig(f"target_modules in {CONFIG_NAME} must be names.")
    return tuple(targets)


def _matches(pattern: str, module: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", module) is not None
