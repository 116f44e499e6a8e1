"""Compares the two versions of a canary: failed replies, slow ones, and thumbs down.

Only conversations that began since the canary did count, of both versions, for they alone were given to one of them by
chance. Each figure is a share of bad outcomes, and each is tested by itself, always valid (statistics/sequential.py):

    failed         replies at which a model server of the version failed
    slow           replies whose first token took longer than nine in ten of the old version's first ``LEARNT_FROM``
    thumbs down    of the ratings

The three tests share ``ALPHA``. A version that is as good is stopped with a chance of at most that, however long it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from guanaco.errors import CanaryWorse
from guanaco_server.database.database import Database
from guanaco_server.deployments.versions import Arm
from guanaco_server.statistics.buckets import added, bucket_of
from guanaco_server.statistics.sequential import Proportion, is_worse
from guanaco_server.submissions.rollouts import queries

ALPHA = 0.05
FAILED_MARGIN = 0.01  # a share of this much more is no reason to stop
SLOW_MARGIN = 0.1
DOWN_MARGIN = 0.05

LEARNT_FROM = 50  # replies of the old version say what is slow; they are not compared
SLOW_SHARE = 0.1


@dataclass
class Shown:
    """The replies of one version, counted. ``waits`` counts first tokens by bucket."""

    replies: int = 0
    faults: int = 0
    waits: list[int] = field(default_factory=list)

    @property
    def failed(self) -> Proportion:
        return Proportion(self.faults, self.replies + self.faults)

    def slow(self, slow_from: int) -> Proportion:
        return Proportion(sum(self.waits[slow_from:]), sum(self.waits))

    def note_reply(self, wait_s: float) -> None:
        self.replies += 1
        place = bucket_of(wait_s)
        self.waits.extend([0] * (place + 1 - len(self.waits)))
        self.waits[place] += 1

    def note_fault(self) -> None:
        self.faults += 1

    def take(self) -> Shown | None:
        """Return what was counted since the last call, and begin at zero; None if nothing was."""
        if not self.replies and not self.faults:
            return None
        taken = Shown(self.replies, self.faults, self.waits)
        self.replies, self.faults, self.waits = 0, 0, []
        return taken


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
    new: Shown,
    old: Shown,
    slow_bucket: int | None,
    new_down: Proportion,
    old_down: Proportion,
) -> CanaryWorse | None:
    """Return why the new version is worse, with its figures; None as long as it may be as good."""
    compared = [
        ("replies", "failed", new.failed, old.failed, FAILED_MARGIN),
        ("ratings", "were thumbs down", new_down, old_down, DOWN_MARGIN),
    ]
    if slow_bucket is not None:
        slow = (new.slow(slow_bucket), old.slow(slow_bucket))
        compared.append(("replies", "were slow", *slow, SLOW_MARGIN))
    for what, how, ours, theirs, margin in compared:
        if is_worse(ours, theirs, margin=margin, alpha=ALPHA / 3):
            return CanaryWorse(
                f"The canary is worse: {ours.bad} of its {ours.total} {what} {how} ({ours.rate:.0%}), "
                f"and {theirs.bad} of {theirs.total} of the version that serves ({theirs.rate:.0%}).",
                hint="`guanaco logs ID` shows what its model server said; `guanaco redeploy` tries again.",
            )
    return None


class CanaryRecorder:
    """Counts in memory what the versions of canaries show; written down once a second at most."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._shown: dict[Arm, Shown] = {}

    def of(self, arm: Arm) -> Shown:
        """Return what counts for a version. A reply notes its outcome there when it ends, whatever was written meanwhile."""
        return self._shown.setdefault(arm, Shown())

    async def write(self) -> None:
        """Write down what was counted since the last call; what cannot be written now is tried again."""
        noted = {arm: taken for arm, shown in self._shown.items() if (taken := shown.take())}
        if not noted:
            return
        try:
            async with self._database.write() as session:
                for arm in sorted(noted, key=lambda arm: (arm.submission_id, arm.run, arm.is_new)):
                    shown = noted[arm]
                    await queries.add_shown(session, arm, shown.replies, shown.faults, shown.waits)
        except BaseException:
            for arm, shown in noted.items():
                _add(shown, self._shown[arm])
            raise


def _add(shown: Shown, to: Shown) -> None:
    to.replies += shown.replies
    to.faults += shown.faults
    to.waits = added(to.waits, shown.waits)
