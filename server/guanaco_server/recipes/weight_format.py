"""How many bytes a checkpoint's weights take each, as its config.json says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from guanaco.errors import CorruptConfig
from guanaco.submissions import Quantization
from guanaco_server.recipes.config_facts import Config, optional_count

SCALE_BYTES = 4  # block-wise fp8 keeps a float32 for each block: DeepSeek-V3 report, section 3.3
GROUP = 128  # GPTQ's and AWQ's usual group: a half-precision scale and a packed zero for each
PACKED_SCALE_BITS = 20  # 16 for the scale, 4 for the zero


@dataclass(frozen=True)
class WeightFormat:
    """``plain_bytes`` of embeddings, norms and routers, ``linear_bytes`` of what is quantized: a weight, scales included.

    ``block`` is the side of fp8's square blocks, which a split over GPUs must not cut.
    """

    plain_bytes: float = 2.0
    linear_bytes: float = 2.0
    is_fp8: bool = False
    block: int | None = None
    own_expert_bytes: float | None = None

    @property
    def is_quantized(self) -> bool:
        return self.linear_bytes < self.plain_bytes

    @property
    def expert_bytes(self) -> float:
        return self.linear_bytes if self.own_expert_bytes is None else self.own_expert_bytes

    def quantized(self, to: Quantization | None) -> WeightFormat:
        """As vLLM makes it while loading: fp8 everywhere, int8 in a mixture's experts alone."""
        if to is None:
            return self
        if to is Quantization.INT8:
            return replace(self, own_expert_bytes=1.0)
        return replace(self, linear_bytes=1.0, is_fp8=True)


def weight_format(config: Config) -> WeightFormat:
    """float32 counts as bfloat16, in which it is served; CorruptConfig for a quantization that is not known."""
    quantization = config.get("quantization_config")
    if quantization is None:
        return WeightFormat()
    if not isinstance(quantization, dict):
        raise CorruptConfig("config.json has a quantization_config that is no object.")
    method = str(quantization.get("quant_method"))
    if method in ("fp8", "fbgemm_fp8"):
        return _fp8(quantization)
    if method in ("gptq", "awq"):
        return _packed(optional_count(quantization, "bits", "w_bit") or 4, quantization)
    if method == "compressed-tensors":
        return _compressed(quantization)
    if method == "bitsandbytes":
        return _packed(4 if quantization.get("load_in_4bit") else 8, quantization)
    raise CorruptConfig(
        f"config.json has the quantization method {method[:40]!r}, whose size nobody here knows.",
        hint="An admin names GPUs for it with `guanaco recipe ID --gpu TYPE --gpus COUNT`.",
    )


def _fp8(quantization: dict[str, Any]) -> WeightFormat:
    sides = quantization.get("weight_block_size")
    if isinstance(sides, list) and len(sides) == 2 and all(type(s) is int and s > 0 for s in sides):
        return WeightFormat(2.0, 1 + SCALE_BYTES / (sides[0] * sides[1]), True, max(sides))
    return WeightFormat(2.0, 1.0, is_fp8=True)


def _packed(bits: int, quantization: dict[str, Any]) -> WeightFormat:
    size = quantization.get("group_size", GROUP)
    group = size if type(size) is int and size > 0 else GROUP
    return WeightFormat(2.0, (bits + PACKED_SCALE_BITS / group) / 8)


def _compressed(quantization: dict[str, Any]) -> WeightFormat:
    groups = quantization.get("config_groups")
    weights = [
        group["weights"]
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict) and isinstance(group.get("weights"), dict)
    ]
    if not weights:
        raise CorruptConfig("config.json has a quantization_config without groups of weights.")
    bits = optional_count(weights[0], "num_bits") or 8
    if bits < 8:
        return _packed(bits, weights[0])
    return WeightFormat(2.0, bits / 8, is_fp8=weights[0].get("type") == "float")
