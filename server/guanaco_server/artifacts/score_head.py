"""Whether a reward model has a head that gives one score for a text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from guanaco.errors import CorruptConfig, CorruptWeights
from guanaco_server.formats.safetensors_header import TensorInfo

HEAD = "score.weight"  # the name in every architecture of REWARD_ARCHITECTURES
TRANSFORMERS_LABELS = 2  # where a config does not say
ONE_OF_SEVERAL = (None, "single_label_classification")


def check_score_head(config: dict[str, Any], tensors: Iterable[TensorInfo]) -> None:
    """CorruptWeights without a head, CorruptConfig where its labels make no score."""
    head = next((info for info in tensors if info.name == HEAD), None)
    if head is None or len(head.shape) != 2:
        raise CorruptWeights(
            f"The weights have no {HEAD}: this is no classifier that was trained.",
            hint="Save it from the class that it was trained as, such as AutoModelForSequenceClassification.",
        )
    labels = _label_count(config)
    if labels != head.shape[0]:
        raise CorruptConfig(
            f"config.json has {labels} labels, and {HEAD} has {head.shape[0]} rows.",
            hint="Set num_labels (or id2label) to what the model was trained with.",
        )
    if labels > 1 and config.get("problem_type") not in ONE_OF_SEVERAL:
        raise CorruptConfig(
            f"A reward model with {labels} labels must choose one of them; problem_type is {str(config['problem_type'])[:40]!r}.",
            hint="Several labels that are no alternatives make no single score: train a head with one label.",
        )


def _label_count(config: dict[str, Any]) -> int:
    """As transformers and vLLM count them."""
    names = config.get("id2label")
    if isinstance(names, dict):
        return len(names)
    count = config.get("num_labels")
    return count if type(count) is int else TRANSFORMERS_LABELS
