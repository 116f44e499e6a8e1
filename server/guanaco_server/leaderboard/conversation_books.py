"""Counts conversations: measures each anew, and enters the difference to what it had added before."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.chat.conversations import records as chat_records
from guanaco_server.chat.conversations.records import RecordedConversation
from guanaco_server.feedback import records as feedback_records
from guanaco_server.leaderboard import queries
from guanaco_server.leaderboard.ledger import Ledger
from guanaco_server.leaderboard.measures import Measured, measure
from guanaco_server.leaderboard.tables import MeasuredConversationRow, VisitRow
from guanaco_server.leaderboard.tally import Tally
from guanaco_server.leaderboard.visits import Visit, visit_of


async def count_conversations(
    session: AsyncSession, conversations: Collection[RecordedConversation], ledger: Ledger
) -> None:
    """Of conversations that are locked."""
    ids = [conversation.id for conversation in conversations]
    messages = await chat_records.messages(session, ids)
    rated = await feedback_records.rated(session, ids)
    known = {row.conversation_id: row for row in await queries.measured(session, ids)}
    rows, users = [], set()
    for one in conversations:
        found = measure(messages.get(one.id, ()), is_rated=one.id in rated)
        old = known.get(one.id)
        text = found.tally.to_json()
        is_other_day = _days(old) != (found.first_day, found.second_day)
        if old is not None and old.tally == text and not is_other_day:
            continue
        before = Tally.from_json(old.tally) if old else None
        ledger.replace((one.competition, one.submission_id), before, found.tally)
        rows.append(_row(one, found, text))
        if is_other_day:
            users.add(one.user_key)
    await queries.put(session, MeasuredConversationRow, rows)
    await chat_records.note_measured(session, ids)
    session.expunge_all()  # the rows just written are read anew below
    await count_visits(session, users, ledger)


async def drop_gone(session: AsyncSession, submission_id: str, ledger: Ledger) -> None:
    """Conversations that are no more, and the visits that they were."""
    there = set(await chat_records.of_submission(session, submission_id))
    rows = await queries.measured_of_submission(session, submission_id)
    gone = [row for row in rows if row.conversation_id not in there]
    await queries.drop_measured(session, [row.conversation_id for row in gone])
    session.expunge_all()
    visits = await queries.visits_of_submission(session, submission_id)
    users = {row.user_key for row in rows} | {row.user_key for row in visits}
    await count_visits(session, users, ledger)


async def count_visits(session: AsyncSession, users: Iterable[str], ledger: Ledger) -> None:
    """Anew, from the days of all conversations of these users."""
    users = list(users)
    if not users:
        return
    days = await queries.days(session, users)
    known = {
        (user, competition, submission): Visit(first_day, has_returned)
        for user, competition, submission, first_day, has_returned in await queries.visits(
            session, users
        )
    }
    rows = []
    for key in days.keys() | known.keys():
        user, competition, submission = key
        new, old = visit_of(days.get(key, ())), known.get(key)
        if new == old:
            continue
        ledger.replace(
            (competition, submission), old.tally() if old else None, new.tally() if new else None
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
    await queries.put(session, VisitRow, rows)


def _row(one: RecordedConversation, found: Measured, text: str) -> queries.Row:
    return {
        "conversation_id": one.id,
        "submission_id": one.submission_id,
        "competition": one.competition,
        "user_key": one.user_key,
        "tally": text,
        "first_day": found.first_day,
        "second_day": found.second_day,
    }


def _days(row: MeasuredConversationRow | None) -> tuple[int | None, int | None]:
    return (None, None) if row is None else (row.first_day, row.second_day)
