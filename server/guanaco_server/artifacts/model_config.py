"""What config.json and tokenizer_config.json say of a model."""

from __future__ import annotations

from typing import Any

from guanaco.errors import CorruptConfig, RemoteCode, UnsupportedArchitecture
from guanaco.submissions import SubmissionKind
from guanaco_server.artifacts.architectures import KNOWN_ARCHITECTURES, REWARD_ARCHITECTURES
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.artifacts.repo_json import read_json


async def check_no_code(hub: Hub, snapshot: RepoSnapshot) -> None:
    """RemoteCode where a config of the repo names code of its own."""
    for name in ("config.json", "tokenizer_config.json"):
        if snapshot.file(name) and "auto_map" in await read_json(hub, snapshot, name):
            raise RemoteCode(
                f"{name} has an auto_map: the model needs the repo's own code, which is never run.",
                hint="Submit a model of an architecture that vLLM knows, without auto_map.",
            )


def architecture_of(config: dict[str, Any], kind: SubmissionKind = SubmissionKind.CHAT) -> str:
    """One that a model of this kind may have; UnsupportedArchitecture otherwise."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise CorruptConfig("config.json must name one architecture under `architectures`.")
    architecture = str(architectures[0])
    if kind is SubmissionKind.REWARD:
        _check_reward(architecture)
    elif architecture not in KNOWN_ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"The architecture {architecture[:80]!r} is not one that can be served.",
            hint="A reward model is submitted with --kind reward."
            if architecture in REWARD_ARCHITECTURES
            else "Text-generation models that vLLM has built in are: Llama, Mistral, Qwen, Gemma, Phi and others.",
        )
    return architecture


def _check_reward(architecture: str) -> None:
    if architecture not in REWARD_ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"The architecture {architecture[:80]!r} is not one that a reward model can have.",
            hint="A chat model is submitted with --kind chat."
            if architecture in KNOWN_ARCHITECTURES
            else "Reward models are sequence classifiers: LlamaForSequenceClassification, and those of Qwen, GPT2, Mistral, Gemma and others.",
        )


def max_positions_of(config: dict[str, Any]) -> int | None:
    positions = config.get("max_position_embeddings", config.get("n_positions"))
    return positions if type(positions) is int and positions > 0 else None  # true is no number
