"""Reads config.json and tokenizer_config.json: the architecture, its positions, and whether the repo needs its own code.

The known architectures are those that vLLM 0.32 serves with its own code, from its model registry: text generation,
and reward models. A repo's own code is never run, so no other architecture can be served.
"""

from __future__ import annotations

import re
from typing import Any

from guanaco.errors import CorruptConfig, RemoteCode, UnsupportedArchitecture
from guanaco.submissions import SubmissionKind
from guanaco_server.artifacts.checking.repo_json import read_json
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot

CONFIGS = ("config.json", "tokenizer_config.json", "generation_config.json")
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOKENIZER_CLASS = re.compile(r"[A-Z][A-Za-z0-9_]{0,60}(?:Tokenizer|TokenizerFast|Backend)")
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
    """RemoteCode where a config of the repo names code of its own, CorruptConfig where it names another model or an odd class."""
    for name in CONFIGS:
        if not snapshot.file(name):
            continue
        config = await read_json(hub, snapshot, name)
        if _holds(config, "auto_map"):
            raise RemoteCode(
                f"{name} has an auto_map: the model needs the repo's own code, which is never run.",
                hint="Submit a model of an architecture that vLLM knows, without auto_map.",
            )
        if _holds(config, "speculators_config"):
            raise CorruptConfig(
                f"{name} has a speculators_config, which names another model to be served.",
                hint="Submit the model that it speeds up.",
            )
        tokenizer = config.get("tokenizer_class")
        if tokenizer is not None and not _is_tokenizer_class(tokenizer):
            raise CorruptConfig(
                f"tokenizer_class in {name} is {str(tokenizer)[:80]!r}, which is no tokenizer of transformers.",
                hint="Save the tokenizer again with `save_pretrained(...)`.",
            )


def has_experts(config: dict[str, Any]) -> bool:
    """Tell whether the model is a mixture of experts."""
    nested = config.get("text_config")
    texts = [config, nested] if isinstance(nested, dict) else [config]
    return any(
        isinstance(c.get(name), int) and c[name] > 1 for c in texts for name in EXPERT_COUNTS
    )


def _holds(content: Any, key: str) -> bool:
    """Return whether the content has this key at any depth. read_json has limited the depth."""
    if isinstance(content, dict):
        return key in content or any(_holds(value, key) for value in content.values())
    return isinstance(content, list) and any(_holds(value, key) for value in content)


def _is_tokenizer_class(name: Any) -> bool:
    return isinstance(name, str) and TOKENIZER_CLASS.fullmatch(name) is not None


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
