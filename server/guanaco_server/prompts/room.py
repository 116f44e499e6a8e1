"""Builds the prompts room: templates, tokenizers, and prompts cut to a budget."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.prompts.sample import WithSample
from guanaco_server.prompts.service import PromptService
from guanaco_server.tokenization.service import SmallFiles, Tokenizers


@dataclass(frozen=True)
class PromptsRoom:
    """The service's ``close`` ends the tokenizers' processes too."""

    service: PromptService
    tokenizers: Tokenizers


def build_prompts(store: SmallFiles) -> PromptsRoom:
    files = WithSample(store)
    tokenizers = Tokenizers(files)
    return PromptsRoom(PromptService(files, tokenizers), tokenizers)
