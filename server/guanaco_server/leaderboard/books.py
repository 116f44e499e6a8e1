"""Keeps the tallies up to date, a batch in a transaction: what was counted and that it was counted commit together.

    what is new      ratings that are not counted, conversations whose messages have become more, submissions to recount
    its conversations, measured anew            ─┐
    its users' votes, counted anew              ─┼─▶ differences ─▶ the submissions' tallies
    a recounted submission's parts, summed anew  ─┘

Everything is counted anew from what is recorded, and the difference to what was counted before is entered. So a batch
may be repeated, come in any order, or be cut short by a crash. A conversation that somebody is writing now is left
for the next batch, together with its rating.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.feedback import records as feedback_records
from guanaco_server.leaderboard import queries
from guanaco_server.leaderboard.conversation_books import count_conversations, drop_gone
from guanaco_server.leaderboard.flags import Owner
from guanaco_server.leaderboard.ledger import Key, Ledger
from guanaco_server.leaderboard.tables import CountedWindowRow, ScoreRow
from guanaco_server.leaderboard.tally import Tally, total
from guanaco_server.leaderboard.visits import Visit
from guanaco_server.leaderboard.vote_books import (
    DOWN,
    UP,
    Circumstances,
    Reopened,
    count_votes,
    slots_of,
)
from guanaco_server.leaderboard.votes import Window, window_of
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.service import SubmissionService

BATCH = 1_000  # ratings, and changed conversations: a fraction of a second
RECOUNTS = 10  # submissions


@dataclass(frozen=True)
class Settled:
    """What a batch has done. ``is_all`` is False when there is more to do at once."""

    version: int
    count: int
    is_all: bool
    ballots: dict[tuple[str, str], dict[str, bool]]


class Books:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        submissions: SubmissionService,
        competitions: CompetitionService,
    ) -> None:
        self._database = database
        self._clock = clock
        self._submissions = submissions
        self._competitions = competitions

    async def has_work(self) -> bool:
        """Without a look at windows that have changed."""
        async with self._database.read() as session:
            return bool(
                await feedback_records.uncounted(session, 1)
                or await chat_records.changed(session, 1)
                or await queries.has_recounts(session)
            )

    async def settle(self) -> Settled:
        """Count one batch; one caller at a time, whoever else tries waits."""
        around = await self._circumstances()
        async with self._database.write() as session:
            version = await queries.open_books(session)
            await _notice_windows(session, around.windows)
            return await _Batch(session, version, around).settle()

    async def forget_users(self, session: AsyncSession, user_keys: Collection[str]) -> None:
        """Within the caller's transaction, in which what they wrote is erased: nothing here names them any more."""
        await queries.open_books(session)
        await queries.ask_recounts(session, await queries.forget_users(session, user_keys))

    async def recount(self, session: AsyncSession, submission_ids: Collection[str]) -> None:
        """Within the caller's transaction: what is recorded of them has changed, so count them anew soon."""
        await queries.ask_recounts(session, submission_ids)

    async def _circumstances(self) -> Circumstances:
        owners = {
            one.id: Owner(one.account_id, one.developer) for one in await self._submissions.briefs()
        }
        windows = {one.id: window_of(one) for one in await self._competitions.list_all()}
        return Circumstances(owners, windows, self._clock.now())


