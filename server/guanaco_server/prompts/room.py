"""Builds the prompts room: templates, tokenizers, and prompts cut to a budget."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.confinement import confined
from guanaco_server.confinement.confined import StartChild
from guanaco_server.prompts.sample import WithSample
from guanaco_server.prompts.service import PromptService
from guanaco_server.tokenization.service import SmallFiles, Tokenizers


@dataclass(frozen=True)
class PromptsRoom:
    """The service's ``close`` ends the tokenizers' processes too."""

    service: PromptService
    tokenizers: Tokenizers


def build_prompts(store: SmallFiles, start_child: StartChild = confined.start) -> PromptsRoom:
    files = WithSample(store)
    tokenizers = Tokenizers(files, start_child)
    return PromptsRoom(PromptService(files, tokenizers, start_child), tokenizers)
