"""What decides how much memory and work a model takes, read from its config.json.

Only families whose layers this file knows are read: a guess would start a server on GPUs that cannot hold it.
"""

from __future__ import annotations

from dataclasses import dataclass

from guanaco.errors import CorruptConfig, UnsupportedArchitecture
from guanaco_server.recipes.config_facts import Config, count, number, optional_count, text_config
from guanaco_server.recipes.weight_format import WeightFormat, weight_format

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
    """Of the ``layers`` that are mixtures; ``shared_intermediate`` is of what every token takes."""

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
    """The window, and how many layers have it."""
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
