"""Finds the bursts that new ratings have begun or ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import islice

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.feedback import records
from guanaco_server.leaderboard.flags import queries
from guanaco_server.leaderboard.flags.rules import (
    BASELINE_SLOTS,
    is_burst,
    is_rush_of_all,
    least_burst,
    times_of,
)
from guanaco_server.leaderboard.tables import RatingSlotRow

SLOTS_AT_ONCE = 1_000  # in one statement

SlotKey = tuple[str, str, int]  # submission, competition, slot


async def users_of_changed_bursts(session: AsyncSession, slots: Collection[SlotKey]) -> set[str]:
    """Decide again about these slots and those up to an hour later; return the users who rated in one that changed."""
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
    counts = await _ratings_by_slot(session, large)
    for row in large:
        found = await _is_burst(session, row, counts[row.competition, row.slot])
        if found or row.is_burst:  # a burst that grows concerns more users
            row.is_burst = found
            users |= await _users(session, row)
    await session.flush()
    return users


async def _ratings_by_slot(
    session: AsyncSession, large: Iterable[RatingSlotRow]
) -> dict[tuple[str, int], dict[str, int]]:
    """Return the ratings by submission of each (competition, slot) in which some submission has many."""
    wanted: defaultdict[str, set[int]] = defaultdict(set)
    for row in large:
        wanted[row.competition].add(row.slot)
    found: defaultdict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    for competition, slots in wanted.items():
        waiting = iter(slots)
        while some := tuple(islice(waiting, SLOTS_AT_ONCE)):
            for submission, slot, count in await queries.ratings_by_slot(
                session, competition, some
            ):
                found[competition, slot][submission] = count
    return found


async def _is_burst(session: AsyncSession, row: RatingSlotRow, in_slot: dict[str, int]) -> bool:
    others = [count for submission, count in in_slot.items() if submission != row.submission_id]
    if is_rush_of_all(row.ratings, others):
        return False
    hour_before = await queries.ratings_within(
        session, row.submission_id, row.competition, row.slot - BASELINE_SLOTS, row.slot - 1
    )
    return is_burst(row.ratings, hour_before, others)


async def _users(session: AsyncSession, row: RatingSlotRow) -> set[str]:
    """Return the users who rated the submission in that minute."""
    times = times_of(row.slot)
    found = await records.within(session, row.submission_id, *times)
    found += await records.withdrawn_of_submission(session, row.submission_id, *times)
    return {one.user_key for one in found if one.competition == row.competition}
