"""Promotes LoRA adapters that do well: merges them into their base without being asked, where a setting says after how many votes.

An adapter does well when it has the required number of votes in the competition `open`, and is shown to be better than at least half of the others that have
votes enough, by the test of the verdict, which holds at every look (statistics/decisions.py). All pairs share the error: that an adapter is ever promoted which is not
better than half of the others has a chance of at most 5 %. It is redeployed as `guanaco promote` does it, beside the version that serves. One at a time is begun in each look.

    failed                    begun again after AGAIN_S, unless its developer can mend the cause
    cancelled, rolled back    never begun again: its developer wants it unmerged
    its repo is not public    its Hub token is deleted by then: its log says once that its developer can promote it
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import OPEN
from guanaco.errors import (
    Blame,
    Conflict,
    HubUnreachable,
    InvalidInput,
    NotFound,
    SubmissionFailure,
    TooManySubmissions,
)
from guanaco.submissions import EventKind, Level, RedeployRequest, RolloutPhase
from guanaco_server.accounts.service import AccountService
from guanaco_server.artifacts.hub.hub import Hub
from guanaco_server.database.database import Database
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.confidence_sequences import proportion_sequence, shared_alpha
from guanaco_server.statistics.decisions import evidence
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions import lifecycle
from guanaco_server.submissions.rollouts import queries
from guanaco_server.submissions.rollouts.service import RolloutService
from guanaco_server.submissions.runs.queries import has_event
from guanaco_server.submissions.tables import RolloutRow, SubmissionRow

INTERVAL_S = 60.0
AGAIN_S = 3_600.0
COMPARED_FROM = 20  # votes of another submission, before which its ratio says nothing
PROMOTE = RedeployRequest(promote=True)

ListVotes = Callable[[], Awaitable[Mapping[str, Mapping[str, VoteCount]]]]
"""The votes by competition and submission."""

logger = logging.getLogger(__name__)


class PromotionLoop:
    """Looks once a minute, in the process that leads; ``after`` is how many votes it takes, 0 for never."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        accounts: AccountService,
        rollouts: RolloutService,
        hub: Hub,
        *,
        after: int,
        is_leader: Callable[[], bool],
        list_votes: ListVotes,
    ) -> None:
        self._database = database
        self._clock = clock
        self._accounts = accounts
        self._rollouts = rollouts
        self._hub = hub
        self._after = after
        self._is_leader = is_leader
        self._list_votes = list_votes
        self._closed: dict[str, datetime] = {}
        """Submissions whose repos the Hub did not open, and when it was asked."""
        self._background = Background("promotions")

    async def start(self) -> None:
        if self._after:
            self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def step(self) -> str | None:
        """Begin to promote the best of those that do well; return its id."""
        votes = (await self._list_votes()).get(OPEN, {})
        async with self._database.read() as session:
            adapters = await queries.unmerged_adapters(session)
            earlier = await queries.newest_promotions(session)
        found = [
            (low, row.id, row)
            for row in adapters
            if self._may_begin(earlier.get(row.id))
            and (low := self._lead(row.id, votes)) is not None
        ]
        for _, submission_id, row in sorted(found, key=lambda each: each[:2], reverse=True):
            if not await self._is_open(row):
                continue
            if await self._promote(submission_id, row.developer, votes[submission_id]):
                return submission_id
        return None

    def _may_begin(self, earlier: RolloutRow | None) -> bool:
        if earlier is None:
            return True
        if earlier.phase is not RolloutPhase.FAILED:
            return False
        is_developers = earlier.failure is not None and earlier.failure.blame is Blame.DEVELOPER
        return not is_developers and self._is_past(earlier.ended_at or earlier.began_at)

    def _is_past(self, at: datetime) -> bool:
        return self._clock.now() - at >= timedelta(seconds=AGAIN_S)

    async def _is_open(self, row: SubmissionRow) -> bool:
        """Return whether the Hub opens what is merged to everybody. If not, the submission's log says so, once."""
        asked_at = self._closed.get(row.id)
        if asked_at is not None and not self._is_past(asked_at):
            return False
        hub = self._hub.with_token(None)
        try:
            await hub.resolve(row.repo, row.commit)
            if row.base_repo is not None:
                await hub.resolve(row.base_repo, row.base_commit)
        except HubUnreachable as fault:
            logger.warning("%s is not promoted now: %s", row.id, fault.detail)
            return False
        except SubmissionFailure as closed:
            self._closed[row.id] = self._clock.now()
            message = (
                f"It does well enough to be merged into its base, for which its repo is read again. {closed.detail}"
                f" `guanaco promote {row.id} --hub-token` merges it."
            )
            await self._say(row.id, message, Level.WARNING)
            return False
        self._closed.pop(row.id, None)
        return True

    async def _say(self, submission_id: str, message: str, level: Level = Level.INFO) -> None:
        """Write a line in a submission's log that has not got it yet."""

        async def say(session: AsyncSession) -> None:
            if not await has_event(session, submission_id, message):
                now = self._clock.now()
                await lifecycle.append_event(
                    session, submission_id, EventKind.LOG, message, at=now, level=level
                )

        await self._database.write_unit(say)

    def _lead(self, submission_id: str, votes: Mapping[str, VoteCount]) -> float | None:
        """Return the lower end of an adapter's interval if it does well."""
        own = votes.get(submission_id)
        if own is None or own.total < self._after:
            return None
        others = [
            one
            for name, one in votes.items()
            if name != submission_id and one.total >= COMPARED_FROM
        ]
        members = sum(one.total > 0 for one in votes.values())
        share = shared_alpha(members)  # an adapter's, of which each of its pairs has a part
        needed = -math.log(shared_alpha(members, share))
        beaten = sum(evidence(own, one, 0.0) >= needed for one in others)
        if not others or 2 * beaten < len(others):
            return None
        low, _ = proportion_sequence(own.up, own.total, share)
        return low

    async def _promote(self, submission_id: str, developer: str, votes: VoteCount) -> bool:
        try:
            account = await self._accounts.named(developer)
            begun = await self._rollouts.begin(account, submission_id, None, PROMOTE)
        except (Conflict, InvalidInput, NotFound, TooManySubmissions):
            return False  # it is being redeployed, merged or gone, or its developer has no room
        if begun is None:
            return False
        message = f"Promoted after {votes.total:,} votes, {votes.up:,} of them thumbs up: it is being merged into its base."
        await self._say(submission_id, message)
        logger.info("%s: %s", submission_id, message)
        return True

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            if not self._is_leader():
                continue
            try:
                await self.step()
            except (DBAPIError, OSError) as error:
                logger.warning("promoting adapters failed; trying again in a minute: %s", error)
