"""Counts votes: of each user with a new rating all votes anew, and enters the difference to those that she had."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.feedback import records
from guanaco_server.feedback.records import RecordedRating
from guanaco_server.leaderboard import flag_queries, queries
from guanaco_server.leaderboard.flags import (
    BASELINE_SLOTS,
    SLOT_S,
    Flag,
    Owner,
    burst_slots,
    flags_of_user,
    least_burst,
    slot_of,
)
from guanaco_server.leaderboard.ledger import Ledger
from guanaco_server.leaderboard.tables import VoteFlagRow, VoteRow
from guanaco_server.leaderboard.tally import Tally
from guanaco_server.leaderboard.votes import Window, votes_of

UP, DOWN = Tally({"up": 1}), Tally({"down": 1})

Group = tuple[str, str]  # competition, user
SlotKey = tuple[str, str, int]  # submission, competition, slot


@dataclass(frozen=True)
class Circumstances:
    """What the rules need to know beside the ratings."""

    owners: Mapping[str, Owner]
    windows: Mapping[str, Window]
    now: datetime


@dataclass(frozen=True)
class Reopened:
    """What is counted anew without a new rating: users' votes, and slots."""

    users: set[str] = field(default_factory=set)
    slots: set[SlotKey] = field(default_factory=set)


async def count_votes(
    session: AsyncSession,
    ratings: Collection[RecordedRating],
    reopened: Reopened,
    around: Circumstances,
    ledger: Ledger,
) -> None:
    """``ratings`` are the new ones."""
    slots = Counter(slot_key(one) for one in ratings)
    await queries.add_to_slots(session, slots)
    touched = {one.user_id for one in ratings} | reopened.users
    touched |= await _users_of_changed_bursts(session, slots.keys() | reopened.slots)
    if not touched:
        return
    groups: defaultdict[Group, list[RecordedRating]] = defaultdict(list)
    for rating in await records.of_users(session, touched):
        groups[rating.competition, rating.user_id].append(rating)
    left_out = await _left_out(session, groups.values(), around)
    known: defaultdict[Group, dict[str, bool]] = defaultdict(dict)
    for row in await queries.votes(session, touched):
        known[row.competition, row.user_id][row.submission_id] = row.thumbs_up
    rows: list[queries.Row] = []
    for group in groups.keys() | known.keys():
        window = around.windows.get(group[0])
        votes = votes_of(groups.get(group, ()), left_out, window) if window else {}
        now = {submission: vote.thumbs_up for submission, vote in votes.items()}
        gone = _enter(group, known.get(group, {}), now, ledger, rows)
        await _drop(session, group, gone)
    await queries.put(session, VoteRow, rows)


def slot_key(rating: RecordedRating) -> SlotKey:
    return rating.submission_id, rating.competition, slot_of(rating)


def _enter(
    group: Group,
    before: Mapping[str, bool],
    now: dict[str, bool],
    ledger: Ledger,
    rows: list[queries.Row],
) -> list[str]:
    """The submissions on which the user has no vote any more."""
    competition, user = group
    ledger.ballots[group] = now
    for submission, thumbs_up in now.items():
        if before.get(submission) is thumbs_up:
            continue
        rows.append(
            {
                "user_id": user,
                "competition": competition,
                "submission_id": submission,
                "thumbs_up": thumbs_up,
            }
        )
    for submission in before.keys() | now.keys():
        old, new = before.get(submission), now.get(submission)
        if old is not new:
            key = (competition, submission)
            ledger.replace(key, _tally(old), _tally(new))
            ledger.votes[key] += (new is not None) - (old is not None)
    return [submission for submission in before if submission not in now]


def _tally(thumbs_up: bool | None) -> Tally | None:
    return None if thumbs_up is None else UP if thumbs_up else DOWN


async def _drop(session: AsyncSession, group: Group, submissions: Sequence[str]) -> None:
    competition, user = group
    for submission in submissions:
        await session.execute(
            delete(VoteRow).where(
                VoteRow.user_id == user,
                VoteRow.competition == competition,
                VoteRow.submission_id == submission,
            )
        )


async def _users_of_changed_bursts(session: AsyncSession, slots: Collection[SlotKey]) -> set[str]:
    """Decide anew about the slots that new ratings are in or shortly before; those who rated in one that changed."""
    if not slots:
        return set()
    numbers = [slot for _, _, slot in slots]
    touched = {(submission, competition) for submission, competition, _ in slots}
    users: set[str] = set()
    session.expunge_all()
    for row in await queries.large_slots(
        session, min(numbers), max(numbers) + BASELINE_SLOTS, least_burst()
    ):
        if (row.submission_id, row.competition) not in touched:
            continue
        counts = await queries.slot_counts(
            session, row.submission_id, row.competition, row.slot - BASELINE_SLOTS, row.slot
        )
        is_burst = row.slot in burst_slots(counts, [row.slot])
        if is_burst or row.is_burst:  # also a burst that grows, for who came late
            row.is_burst = is_burst
            since = datetime.fromtimestamp(row.slot * SLOT_S, UTC)
            until = since + timedelta(seconds=SLOT_S)
            found = await records.within(session, row.submission_id, since, until)
            users |= {one.user_id for one in found if one.competition == row.competition}
    await session.flush()
    return users


async def _left_out(
    session: AsyncSession, groups: Collection[Sequence[RecordedRating]], around: Circumstances
) -> set[str]:
    """The ratings under a flag that no admin has allowed; the audit trail says so from now on."""
    bursts: defaultdict[str, dict[tuple[str, int], int]] = defaultdict(dict)
    for slot in await queries.bursts(session):
        bursts[slot.competition][slot.submission_id, slot.slot] = slot.ratings
    ratings = {one.id: one for group in groups for one in group}
    known = {
        (row.feedback_id, row.rule): row for row in await flag_queries.of_ratings(session, ratings)
    }
    found: dict[tuple[str, str], Flag] = {}
    for group in groups:
        for flag in flags_of_user(group, around.owners, bursts[group[0].competition]):
            found[flag.feedback_id, flag.rule] = flag
    for key, row in known.items():
        if key not in found:
            row.lifted_at = row.lifted_at or around.now
        else:
            row.lifted_at = None
    session.add_all(
        _flag_row(flag, ratings[flag.feedback_id], around.now)
        for key, flag in found.items()
        if key not in known
    )
    await session.flush()
    is_allowed = {key for key, row in known.items() if row.allowed_at is not None}
    return {flag.feedback_id for key, flag in found.items() if key not in is_allowed}


def _flag_row(flag: Flag, rating: RecordedRating, now: datetime) -> VoteFlagRow:
    return VoteFlagRow(
        feedback_id=flag.feedback_id,
        rule=flag.rule.value,
        submission_id=rating.submission_id,
        competition=rating.competition,
        evidence=flag.evidence,
        at=now,
    )
