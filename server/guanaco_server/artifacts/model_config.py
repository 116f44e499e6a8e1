"""What config.json and tokenizer_config.json say of a model."""

from __future__ import annotations

from typing import Any

from guanaco.errors import CorruptConfig, RemoteCode, UnsupportedArchitecture
from guanaco_server.artifacts.architectures import KNOWN_ARCHITECTURES
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


def architecture_of(config: dict[str, Any]) -> str:
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise CorruptConfig("config.json must name one architecture under `architectures`.")
    architecture = str(architectures[0])
    if architecture not in KNOWN_ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"The architecture {architecture[:80]!r} is not one that can be served.",
            hint="Text-generation models that vLLM has built in are: Llama, Mistral, Qwen, Gemma, Phi and others.",
        )
    return architecture


def max_positions_of(config: dict[str, Any]) -> int | None:
    positions = config.get("max_position_embeddings", config.get("n_positions"))
    return positions if type(positions) is int and positions > 0 else None  # true is no number
