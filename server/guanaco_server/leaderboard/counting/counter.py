"""Keeps the aggregates up to date in batches of one transaction each.

    new ratings, changed conversations, conversations measured by an older definition, submissions to recount,
    corrections (ratings that were changed or withdrawn)
      └─▶ measure these conversations again               ─┐
      └─▶ count the votes of their users again             ─┼─▶ deltas ─▶ the submissions' aggregates
      └─▶ sum the parts of each recounted submission again ─┘

Everything is counted again from what is recorded, and the difference from the previous count is entered. So a batch
may be repeated, batches may come in any order, and a crash loses nothing. Nobody is kept from chatting or rating meanwhile: a batch
takes locks of ratings and conversations as its last act before it commits, and a conversation that was written since it was read is
counted again by the next one.

Conversations are read and measured before the transaction where all chats would wait for that, as on SQLite. A conversation that was
written since is left for the next batch; with a new rating, or for a recount, it is read again.

Conversations that were measured by an older definition come last, a bounded number in a batch. A process that knows
only an older definition leaves newer measurements alone until their conversation changes, so two versions that run
side by side do not measure the same conversations in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.chat.conversations.records import RateableConversation, RecordedConversation
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.bulk import upsert
from guanaco_server.database.database import Database
from guanaco_server.feedback import records as feedback_records
from guanaco_server.feedback.changes import ChangedRating
from guanaco_server.leaderboard.counting import queries
from guanaco_server.leaderboard.counting.aggregate import Aggregate, Deltas, Key, UserKey, sum_of
from guanaco_server.leaderboard.counting.conversations import (
    ReadConversations,
    count_conversations,
    drop_deleted,
    drop_gone,
    read_conversations,
)
from guanaco_server.leaderboard.counting.kept import KeptAggregates
from guanaco_server.leaderboard.counting.measurement import Definitions, Measurement, Visit
from guanaco_server.leaderboard.counting.votes import (
    Recount,
    Vote,
    VotingContext,
    VotingWindow,
    count_votes,
    slots_of,
    window_of,
    withdrawn_vote,
)
from guanaco_server.leaderboard.flags import queries as flag_queries
from guanaco_server.leaderboard.flags.rules import Owner, slot_at, times_of
from guanaco_server.leaderboard.tables import CorrectionRow, CountedWindowRow, ScoreRow
from guanaco_server.runtime import threads
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.service import SubmissionService

BATCH = 1_000  # ratings, and changed conversations: a fraction of a second, for which all chats wait on SQLite
LARGE_BATCH = 5_000  # where nobody waits for it; it takes a fifth less for each rating, as most submissions are in any batch
RECOUNTS = 10  # submissions
OUTDATED = 500  # conversations measured by an older definition: a quarter of a second


@dataclass(frozen=True)
class CountedBatch:
    """The result of a batch.

    Attributes:
        version: The number of the batch.
        count: How many ratings, conversations and submissions were counted.
        is_all: Whether nothing is left to count at once. Outdated measurements may be left: they can wait.
        votes: The first votes of each user whose votes were counted.
        aggregates: All aggregates of each submission that the batch has touched.
    """

    version: int
    count: int
    is_all: bool
    votes: dict[UserKey, dict[str, bool]]
    aggregates: Mapping[Key, Aggregate]


class _ReadAhead(NamedTuple):
    """The conversations that are to be counted, as they were before the batch's transaction.

    Attributes:
        ids: Conversations that have changed.
        outdated: Some that were measured by an older definition.
        read: These, and those of what else is counted, as they were read.
        measured: The same, measured.
        is_everything: Whether nothing but these conversations is to be counted.
    """

    ids: Sequence[str]
    outdated: Sequence[str]
    read: ReadConversations
    measured: Mapping[str, Measurement]
    is_everything: bool

    def is_current(self, conversation: RecordedConversation) -> bool:
        """Tell whether nothing was written in it since it was read."""
        return self.read.counts.get(conversation.id) == conversation.message_count


class ScoreCounter:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        submissions: SubmissionService,
        competitions: CompetitionService,
        definitions: Definitions,
    ) -> None:
        self._database = database
        self._clock = clock
        self._submissions = submissions
        self._competitions = competitions
        self._definitions = definitions
        self._kept = KeptAggregates()
        self._limit = BATCH if database.has_one_writer else LARGE_BATCH

    async def has_work(self) -> bool:
        """Tell whether anything waits to be counted, except for competitions whose window has changed."""
        return await self.has_votes() or await self.has_measurements()

    async def has_votes(self) -> bool:
        """Tell whether a rating, a correction or a recount waits, for which somebody may look at a board."""
        async with self._database.read() as session:
            return await _has_votes(session)

    async def has_measurements(self) -> bool:
        """Tell whether a conversation waits to be measured again."""
        async with self._database.read() as session:
            return bool(
                await chat_records.changed(session, 1, self._clock.now())
                or await queries.outdated(session, self._definitions.version, 1)
            )

    async def count_batch(self) -> CountedBatch:
        """Count one batch. Other callers, in any process, wait until it is committed."""
        context = await self._context()
        ahead = await self._read_ahead(context.windows)

        async def count(session: AsyncSession) -> CountedBatch:
            version = await queries.lock_counting(session)
            batch = _Batch(session, version, context, self._definitions, self._kept, self._limit)
            if ahead is not None and ahead.is_everything:
                return await batch.measure(ahead)
            await _notice_windows(session, context.windows)
            return await batch.count(ahead)

        counted = await self._database.write_unit(count)
        self._kept.keep(counted.version, counted.aggregates)
        return counted

    async def _read_ahead(self, windows: Mapping[str, VotingWindow]) -> _ReadAhead | None:
        """Read and measure conversations before the transaction; None where the transaction does it, since nobody waits for that."""

        async def read(session: AsyncSession) -> _ReadAhead | None:
            is_everything = not await _has_votes(session)
            if is_everything:
                known = await queries.counted_windows(session)
                is_everything = not _new_windows(known, windows)
            if not is_everything and not self._database.has_one_writer:
                return None
            changed = await chat_records.changed(session, self._limit, self._clock.now())
            outdated = await queries.outdated(session, self._definitions.version, OUTDATED)
            wanted = {*changed, *outdated}
            if not is_everything:
                wanted |= await self._concerned(session)
            found = await read_conversations(session, await chat_records.recorded(session, wanted))
            return _ReadAhead(changed, outdated, found, {}, is_everything)

        ahead = await self._database.read_unit(read)
        if ahead is None:
            return None
        measured = await threads.BACKGROUND.run(ahead.read.measured, self._definitions)
        return ahead._replace(measured=measured)

    async def _concerned(self, session: AsyncSession) -> set[str]:
        """Return the conversations of new ratings, and those of the submissions that are recounted next."""
        ratings = await feedback_records.uncounted(session, self._limit)
        found = {rating.conversation_id for rating in ratings}
        for submission_id in await queries.recounts(session, RECOUNTS):
            found |= set(await chat_records.of_submission(session, submission_id))
        return found

    async def forget_users(self, session: AsyncSession, user_keys: Collection[str]) -> None:
        """Delete every row that names these users, within the transaction that erases what they wrote."""
        await queries.lock_counting(session)
        await queries.ask_recounts(session, await queries.forget_users(session, user_keys))

    async def recount(self, session: AsyncSession, submission_ids: Collection[str]) -> None:
        """Have these submissions counted again, within the caller's transaction, since what is recorded has changed."""
        await queries.ask_recounts(session, submission_ids)

    async def recount_competition(self, session: AsyncSession, competition: str) -> None:
        """Have all submissions of a competition counted again, within the caller's transaction."""
        await queries.ask_recounts(session, await queries.scored_in(session, competition))

    async def correct(self, session: AsyncSession, changed: ChangedRating) -> None:
        """Have a rating counted again, within the transaction that changes or withdraws it."""
        session.add(
            CorrectionRow(
                user_key=changed.user_key,
                submission_id=changed.submission_id,
                competition=changed.competition,
                slot=slot_at(changed.at),
            )
        )

    async def forget_conversation(
        self, session: AsyncSession, conversation: RateableConversation
    ) -> None:
        """Subtract what a conversation counted, within the transaction that deletes it with its rating."""
        rated_at = await feedback_records.rated_at(session, conversation.id)
        session.add(
            CorrectionRow(
                user_key=conversation.user_key,
                submission_id=conversation.submission_id,
                competition=conversation.competition,
                slot=slot_at(rated_at) if rated_at else 0,
                conversation_id=conversation.id,
            )
        )

    async def _context(self) -> VotingContext:
        owners = {
            brief.id: Owner(brief.account_id, brief.developer)
            for brief in await self._submissions.catalog.briefs()
        }
        competitions = await self._competitions.list_all()
        windows = {competition.id: window_of(competition) for competition in competitions}
        return VotingContext(owners, windows, self._clock.now())


