"""Decides about bursts: each minute of a submission that new ratings may have made one, or made none any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.feedback import records
from guanaco_server.leaderboard import queries
from guanaco_server.leaderboard.flags import (
    BASELINE_SLOTS,
    SLOT_S,
    is_burst,
    is_rush,
    least_burst,
)
from guanaco_server.leaderboard.tables import RatingSlotRow

SLOTS_AT_ONCE = 1_000  # in one statement

SlotKey = tuple[str, str, int]  # submission, competition, slot


async def users_of_changed_bursts(session: AsyncSession, slots: Collection[SlotKey]) -> set[str]:
    """Decide anew about the slots that new ratings are in, beside or shortly before; those who rated in one that changed."""
    if not slots:
        return set()
    numbers = [slot for _, _, slot in slots]
    touched = {competition for _, competition, _ in slots}
    session.expunge_all()
    large = [
        row
        for row in await queries.large_slots(
            session, min(numbers), max(numbers) + BASELINE_SLOTS, least_burst()
        )
        if row.competition in touched
    ]
    users: set[str] = set()
    counts = await _minutes(session, large)
    for row in large:
        found = await _is_burst(session, row, counts[row.competition, row.slot])
        if found or row.is_burst:  # also a burst that grows, for who came late
            row.is_burst = found
            users |= await _users(session, row)
    await session.flush()
    return users


async def _minutes(
    session: AsyncSession, large: Iterable[RatingSlotRow]
) -> dict[tuple[str, int], dict[str, int]]:
    """Of each competition's minute in which there is a large slot the ratings by submission."""
    wanted: defaultdict[str, set[int]] = defaultdict(set)
    for row in large:
        wanted[row.competition].add(row.slot)
    found: defaultdict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    for competition, slots in wanted.items():
        waiting = iter(slots)
        while some := tuple(islice(waiting, SLOTS_AT_ONCE)):
            for submission, slot, count in await queries.minutes(session, competition, some):
                found[competition, slot][submission] = count
    return found


async def _is_burst(session: AsyncSession, row: RatingSlotRow, minute: dict[str, int]) -> bool:
    others = [count for submission, count in minute.items() if submission != row.submission_id]
    if is_rush(row.ratings, others):
        return False
    hour_before = await queries.ratings_within(
        session, row.submission_id, row.competition, row.slot - BASELINE_SLOTS, row.slot - 1
    )
    return is_burst(row.ratings, hour_before, others)


async def _users(session: AsyncSession, row: RatingSlotRow) -> set[str]:
    """Who rated the submission in that minute."""
    since = datetime.fromtimestamp(row.slot * SLOT_S, UTC)
    until = since + timedelta(seconds=SLOT_S)
    found = await records.within(session, row.submission_id, since, until)
    return {one.user_key for one in found if one.competition == row.competition}