class _Batch:
    def __init__(self, session: AsyncSession, version: int, around: Circumstances) -> None:
        self._session = session
        self._version = version
        self._around = around
        self._ledger = Ledger()

    async def settle(self) -> Settled:
        session = self._session
        recounts = await queries.take_recounts(session, RECOUNTS)
        found = await feedback_records.uncounted(session, BATCH)
        wanted = set(await chat_records.changed(session, BATCH))
        wanted |= {rating.conversation_id for rating in found}
        for submission_id in recounts:
            wanted |= set(await chat_records.of_submission(session, submission_id))
        locked = await chat_records.lock(session, wanted)
        held = {conversation.id for conversation in locked}
        ratings = [rating for rating in found if rating.conversation_id in held]
        reopened = await self._reopen(recounts)
        await count_conversations(session, locked, self._ledger)
        await count_votes(session, ratings, reopened, self._around, self._ledger)
        await feedback_records.note_counted(session, [rating.id for rating in ratings])
        await self._write_sums(recounts)
        return Settled(
            version=self._version,
            count=len(ratings) + len(locked) + len(recounts),
            is_all=len(found) < BATCH and len(wanted) < BATCH and len(recounts) < RECOUNTS,
            ballots=self._ledger.ballots,
        )

    async def _reopen(self, submission_ids: Collection[str]) -> Reopened:
        """What is gone is taken out, and slots are as the counted ratings are."""
        reopened = Reopened()
        for submission_id in submission_ids:
            await drop_gone(self._session, submission_id, self._ledger)
            ratings = await feedback_records.of_submission(self._session, submission_id)
            votes = await queries.votes_of_submission(self._session, submission_id)
            counted = [rating for rating in ratings if rating.is_counted]
            slots = slots_of(counted, self._around.windows)
            reopened.slots.update(await queries.drop_slots(self._session, submission_id))
            await queries.add_to_slots(self._session, slots)
            reopened.users.update(rating.user_key for rating in ratings)
            reopened.users.update(vote.user_key for vote in votes)
            reopened.slots.update(slots)
        return reopened

    async def _write_sums(self, recounts: Collection[str]) -> None:
        """Of a submission that was recounted the sum of all that is kept, of others what was there and the differences."""
        self._session.expunge_all()
        sums = self._ledger.sums()
        touched = {submission_id for _, submission_id in sums} | set(recounts)
        known = {
            (row.competition, row.submission_id): Tally.from_json(row.tally)
            for row in await queries.scores(self._session, touched)
        }
        tallies = {key: known.get(key, Tally()) + entered for key, entered in sums.items()}
        for submission_id in recounts:
            parts = await sum_of_parts(self._session, submission_id)
            for key in tallies.keys() | known.keys() | parts.keys():
                if key[1] == submission_id:
                    tallies[key] = parts.get(key, Tally())
        rows = [
            {
                "competition": competition,
                "submission_id": submission_id,
                "tally": tally.to_json(),
                "up": tally["up"],
                "down": tally["down"],
                "rated": tally["rated"],
                "version": self._version,
            }
            for (competition, submission_id), tally in tallies.items()
        ]
        await queries.put(self._session, ScoreRow, rows)


async def sum_of_parts(session: AsyncSession, submission_id: str) -> dict[Key, Tally]:
    """Of its conversations, votes and visits, by competition."""
    parts: defaultdict[Key, list[Tally]] = defaultdict(list)
    for row in await queries.measured_of_submission(session, submission_id):
        parts[row.competition, submission_id].append(Tally.from_json(row.tally))
    for vote in await queries.votes_of_submission(session, submission_id):
        parts[vote.competition, submission_id].append(UP if vote.thumbs_up else DOWN)
    for visit in await queries.visits_of_submission(session, submission_id):
        tally = Visit(visit.first_day, visit.has_returned).tally()
        parts[visit.competition, submission_id].append(tally)
    return {key: total(tallies) for key, tallies in parts.items()}


async def _notice_windows(session: AsyncSession, windows: Mapping[str, Window]) -> None:
    """A competition whose window has changed is counted anew; so is a new one that a batch before did not know yet."""
    known = await queries.counted_windows(session)
    rows = []
    for competition, window in windows.items():
        row = known.get(competition)
        if row is not None and Window(row.starts_at, row.ends_at) == window:
            continue
        rows.append({"competition": competition, **_columns(window)})
        await queries.ask_recounts(session, await queries.scored_in(session, competition))
    await queries.put(session, CountedWindowRow, rows)


def _columns(window: Window) -> dict[str, datetime | None]:
    return {"starts_at": window.starts_at, "ends_at": window.ends_at}
