"""Counts conversations: measures each again and enters the difference from its previous measurement."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.chat.conversations.records import MessageAsRead, RecordedConversation
from guanaco_server.database.bulk import upsert
from guanaco_server.feedback import records as feedback_records
from guanaco_server.leaderboard.counting import queries
from guanaco_server.leaderboard.counting.aggregate import Aggregate, Deltas
from guanaco_server.leaderboard.counting.measurement import (
    Definitions,
    Measurement,
    Visit,
    visit_of,
)
from guanaco_server.leaderboard.tables import CountedConversationRow, VisitRow


@dataclass(frozen=True)
class ReadConversations:
    """Conversations as they were read. ``counts`` tell whether they have changed since."""

    counts: Mapping[str, int]
    messages: Sequence[MessageAsRead]
    rated: Set[str]

    def measured(self, definitions: Definitions) -> dict[str, Measurement]:
        """Measure each of them; it takes as long as there are messages."""
        messages = chat_records.by_conversation(self.messages)
        return {
            one: definitions.apply(messages.get(one, ()), is_rated=one in self.rated)
            for one in self.counts
        }


async def read_conversations(
    session: AsyncSession, conversations: Collection[RecordedConversation]
) -> ReadConversations:
    """Read what is measured of conversations."""
    counts = {one.id: one.message_count for one in conversations}
    messages = await chat_records.messages(session, counts)
    return ReadConversations(counts, messages, await feedback_records.rated(session, counts))


async def count_conversations(
    session: AsyncSession,
    conversations: Collection[RecordedConversation],
    measured: Mapping[str, Measurement],
    definitions: Definitions,
    deltas: Deltas,
) -> None:
    """Count conversations as they were measured."""
    ids = [conversation.id for conversation in conversations]
    known = {row.conversation_id: row for row in await queries.counted_conversations(session, ids)}
    rows, visitors = [], set()
    for conversation in conversations:
        new = measured[conversation.id]
        old = known.get(conversation.id)
        text = new.aggregate.to_json()
        has_other_days = _days(old) != (new.first_day, new.second_day)
        is_current = old is not None and old.definition == definitions.version
        if old is not None and old.tally == text and is_current and not has_other_days:
            continue
        before = Aggregate.from_json(old.tally) if old else None
        deltas.replace(
            (conversation.competition, conversation.submission_id), before, new.aggregate
        )
        rows.append(_columns(conversation, new, text, definitions.version))
        if has_other_days:
            visitors.add(
                (conversation.user_key, conversation.competition, conversation.submission_id)
            )
    await upsert(session, CountedConversationRow, rows)
    session.expunge_all()  # the rows just written are read again below
    await count_visits(session, visitors, deltas)


async def drop_gone(session: AsyncSession, submission_id: str, deltas: Deltas) -> None:
    """Drop the measurements of conversations that no longer exist, and the visits that followed from them."""
    there = set(await chat_records.of_submission(session, submission_id))
    rows = await queries.counted_conversations_of_submission(session, submission_id)
    gone = [row for row in rows if row.conversation_id not in there]
    await queries.drop_counted_conversations(session, [row.conversation_id for row in gone])
    session.expunge_all()
    visits = await queries.visits_of_submission(session, submission_id)
    await count_visits(session, _visitors(rows) | _visitors(visits), deltas)


async def drop_deleted(
    session: AsyncSession, conversation_ids: Collection[str], deltas: Deltas
) -> None:
    """Take back what deleted conversations counted, and the visits that followed from them."""
    rows = await queries.counted_conversations(session, conversation_ids)
    for row in rows:
        key = (row.competition, row.submission_id)
        deltas.replace(key, Aggregate.from_json(row.tally), None)
    await queries.drop_counted_conversations(session, [row.conversation_id for row in rows])
    session.expunge_all()
    await count_visits(session, _visitors(rows), deltas)


async def count_visits(
    session: AsyncSession, visitors: Collection[queries.VisitKey], deltas: Deltas
) -> None:
    """Count visits again, from the days of all conversations that these users had with these submissions."""
    if not visitors:
        return
    days = await queries.days(session, visitors)
    known = {
        (user, competition, submission): Visit(first_day, has_returned)
        for user, competition, submission, first_day, has_returned in await queries.visits(
            session, visitors
        )
    }
    rows = []
    for key in days.keys() | known.keys():
        user, competition, submission = key
        new, old = visit_of(days.get(key, ())), known.get(key)
        if new == old:
            continue
        deltas.replace(
            (competition, submission),
            old.aggregate() if old else None,
            new.aggregate() if new else None,
        )
        if new is None:
            await queries.drop_visit(session, *key)
        else:
            rows.append(
                {
                    "user_key": user,
                    "competition": competition,
                    "submission_id": submission,
                    "first_day": new.first_day,
                    "has_returned": new.has_returned,
                }
            )
    await upsert(session, VisitRow, rows)


def _visitors(
    rows: Iterable[CountedConversationRow | queries.CountedConversation | VisitRow],
) -> set[queries.VisitKey]:
    return {(row.user_key, row.competition, row.submission_id) for row in rows}


def _columns(
    conversation: RecordedConversation, measurement: Measurement, text: str, definition: int
) -> dict[str, object]:
    return {
        "conversation_id": conversation.id,
        "submission_id": conversation.submission_id,
        "competition": conversation.competition,
        "user_key": conversation.user_key,
        "tally": text,
        "first_day": measurement.first_day,
        "second_day": measurement.second_day,
        "definition": definition,
    }


def _days(row: queries.CountedConversation | None) -> tuple[int | None, int | None]:
    return (None, None) if row is None else (row.first_day, row.second_day)
