"""How many weights a model has, and how many of them a token meets.

    attention   hidden·(heads + 2·kv heads)·head dim + heads·head dim·hidden
    MLA         DeepSeek-V2 (arXiv 2405.04434), section 2.1: queries and keys through low ranks
    MLP         3·hidden·intermediate: gate, up and down
    mixture     that for each expert, and hidden·experts for the router
    vocabulary  vocab·hidden, twice unless tied

Norms and biases are left out: under 0.1 % of any of these models.
"""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.recipes.model_shape import Latent, ModelShape


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
    """Those that a token is multiplied with: the active experts, and of the vocabulary the output half."""
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