async def _has_votes(session: AsyncSession) -> bool:
    return bool(
        await feedback_records.uncounted(session, 1)
        or await queries.has_recounts(session)
        or await queries.has_corrections(session)
    )


class _Batch:
    def __init__(
        self,
        session: AsyncSession,
        version: int,
        context: VotingContext,
        definitions: Definitions,
        kept: KeptAggregates,
        limit: int,
    ) -> None:
        self._session = session
        self._version = version
        self._context = context
        self._definitions = definitions
        self._kept = kept
        self._limit = limit
        self._deltas = Deltas()

    async def count(self, ahead: _ReadAhead | None) -> CountedBatch:
        session = self._session
        corrections = await queries.take_corrections(session, BATCH)
        recounts = await queries.take_recounts(session, RECOUNTS)
        found = await feedback_records.uncounted(session, self._limit)
        needed = {rating.conversation_id for rating in found}
        for submission_id in recounts:
            needed |= set(await chat_records.of_submission(session, submission_id))
        if ahead is None:
            now, version = self._context.now, self._definitions.version
            changed = await chat_records.changed(session, self._limit, now)
            outdated = await queries.outdated(session, version, OUTDATED)
        else:
            changed, outdated = ahead.ids, ahead.outdated
        wanted = needed.union(changed)
        is_all = (
            max(len(found), len(wanted)) < self._limit
            and len(corrections) < BATCH
            and len(recounts) < RECOUNTS
        )
        conversations = await self._recorded(wanted, outdated)
        if ahead is not None:
            conversations = [
                one for one in conversations if one.id in needed or ahead.is_current(one)
            ]
        there = {conversation.id for conversation in conversations}
        ratings = [rating for rating in found if rating.conversation_id in there]
        recount = await self._begin_recount(recounts)
        await self._correct(corrections, recount)
        await self._count(conversations, await self._measured(conversations, ahead))
        await count_votes(session, ratings, recount, self._context, self._deltas)
        aggregates = await self._write_aggregates(recounts)
        if ratings:
            await feedback_records.note_counted(session, [rating.id for rating in ratings])
        await chat_records.note_measured(session, conversations)
        return CountedBatch(
            version=self._version,
            count=len(ratings) + len(conversations) + len(recounts) + len(corrections),
            is_all=is_all,
            votes=self._deltas.votes,
            aggregates=aggregates,
        )

    async def _measured(
        self, conversations: Collection[RecordedConversation], ahead: _ReadAhead | None
    ) -> dict[str, Measurement]:
        """Measure conversations, but for those that are now as they were read ahead."""
        known: dict[str, Measurement] = {}
        if ahead is not None:
            rated = await feedback_records.rated(
                self._session, [conversation.id for conversation in conversations]
            )
            known = {
                one.id: ahead.measured[one.id]
                for one in conversations
                if ahead.is_current(one) and (one.id in ahead.read.rated) == (one.id in rated)
            }
        others = [one for one in conversations if one.id not in known]
        if not others:
            return known
        read = await read_conversations(self._session, others)
        return known | read.measured(self._definitions)

    async def measure(self, ahead: _ReadAhead) -> CountedBatch:
        """Count conversations, and nothing else. One that was written since it was read is left for the next batch."""
        recorded = await self._recorded(ahead.ids, ahead.outdated)
        found = [one for one in recorded if ahead.is_current(one)]
        await self._count(found, ahead.measured)
        aggregates = await self._write_aggregates(())
        await chat_records.note_measured(self._session, found)
        is_all = len(ahead.ids) < self._limit
        return CountedBatch(self._version, len(found), is_all, self._deltas.votes, aggregates)

    async def _count(
        self, found: Collection[RecordedConversation], measured: Mapping[str, Measurement]
    ) -> None:
        await count_conversations(self._session, found, measured, self._definitions, self._deltas)

    async def _recorded(
        self, wanted: Collection[str], outdated: Collection[str]
    ) -> list[RecordedConversation]:
        found = await chat_records.recorded(self._session, {*wanted, *outdated})
        await self._recount_missing(set(outdated).difference(one.id for one in found))
        return found

    async def _recount_missing(self, conversation_ids: Collection[str]) -> None:
        """Recount the submissions of measurements whose conversation is gone, which drops these measurements."""
        if not conversation_ids:
            return
        rows = await queries.counted_conversations(self._session, conversation_ids)
        await queries.ask_recounts(self._session, {row.submission_id for row in rows})

    async def _begin_recount(self, submission_ids: Collection[str]) -> Recount:
        """Drop what no longer exists, and set the slots to what the counted ratings say."""
        recount = Recount()
        for submission_id in submission_ids:
            await drop_gone(self._session, submission_id, self._deltas)
            ratings = await feedback_records.of_submission(self._session, submission_id)
            ratings += await feedback_records.withdrawn_of_submission(self._session, submission_id)
            votes = await queries.votes_of_submission(self._session, submission_id)
            withdrawn = await queries.withdrawn_votes_of_submission(self._session, submission_id)
            counted = [rating for rating in ratings if rating.is_counted]
            slots = slots_of(counted, self._context.windows)
            recount.slots.update(await flag_queries.drop_slots(self._session, submission_id))
            await flag_queries.add_to_slots(self._session, slots)
            recount.users.update(rating.user_key for rating in ratings)
            recount.users.update(vote.user_key for vote in votes)
            recount.users.update(vote.user_key for vote in withdrawn)
            recount.slots.update(slots)
        return recount

    async def _correct(self, corrections: Sequence[CorrectionRow], recount: Recount) -> None:
        """Set the slots of changed ratings to what the counted ratings say, whatever they said before."""
        recount.users.update(row.user_key for row in corrections)
        deleted = [row.conversation_id for row in corrections if row.conversation_id]
        if deleted:
            await drop_deleted(self._session, deleted, self._deltas)
        for submission_id, competition, slot in {
            (row.submission_id, row.competition, row.slot) for row in corrections
        }:
            times = times_of(slot)
            found = await feedback_records.within(self._session, submission_id, *times)
            found += await feedback_records.withdrawn_of_submission(
                self._session, submission_id, *times
            )
            theirs = [rating for rating in found if rating.competition == competition]
            counted = slots_of([one for one in theirs if one.is_counted], self._context.windows)
            key = (submission_id, competition, slot)
            if await flag_queries.set_slot(self._session, key, counted[key]):
                recount.users.update(rating.user_key for rating in theirs)
            recount.slots.add(key)

    async def _write_aggregates(self, recounts: Collection[str]) -> dict[Key, Aggregate]:
        """Store the sum of all parts for a recounted submission, and the old aggregate plus the deltas for others.

        Returns all aggregates of these submissions.
        """
        self._session.expunge_all()
        sums = self._deltas.sums()
        touched = {submission_id for _, submission_id in sums} | set(recounts)
        known = await self._kept.of(self._session, self._version, touched)
        found = {key: known.get(key, Aggregate()) + delta for key, delta in sums.items()}
        for submission_id in recounts:
            parts = await sum_of_parts(self._session, submission_id)
            for key in found.keys() | known.keys() | parts.keys():
                if key[1] == submission_id:
                    found[key] = parts.get(key, Aggregate())
        rows = [
            {
                "competition": competition,
                "submission_id": submission_id,
                "tally": aggregate.to_json(),
                "up": aggregate["up"],
                "down": aggregate["down"],
                "turned_up": aggregate["turned_up"],
                "turned_down": aggregate["turned_down"],
                "withdrawn_up": aggregate["withdrawn_up"],
                "withdrawn_down": aggregate["withdrawn_down"],
                "rated": aggregate["rated"],
                "version": self._version,
            }
            for (competition, submission_id), aggregate in found.items()
        ]
        await upsert(self._session, ScoreRow, rows)
        return known | found


