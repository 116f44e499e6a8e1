"""The shape of a model, read from its config.json: layers, bytes a weight, and how many weights.

Only families whose layers this file knows are read: a guess would start a server on GPUs that cannot hold it.
CorruptConfig names a number that is missing or impossible. The number of weights follows from the shape:

    attention   hidden·(heads + 2·kv heads)·head dim + heads·head dim·hidden
    MLA         DeepSeek-V2 (arXiv 2405.04434), section 2.1: queries and keys through low ranks
    MLP         3·hidden·intermediate: gate, up and down
    mixture     that for each expert, and hidden·experts for the router
    vocabulary  vocab·hidden, twice unless tied

Norms and biases are left out: under 0.1 % of any of these models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from guanaco.errors import CorruptConfig, UnsupportedArchitecture
from guanaco.submissions import Quantization

GATED = frozenset(  # attention of one kind, and an MLP of gate, up and down, in every layer
    {
        "llama", "mistral", "ministral3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma3_text", "phi3",
    }
)  # fmt: skip
MIXTURES = frozenset({"mixtral", "phimoe", "qwen2_moe", "qwen3_moe"})
LATENT = frozenset({"deepseek_v2", "deepseek_v3"})  # multi-head latent attention, MLA
SLIDING_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6}  # every so-many-th layer sees all
TIED_BY_DEFAULT = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text"})


@dataclass(frozen=True)
class Latent:
    """MLA: one latent vector and one rotary key a token, in place of keys and values by head."""

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int | None


@dataclass(frozen=True)
class Experts:
    """The experts of the ``layers`` that are mixtures. ``shared_intermediate`` is the width of the experts that every token uses."""

    total: int
    active: int
    intermediate: int
    layers: int
    shared_intermediate: int = 0


@dataclass(frozen=True)
class ModelShape:
    """A decoder. ``intermediate`` is of layers that are no mixture; ``sliding_layers`` see ``window`` tokens only."""

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    is_tied: bool
    max_positions: int
    weights: WeightFormat
    experts: Experts | None = None
    latent: Latent | None = None
    window: int | None = None
    sliding_layers: int = 0

    @property
    def dense_layers(self) -> int:
        return self.layers - (self.experts.layers if self.experts else 0)


def read_shape(config: Config) -> ModelShape:
    """UnsupportedArchitecture for a family that is not known here, CorruptConfig for one that lacks a number."""
    text = text_config(config)
    model_type = str(text.get("model_type"))
    if model_type not in GATED | MIXTURES | LATENT:
        raise UnsupportedArchitecture(
            f"The memory of a model of type {model_type[:40]!r} cannot be worked out.",
            hint="An admin names GPUs for it with `guanaco recipe ID --gpu TYPE --gpus COUNT`.",
        )
    layers, hidden = count(text, "num_hidden_layers"), count(text, "hidden_size")
    heads = count(text, "num_attention_heads")
    kv_heads = optional_count(text, "num_key_value_heads") or heads
    if heads % kv_heads:
        raise CorruptConfig(
            f"config.json has {heads} heads, which {kv_heads} KV heads cannot share."
        )
    window, sliding = _sliding(text, model_type, layers)
    return ModelShape(
        model_type=model_type,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=optional_count(text, "head_dim") or max(1, hidden // heads),
        intermediate=count(text, "intermediate_size"),
        vocab=count(text, "vocab_size"),
        is_tied=text.get("tie_word_embeddings", model_type in TIED_BY_DEFAULT) is True,
        max_positions=count(text, "max_position_embeddings"),
        weights=weight_format(text),
        experts=_experts(text, model_type, layers),
        latent=_latent(text) if model_type in LATENT else None,
        window=window,
        sliding_layers=sliding,
    )


def _latent(text: Config) -> Latent:
    return Latent(
        kv_rank=count(text, "kv_lora_rank"),
        rope_dim=count(text, "qk_rope_head_dim"),
        nope_dim=count(text, "qk_nope_head_dim"),
        value_dim=count(text, "v_head_dim"),
        query_rank=optional_count(text, "q_lora_rank"),
    )


def _experts(text: Config, model_type: str, layers: int) -> Experts | None:
    if model_type in GATED:
        return None
    intermediate = count(text, "moe_intermediate_size", "intermediate_size")
    total = count(text, "num_experts", "num_local_experts", "n_routed_experts")
    active = count(text, "num_experts_per_tok")
    if active > total:
        raise CorruptConfig(f"config.json has {active} active experts out of {total}.")
    shared = number(text, "n_shared_experts") * intermediate
    return Experts(
        total=total,
        active=active,
        intermediate=intermediate,
        layers=_mixture_layers(text, layers),
        shared_intermediate=shared or number(text, "shared_expert_intermediate_size"),
    )


def _mixture_layers(text: Config, layers: int) -> int:
    """DeepSeek's first layers are dense; Qwen's may be every so-many-th, but for those that are listed."""
    first_dense = number(text, "first_k_dense_replace")
    step = number(text, "decoder_sparse_step", 1) or 1
    listed = text.get("mlp_only_layers") or []
    dense = set(listed) if isinstance(listed, list) else set()
    return sum(
        layer >= first_dense and (layer + 1) % step == 0 and layer not in dense
        for layer in range(layers)
    )


def _sliding(text: Config, model_type: str, layers: int) -> tuple[int | None, int]:
    """Return the window, and how many layers have it."""
    window = optional_count(text, "sliding_window")
    if window is None or text.get("use_sliding_window") is False:
        return None, 0
    kinds = text.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return window, sum(kind == "sliding_attention" for kind in kinds)
    if model_type.startswith(("qwen", "deepseek")):
        first = number(text, "max_window_layers", layers)
        return window, max(0, layers - first)
    every = number(text, "sliding_window_pattern") or SLIDING_EVERY.get(model_type)
    return window, layers - layers // every if every else layers


@dataclass(frozen=True)
class Parameters:
    """``vocabulary`` and ``router`` stay unquantized; ``experts`` can be spread over GPUs whole."""

    attention: int
    dense: int
    experts: int
    router: int
    vocabulary: int

    @property
    def total(self) -> int:
        return self.attention + self.dense + self.experts + self.router + self.vocabulary


def count_parameters(shape: ModelShape) -> Parameters:
    experts = shape.experts
    mlp = 3 * shape.hidden
    shared = mlp * experts.shared_intermediate * experts.layers if experts else 0
    return Parameters(
        attention=shape.layers * _attention(shape),
        dense=shape.dense_layers * mlp * shape.intermediate + shared,
        experts=experts.layers * experts.total * mlp * experts.intermediate if experts else 0,
        router=experts.layers * shape.hidden * experts.total if experts else 0,
        vocabulary=shape.vocab * shape.hidden * (1 if shape.is_tied else 2),
    )


def active_parameters(shape: ModelShape) -> int:
    """Return the weights that a token is multiplied with: of the experts the active ones, of the vocabulary the output half."""
    parameters, experts = count_parameters(shape), shape.experts
    routed = parameters.experts * experts.active // experts.total if experts else 0
    output = shape.vocab * shape.hidden
    return parameters.attention + parameters.dense + parameters.router + routed + output


def _attention(shape: ModelShape) -> int:
    if shape.latent is not None:
        return _latent_attention(shape, shape.latent)
    queries = shape.heads * shape.head_dim
    keys_and_values = 2 * shape.kv_heads * shape.head_dim
    return shape.hidden * (queries + keys_and_values) + queries * shape.hidden


def _latent_attention(shape: ModelShape, latent: Latent) -> int:
    query_dim = shape.heads * (latent.nope_dim + latent.rope_dim)
    if latent.query_rank is None:
        queries = shape.hidden * query_dim
    else:
        queries = shape.hidden * latent.query_rank + latent.query_rank * query_dim
    down = shape.hidden * (latent.kv_rank + latent.rope_dim)
    up = latent.kv_rank * shape.heads * (latent.nope_dim + latent.value_dim)
    return queries + down + up + shape.heads * latent.value_dim * shape.hidden


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
        """Return the format after vLLM has quantized it while loading: fp8 everywhere, int8 in a mixture's experts alone."""
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


MAX_NUMBER = 10**9  # no count in a config is larger; keeps products of them sane

Config = dict[str, Any]


def text_config(config: Config) -> Config:
    """Return the part that describes the language model: of a model that also sees, it is nested."""
    nested = config.get("text_config")
    if not isinstance(nested, dict):
        return config
    outer: Config = {
        k: config[k] for k in ("quantization_config", "torch_dtype", "dtype") if k in config
    }
    return outer | nested


def count(config: Config, *names: str) -> int:
    """Return the first of these numbers that is there: positive and whole."""
    found = optional_count(config, *names)
    if found is None:
        raise CorruptConfig(
            f"config.json does not say {names[0]}, without which nobody can plan where the model runs."
        )
    return found


def optional_count(config: Config, *names: str) -> int | None:
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if type(value) is not int or not 0 < value <= MAX_NUMBER:
            raise CorruptConfig(f"config.json has an impossible {name}: {str(value)[:40]}.")
        return value
    return None


def number(config: Config, name: str, default: int = 0) -> int:
    """Return a whole number from 0, else the default."""
    value = config.get(name)
    if value is None:
        return default
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise CorruptConfig(f"config.json has an impossible {name}: {str(value)[:40]}.")
    return value
