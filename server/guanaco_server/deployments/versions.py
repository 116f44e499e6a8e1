"""Defines the keys of deployments, and which conversations a version beside the serving one takes.

A key is the submission's id, or the id with a run for a version that a redeploy starts beside the serving one:

    org-model_v1      the version that serves
    org-model_v1@3    the version of run 3, beside it: being started, taking some conversations, or finishing its replies

When the new version takes over, the two rows exchange their keys, so the submission's own key always serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b

from pydantic import BaseModel, ConfigDict

from guanaco.recipes import Recipe
from guanaco.submissions import Quantization

MARK = "@"  # no submission id contains it, nor the next one
ARTIFACT_MARK = "#"


def beside(submission_id: str, run: int) -> str:
    """Return the key of the version of this run, beside the serving one."""
    return f"{submission_id}{MARK}{run}"


def is_beside(key: str) -> bool:
    return MARK in key


def submission_of(key: str) -> str:
    return key.partition(MARK)[0]


def is_adapter(artifact_key: str | None, base_key: str | None) -> bool:
    """Return whether the artifact is an adapter on a server that holds its base."""
    return base_key is not None and base_key != artifact_key


def served_model(server_key: str, artifact_key: str | None, base_key: str | None = None) -> str:
    """Return the model name of a request: the engine's name, a #, and the artifact that the engine must hold.

    For an adapter it is the adapter's artifact, a #, and the artifact of its base.
    """
    if is_adapter(artifact_key, base_key):
        return f"{artifact_key}{ARTIFACT_MARK}{base_key}"
    name = submission_of(server_key)
    return f"{name}{ARTIFACT_MARK}{artifact_key}" if artifact_key else name


def run_of(key: str) -> int:
    """Return the run of a version beside, from its key."""
    return int(key.partition(MARK)[2])


@dataclass(frozen=True)
class ConversationStart:
    """A conversation's id, and when it began, in seconds since 1970: the choice of a version depends on these alone."""

    id: str
    began_at: float


class ServedVersion(BaseModel):
    """A version as it is served, with all that a rollback needs to bring it back.

    ``merged_because`` and ``is_promoted`` are what its submission said of it when another version took its place.
    """

    model_config = ConfigDict(frozen=True)

    run: int
    artifact_key: str
    max_model_tokens: int
    quantization: Quantization | None = None
    recipe: Recipe | None = None
    base_key: str | None = None
    merged_because: str | None = None
    is_promoted: bool = False

    @property
    def artifact_keys(self) -> set[str]:
        """The artifacts without which it cannot be served."""
        return {self.artifact_key} | ({self.base_key} if self.base_key else set())


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

    def arm_of(self, start: ConversationStart | None) -> Arm | None:
        """Return the version that this conversation counts for; None if it began earlier, or if nothing is compared."""
        if self.share >= 1 or start is None or start.began_at < self.since.timestamp():
            return None
        return Arm(submission_of(self.key), run_of(self.key), self.takes(start))

    def takes(self, start: ConversationStart | None) -> bool:
        """Return whether this version answers the conversation: the same for all its turns, in every process. False without one."""
        if start is None or start.began_at < self.since.timestamp():
            return False
        digest = blake2b(f"{self.key} {start.id}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) < self.share * 2**64
