"""Decides whether a LoRA adapter is served on its base's model server, or merged into its base (decision 0007).

Whatever a server of adapters could not do as a merged model does is merged. Each reason is a sentence for the developer.
"""

from __future__ import annotations

from dataclasses import dataclass

from guanaco.submissions import Submission, SubmissionKind
from guanaco_server.artifacts.checking.checks import CheckedModel
from guanaco_server.engine.adapters import LORA_MODULES

# Dense models for which vLLM 0.32 adds adapters to each linear layer; test_vllm_internals.py asks vLLM itself.
ARCHITECTURES = frozenset(
    {
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GemmaForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
    }
)
MAX_MODULES = 4_096


@dataclass(frozen=True)
class AdapterPolicy:
    """The way in which this platform serves adapters: merged, unless ``is_wanted``. ``can_add``: its model servers take them while they run.

    ``on_all_bases``: each model server of a model that could have adapters is started so that it takes them.
    """

    is_wanted: bool = False
    max_rank: int = 64
    can_add: bool = False
    on_all_bases: bool = False


def can_have_adapters(policy: AdapterPolicy, submission: Submission) -> bool:
    """Return whether others' adapters could be served on this submission's model server."""
    is_whole = submission.base_repo is None and submission.kind is SubmissionKind.CHAT
    is_known = submission.quantization is None and submission.architecture in ARCHITECTURES
    return policy.is_wanted and policy.can_add and is_whole and is_known


def why_merged(policy: AdapterPolicy, submission: Submission, model: CheckedModel) -> str | None:
    """Return in a sentence why the adapter is merged; None if it is served as it is, on its base's model server."""
    adapter = model.adapter
    assert adapter is not None, "only adapters are merged"
    if submission.is_promoted:
        return "It was promoted."
    if not policy.is_wanted:
        return "This platform merges adapters into their bases."
    if not policy.can_add:
        return "The model servers of this platform's cluster take no adapters while they run."
    if submission.kind is not SubmissionKind.CHAT:
        return "Adapters of reward models are merged."
    if submission.quantization is not None:
        return f"A model that is quantized to {submission.quantization} when it is served has its adapter merged."
    if model.architecture not in ARCHITECTURES:
        return f"The model server cannot add adapters to {model.architecture}."
    if adapter.small_files:
        return "The adapter brings a tokenizer or chat template of its own, and its base's server has the base's."
    return _limits(policy, model)


def merged_after(refusal: str) -> str:
    """Return in a sentence why an adapter is merged that a model server did not take."""
    return f"vLLM did not load the adapter ({refusal.rstrip('.')}); its weights are merged into the base instead."


def _limits(policy: AdapterPolicy, model: CheckedModel) -> str | None:
    assert model.adapter is not None, "only adapters are merged"
    modules = model.adapter.modules
    rank = max(module.rank for module in modules)
    if rank > policy.max_rank:
        return f"Its rank is {rank}; the platform serves adapters up to rank {policy.max_rank} unmerged."
    if len(modules) > MAX_MODULES:
        return f"It changes {len(modules):,} modules; at most {MAX_MODULES:,} are served unmerged."
    for module in modules:
        if module.module.rpartition(".")[2] not in LORA_MODULES:
            return f"It changes {module.module[:120]!r}, which can be served merged only."
    return None
