"""Compares the two versions of a canary: failed replies, slow ones, and thumbs down.

Only conversations that began since the canary did count, of both versions, for they alone were given to one of them by
chance. A conversation counts once and so does a user, since replies of one conversation are alike:

    failed         conversations with a reply at which a model server of the version failed
    slow           conversations whose first reply's first token took longer than nine in ten of the old version's
                   first ``LEARNT_FROM``
    thumbs down    users by their first rating of such a conversation

Each is tested by itself, always valid (statistics/sequential.py): of the bad ones, no more than the canary's share may be the new
version's. The three tests share ``ALPHA``. A version that is as good is stopped with a chance of at most that, however
long it runs, and however conversations differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from guanaco.errors import CanaryWorse
from guanaco_server.database.database import Database
from guanaco_server.deployments.versions import Arm
from guanaco_server.statistics.buckets import bucket_of
from guanaco_server.statistics.sequential import Proportion, is_worse
from guanaco_server.submissions.rollouts import queries

ALPHA = 0.05
FAILED_MARGIN = 0.01  # a share of this much more is no reason to stop
SLOW_MARGIN = 0.1
DOWN_MARGIN = 0.05

LEARNT_FROM = 50  # conversations of the old version say what is slow; they are not compared
SLOW_SHARE = 0.1


@dataclass(frozen=True)
class VersionOutcomes:
    """The conversations of one version, counted. ``slow`` is None until it is known what is slow."""

    failed: Proportion
    slow: Proportion | None


@dataclass(frozen=True)
class ConversationOutcome:
    """The outcomes of one conversation. ``first_bucket`` is its first reply's wait (statistics/buckets.py), None without a reply."""

    has_failed: bool = False
    first_bucket: int | None = None

    def followed_by(self, later: ConversationOutcome) -> ConversationOutcome:
        first = later.first_bucket if self.first_bucket is None else self.first_bucket
        return ConversationOutcome(self.has_failed or later.has_failed, first)


@dataclass(frozen=True)
class ComparedConversation:
    """A conversation of one of a canary's versions; the gateway notes here how its replies end."""

    arm: Arm
    id: str
    recorder: CanaryRecorder

    def note_reply(self, wait_s: float) -> None:
        self.recorder.note(self, ConversationOutcome(first_bucket=bucket_of(wait_s)))

    def note_fault(self) -> None:
        self.recorder.note(self, ConversationOutcome(has_failed=True))


def slow_from(waits: Sequence[int]) -> int | None:
    """Return the first bucket that counts as slow; None until the old version has shown enough."""
    total = sum(waits)
    if total < LEARNT_FROM:
        return None
    slower = 0
    for place in range(len(waits) - 1, -1, -1):
        slower += waits[place]
        if slower > SLOW_SHARE * total:
            return place + 1
    return 0


def judge(
    new: VersionOutcomes,
    old: VersionOutcomes,
    new_down: Proportion,
    old_down: Proportion,
    *,
    share: float,
) -> CanaryWorse | None:
    """Return why the new version is worse, with its figures; None as long as it may be as good."""
    compared = [
        ("conversations", "had a failed reply", new.failed, old.failed, FAILED_MARGIN),
        ("users", "gave a thumbs down", new_down, old_down, DOWN_MARGIN),
    ]
    if new.slow is not None and old.slow is not None:
        compared.append(("conversations", "began slowly", new.slow, old.slow, SLOW_MARGIN))
    for what, how, ours, theirs, margin in compared:
        if is_worse(ours, theirs, share=share, margin=margin, alpha=ALPHA / 3):
            return CanaryWorse(
                f"The canary is worse: {ours.bad} of its {ours.total} {what} {how} ({ours.rate:.0%}), "
                f"and {theirs.bad} of {theirs.total} of the version that serves ({theirs.rate:.0%}).",
                hint="`guanaco logs ID` shows what its model server said; `guanaco redeploy` tries again.",
            )
    return None


class CanaryRecorder:
    """Keeps in memory what the conversations of canaries show; written down once a second at most."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._noted: dict[tuple[Arm, str], ConversationOutcome] = {}

    def conversation(self, arm: Arm, conversation_id: str) -> ComparedConversation:
        return ComparedConversation(arm, conversation_id, self)

    def note(self, talk: ComparedConversation, noted: ConversationOutcome) -> None:
        key = (talk.arm, talk.id)
        self._noted[key] = self._noted.get(key, ConversationOutcome()).followed_by(noted)

    async def write(self) -> None:
        """Write down what was noted since the last call; what cannot be written now is tried again."""
        if not self._noted:
            return
        written, self._noted = self._noted, {}
        shown = [
            {
                "submission_id": arm.submission_id,
                "run": arm.run,
                "conversation_id": conversation_id,
                "is_new": arm.is_new,
                "has_failed": noted.has_failed,
                "first_bucket": noted.first_bucket,
            }
            for (arm, conversation_id), noted in written.items()
        ]
        try:
            await self._database.write_unit(lambda session: queries.add_shown(session, shown))
        except BaseException:
            for key, later in self._noted.items():
                written[key] = written.get(key, ConversationOutcome()).followed_by(later)
            self._noted = written
            raise
