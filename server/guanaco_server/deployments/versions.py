"""The keys of deployments: a submission's id, or that of a version that a redeploy brings up beside the one that serves.

    org-model_v1      the version that serves
    org-model_v1@3    the version of run 3, beside it: being started, taking some conversations, or finishing its replies

Two rows change places when the new version takes over, so the submission's own key always is what serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b

from pydantic import BaseModel, ConfigDict

from guanaco.recipes import Recipe
from guanaco.submissions import Quantization

MARK = "@"  # in no submission's id
ARTIFACT_MARK = "#"  # nor this


def beside(submission_id: str, run: int) -> str:
    return f"{submission_id}{MARK}{run}"


def is_beside(key: str) -> bool:
    return MARK in key


def submission_of(key: str) -> str:
    return key.partition(MARK)[0]


def is_adapter(artifact_key: str | None, base_key: str | None) -> bool:
    """Return whether the artifact is an adapter on a server that holds its base."""
    return base_key is not None and base_key != artifact_key


def served_model(server_key: str, artifact_key: str | None, base_key: str | None = None) -> str:
    """Return how a request names the model that it expects: by the engine's name and, after a #, by its artifact.

    An adapter has its artifact's key for a name, and after the # stands the artifact that its server holds.
    """
    if is_adapter(artifact_key, base_key):
        return f"{artifact_key}{ARTIFACT_MARK}{base_key}"
    name = submission_of(server_key)
    return f"{name}{ARTIFACT_MARK}{artifact_key}" if artifact_key else name


def run_of(key: str) -> int:
    """The run of a version beside."""
    return int(key.partition(MARK)[2])


@dataclass(frozen=True)
class ConversationStart:
    """The facts on which the choice of a version depends: the conversation's id, and when it began, in seconds since 1970."""

    id: str
    began_at: float


class ServedVersion(BaseModel):
    """A version as it is served, with all that a rollback needs to bring it back."""

    model_config = ConfigDict(frozen=True)

    run: int
    artifact_key: str
    max_model_tokens: int
    quantization: Quantization | None = None
    recipe: Recipe | None = None
    base_key: str | None = None


@dataclass(frozen=True)
class Arm:
    """One of the two versions that a canary compares."""

    submission_id: str
    run: int
    is_new: bool


@dataclass(frozen=True)
class VersionBeside:
    """A version that takes a share of the conversations that begin while it is there; the others stay where they are."""

    key: str
    share: float
    since: datetime

    def arm_of(self, talk: ConversationStart | None) -> Arm | None:
        """The version that this conversation tells of; None for an older one, and where there is nothing to compare."""
        if self.share >= 1 or talk is None or talk.began_at < self.since.timestamp():
            return None
        return Arm(submission_of(self.key), run_of(self.key), self.takes(talk))

    def takes(self, talk: ConversationStart | None) -> bool:
        """The same answer for all of a conversation's turns, in every process. Without a conversation: no."""
        if talk is None or talk.began_at < self.since.timestamp():
            return False
        digest = blake2b(f"{self.key} {talk.id}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) < self.share * 2**64
