"""The loops behind the leaderboard, side by side: one counts what is new, one ranks what is counted, one notes what that settles, one finds how few votes decide.

One process at a time runs them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import DBAPIError

from guanaco.errors import NewerVersionNeeded
from guanaco_server.database.commits import CommitWatch
from guanaco_server.leaderboard.counting.counter import ScoreCounter
from guanaco_server.leaderboard.ranking.standings import StandingsPublisher
from guanaco_server.leaderboard.seasons.service import SeasonService
from guanaco_server.leaderboard.stability import StabilityService
from guanaco_server.leaderboard.verdict import VerdictService
from guanaco_server.runtime.background import Background

IDLE_S = 0.5
MEASURES_S = 5.0  # between two measurements of conversations without a rating: each holds SQLite's write lock for 100 ms on a busy machine
WINDOWS_S = 30.0  # until a changed window is noticed without new ratings
MOST_PAUSE_S = 1.0  # between two rankings
VERDICTS_S = 5.0  # between two looks at verdicts, and at how few votes decide

logger = logging.getLogger(__name__)


class ScoreLoop:
    def __init__(
        self,
        counter: ScoreCounter,
        standings: StandingsPublisher,
        verdicts: VerdictService,
        stability: StabilityService,
        seasons: SeasonService,
        commits: CommitWatch,
    ) -> None:
        self._counter = counter
        self._standings = standings
        self._verdicts = verdicts
        self._stability = stability
        self._seasons = seasons
        self._has_verdicts = asyncio.Event()  # to look at, as boards were ranked
        self._has_pairs = asyncio.Event()
        self._commits = commits
        self._counted_at = float("-inf")
        self._is_behind = False  # conversations wait to be measured
        self._has_counted = asyncio.Event()
        self._counting = Background("counting")
        self._ranking = Background("ranking")
        self._settling = Background("verdicts")
        self._weighing = Background("stability")

    async def start(self) -> None:
        self._standings.reset()
        self._counting.start(self._keep_counted())
        self._ranking.start(self._keep_ranked())
        self._settling.start(
            self._follow_rankings(self._has_verdicts, self._note_settled, "verdicts", 0.1)
        )
        self._weighing.start(
            self._follow_rankings(self._has_pairs, self._weigh, "how few votes decide", 0.05)
        )

    async def stop(self) -> None:
        await self._counting.stop()
        await self._ranking.stop()
        await self._settling.stop()
        await self._weighing.stop()

    async def run_once(self) -> None:
        """Count all that waits, rank, and note what is settled and how few votes decide."""
        self._counted_at = min(self._counted_at, time.monotonic() - MEASURES_S)
        await self._count()
        await self._standings.publish()
        await self._note_settled()
        await self._weigh()

    async def _note_settled(self) -> float:
        """Look at the verdicts of the competitions that were ranked since the last call; return how many seconds that took."""
        began = time.monotonic()
        ranked = self._standings.ranked
        while ranked:
            competition = ranked.pop()
            try:
                if await self._verdicts.note_settled(competition):
                    logger.info("the verdict of competition %s is settled", competition)
            except BaseException:
                ranked.add(competition)
                raise
        return time.monotonic() - began

    async def _weigh(self) -> float:
        """Find how few votes decide on the boards that were ranked since the last call; return how many seconds that took, without its rests."""
        computed_s = 0.0
        waiting = self._standings.unweighed
        for competition in list(waiting):
            waiting.discard(competition)
            try:
                ballots = await self._standings.ballots(competition)
                if ballots is None:  # the next ranking begins with reading the votes
                    waiting.add(competition)
                    continue
                computed_s += await self._stability.note(competition, ballots)
            except BaseException:
                waiting.add(competition)
                raise
        return computed_s + await self._weigh_seasons()

    async def _weigh_seasons(self) -> float:
        """Do the same for each frozen board, once."""
        computed_s = 0.0
        for competition in await self._seasons.unweighed():
            try:
                ballots = await self._seasons.ballots(competition)
            except NewerVersionNeeded:  # the newer version weighs it
                continue
            computed_s += await self._stability.note_season(competition, ballots)
        return computed_s

    async def _count(self) -> None:
        began = time.monotonic()
        if began - self._counted_at < WINDOWS_S and not await self._has_work(began):
            return
        is_all = False
        while not is_all:
            batch = await self._counter.count_batch()
            self._standings.follow(batch)
            self._has_counted.set()
            is_all = batch.is_all
        self._counted_at, self._is_behind = time.monotonic(), False

    async def _has_work(self, now: float) -> bool:
        """Return whether to count now: at once what somebody has rated, and what was only said every MEASURES_S."""
        if await self._counter.has_votes():
            return True
        self._is_behind = await self._counter.has_measurements()
        return self._is_behind and now - self._counted_at >= MEASURES_S

    async def _keep_counted(self) -> None:
        while True:
            try:
                await self._count()
            except (DBAPIError, OSError) as error:
                logger.warning("ratings not counted; trying again: %s", error)
                self._standings.reset()
                self._commits.reset()
            self._has_counted.set()  # a rule, or the day, may have changed without a rating
            await self._commits.wait(IDLE_S, MEASURES_S if self._is_behind else WINDOWS_S)

    async def _keep_ranked(self) -> None:
        """Rank while counting goes on, half of the time at most, so that counting is not held up by it."""
        while True:
            await self._has_counted.wait()
            self._has_counted.clear()
            began = time.monotonic()
            try:
                await self._standings.publish()
                self._has_verdicts.set()
                self._has_pairs.set()
            except (DBAPIError, OSError) as error:
                logger.warning("leaderboard not updated; trying again: %s", error)
                self._standings.reset()
                self._has_counted.set()
                await asyncio.sleep(IDLE_S)
            await asyncio.sleep(min(time.monotonic() - began, MOST_PAUSE_S))

    async def _follow_rankings(
        self,
        has_ranked: asyncio.Event,
        work: Callable[[], Awaitable[float]],
        name: str,
        share: float,
    ) -> None:
        """Do ``work``, which returns how many seconds it computed, after rankings, for this share of the time at most."""
        while True:
            await has_ranked.wait()
            has_ranked.clear()
            began, computed_s = time.monotonic(), 0.0
            try:
                computed_s = await work()
            except (DBAPIError, OSError) as error:
                logger.warning("%s: not found; trying again: %s", name, error)
                has_ranked.set()
            passed_s = time.monotonic() - began
            await asyncio.sleep(max(VERDICTS_S, computed_s / share - passed_s))
