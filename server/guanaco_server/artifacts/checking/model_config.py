"""Reads config.json and tokenizer_config.json: the architecture, its positions, and whether the repo needs its own code.

The known architectures are those that vLLM 0.32 serves with its own code, from its model registry: text generation,
and reward models. A repo's own code is never run, so no other architecture can be served.
"""

from __future__ import annotations

from typing import Any

from guanaco.errors import CorruptConfig, RemoteCode, UnsupportedArchitecture
from guanaco.submissions import SubmissionKind
from guanaco_server.artifacts.checking.repo_json import read_json
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot

KNOWN_ARCHITECTURES = frozenset(
    [
        "AXK1ForCausalLM",
        "AfmoeForCausalLM",
        "ApertusForCausalLM",
        "BailingMoeForCausalLM",
        "BailingMoeV2ForCausalLM",
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "BloomForCausalLM",
        "ChatGLMModel",
        "Cohere2ForCausalLM",
        "Cohere2MoeForCausalLM",
        "CohereForCausalLM",
        "DbrxForCausalLM",
        "DeepseekForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV4ForCausalLM",
        "Ernie4_5ForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "Exaone4ForCausalLM",
        "ExaoneForCausalLM",
        "ExaoneMoEForCausalLM",
        "ExaoneMoeForCausalLM",
        "FalconForCausalLM",
        "FalconH1ForCausalLM",
        "FalconMambaForCausalLM",
        "GPT2LMHeadModel",
        "GPTJForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3nForCausalLM",
        "Gemma4ForCausalLM",
        "GemmaForCausalLM",
        "Glm4ForCausalLM",
        "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "Glm5NextForCausalLM",
        "GlmMoeDsaForCausalLM",
        "GptOssForCausalLM",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "GraniteMoeSharedForCausalLM",
        "GraniteSWAForCausalLM",
        "HYV3ForCausalLM",
        "HYV4ForCausalLM",
        "HrmTextForCausalLM",
        "HyperCLOVAXForCausalLM",
        "IQuestCoderForCausalLM",
        "IQuestLoopCoderForCausalLM",
        "InklingForCausalLM",
        "InternLM2ForCausalLM",
        "InternLM3ForCausalLM",
        "JambaForCausalLM",
        "K2HorizonForCausalLM",
        "KimiLinearForCausalLM",
        "LLaMAForCausalLM",
        "LagunaForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Llama4ForCausalLM",
        "LlamaForCausalLM",
        "LongcatFlashForCausalLM",
        "LongcatFlashNgramForCausalLM",
        "Mamba2ForCausalLM",
        "MambaForCausalLM",
        "MiMoForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "MiniCPM3ForCausalLM",
        "MiniCPMForCausalLM",
        "MiniMaxM2ForCausalLM",
        "MiniMaxM3SparseForCausalLM",
        "Ministral3ForCausalLM",
        "MistralForCausalLM",
        "MistralLarge3ForCausalLM",
        "MixtralForCausalLM",
        "MuseGlimmerForCausalLM",
        "NemotronForCausalLM",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "OPTForCausalLM",
        "OlmoHybridForCausalLM",
        "OlmoeForCausalLM",
        "OrionForCausalLM",
        "PanguEmbeddedForCausalLM",
        "PanguProMoEV2ForCausalLM",
        "PanguUltraMoEForCausalLM",
        "Param2MoEForCausalLM",
        "Phi3ForCausalLM",
        "PhiMoEForCausalLM",
        "Plamo3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Qwen4ExpForCausalLM",
        "Rnj1ForCausalLM",
        "SarvamMLAForCausalLM",
        "SarvamMoEForCausalLM",
        "SolarForCausalLM",
        "StableLmForCausalLM",
        "Step1ForCausalLM",
        "Step3TextForCausalLM",
        "Step3p5ForCausalLM",
        "TeleChat2ForCausalLM",
        "TeleChat3ForCausalLM",
        "TeleFLMForCausalLM",
        "Zamba2ForCausalLM",
    ]
)
REWARD_ARCHITECTURES = frozenset(
    [
        "GPT2ForSequenceClassification",
        "GPTJForSequenceClassification",
        "Gemma2ForSequenceClassification",
        "GemmaForSequenceClassification",
        "Glm4ForSequenceClassification",
        "LlamaForSequenceClassification",
        "MistralForSequenceClassification",
        "MixtralForSequenceClassification",
        "NemotronForSequenceClassification",
        "OPTForSequenceClassification",
        "Phi3ForSequenceClassification",
        "Qwen2ForSequenceClassification",
        "Qwen2MoeForSequenceClassification",
        "Qwen3ForSequenceClassification",
        "Qwen3MoeForSequenceClassification",
        "StableLmForSequenceClassification",
    ]
)


async def check_no_code(hub: Hub, snapshot: RepoSnapshot) -> None:
    """RemoteCode where a config of the repo names code of its own."""
    for name in ("config.json", "tokenizer_config.json"):
        if snapshot.file(name) and "auto_map" in await read_json(hub, snapshot, name):
            raise RemoteCode(
                f"{name} has an auto_map: the model needs the repo's own code, which is never run.",
                hint="Submit a model of an architecture that vLLM knows, without auto_map.",
            )


def architecture_of(config: dict[str, Any], kind: SubmissionKind = SubmissionKind.CHAT) -> str:
    """Return the architecture. Raise UnsupportedArchitecture if a model of this kind may not have it."""
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


# Decoders with one linear layer, `score`, over the last token; vLLM makes most of them of its text-generation classes.
# Each was tried: from an artifact it gives the scores that transformers gives.
