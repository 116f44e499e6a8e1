"""Promotes LoRA adapters that do well: merges them into their base without being asked, where a setting says after how many votes.

An adapter does well when it has the required number of votes in the competition `open`, and is shown to be better than at least half of the others that have
votes enough, by the test of the verdict, which holds at every look (statistics/decisions.py). All pairs share the error: that an adapter is ever promoted which is not
better than half of the others has a chance of at most 5 %. It is redeployed as `guanaco promote` does it, beside the version that serves. One at a time is begun in each look.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping

from sqlalchemy.exc import DBAPIError

from guanaco.competitions import OPEN
from guanaco.errors import Conflict, InvalidInput, NotFound, TooManySubmissions
from guanaco.submissions import EventKind, RedeployRequest
from guanaco_server.accounts.service import AccountService
from guanaco_server.database.database import Database
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock
from guanaco_server.statistics.confidence_sequences import proportion_sequence, shared_alpha
from guanaco_server.statistics.decisions import evidence
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions import lifecycle
from guanaco_server.submissions.rollouts import queries
from guanaco_server.submissions.rollouts.service import RolloutService

INTERVAL_S = 60.0
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
        *,
        after: int,
        is_leader: Callable[[], bool],
        list_votes: ListVotes,
    ) -> None:
        self._database = database
        self._clock = clock
        self._accounts = accounts
        self._rollouts = rollouts
        self._after = after
        self._is_leader = is_leader
        self._list_votes = list_votes
        self._refused: set[str] = set()
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
        found = [
            (low, submission_id, developer)
            for submission_id, developer in adapters
            if submission_id not in self._refused
            and (low := self._lead(submission_id, votes)) is not None
        ]
        for _, submission_id, developer in sorted(found, reverse=True):
            if await self._promote(submission_id, developer, votes[submission_id]):
                return submission_id
        return None

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
        except (InvalidInput, NotFound):  # it is merged already, or gone
            self._refused.add(submission_id)
            return False
        except (
            Conflict,
            TooManySubmissions,
        ):  # a redeploy is under way, or its developer has no room
            return False
        if begun is None:
            return False
        message = f"Promoted after {votes.total:,} votes, {votes.up:,} of them thumbs up: it is merged into its base."
        async with self._database.write() as session:
            await lifecycle.append_event(
                session, submission_id, EventKind.LOG, message, at=self._clock.now()
            )
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
