"""Builds the prompts room: templates, tokenizers, and prompts cut to a budget."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.prompts.service import PromptService


@dataclass(frozen=True)
class PromptsRoom:
    service: PromptService


def build_prompts(store: ArtifactStore) -> PromptsRoom:
    return PromptsRoom(PromptService(store))