async def sum_of_parts(session: AsyncSession, submission_id: str) -> dict[Key, Aggregate]:
    """Sum a submission's conversations, votes and visits by competition."""
    parts: defaultdict[Key, list[Aggregate]] = defaultdict(list)
    for row in await queries.counted_conversations_of_submission(session, submission_id):
        parts[row.competition, submission_id].append(Aggregate.from_json(row.tally))
    for vote in await queries.votes_of_submission(session, submission_id):
        first = vote.thumbs_up if vote.first_up is None else vote.first_up
        parts[vote.competition, submission_id].append(Vote(vote.thumbs_up, first).aggregate())
    for one in await queries.withdrawn_votes_of_submission(session, submission_id):
        parts[one.competition, submission_id].append(withdrawn_vote(one.first_up))
    for visit in await queries.visits_of_submission(session, submission_id):
        found = Visit(visit.first_day, visit.has_returned)
        parts[visit.competition, submission_id].append(found.aggregate())
    return {key: sum_of(some) for key, some in parts.items()}


async def _notice_windows(session: AsyncSession, windows: Mapping[str, VotingWindow]) -> None:
    """Have each competition recounted whose window differs from the one that its votes were counted for."""
    new = _new_windows(await queries.counted_windows(session), windows)
    for competition in new:
        await queries.ask_recounts(session, await queries.scored_in(session, competition))
    rows = [
        {"competition": competition, "starts_at": window.starts_at, "ends_at": window.ends_at}
        for competition, window in new.items()
    ]
    await upsert(session, CountedWindowRow, rows)


def _new_windows(
    known: Mapping[str, CountedWindowRow], windows: Mapping[str, VotingWindow]
) -> dict[str, VotingWindow]:
    """Return the windows that differ from those that votes were counted for."""
    counted = {name: VotingWindow(row.starts_at, row.ends_at) for name, row in known.items()}
    return {name: window for name, window in windows.items() if counted.get(name) != window}
