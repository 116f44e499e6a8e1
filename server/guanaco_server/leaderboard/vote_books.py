"""Counts votes: of each user with a new rating all votes anew, and enters the difference to those that she had."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.feedback import records
from guanaco_server.feedback.records import RecordedRating
from guanaco_server.leaderboard import flag_queries, queries
from guanaco_server.leaderboard.burst_books import SlotKey, users_of_changed_bursts
from guanaco_server.leaderboard.flags import Flag, Owner, flags_of_user, slot_of
from guanaco_server.leaderboard.ledger import Ledger
from guanaco_server.leaderboard.tables import VoteFlagRow, VoteRow
from guanaco_server.leaderboard.tally import Tally
from guanaco_server.leaderboard.votes import Window, in_time, votes_of

UP, DOWN = Tally({"up": 1}), Tally({"down": 1})

Group = tuple[str, str]  # competition, user


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
    slots = slots_of(ratings, around.windows)
    await queries.add_to_slots(session, slots)
    touched = {one.user_key for one in ratings} | reopened.users
    touched |= await users_of_changed_bursts(session, slots.keys() | reopened.slots)
    if not touched:
        return
    recorded = await records.of_users(session, touched)
    groups: defaultdict[Group, list[RecordedRating]] = defaultdict(list)
    for rating in in_time(recorded, around.windows):
        groups[rating.competition, rating.user_key].append(rating)
    left_out = await _left_out(session, recorded, groups.values(), around)
    known: defaultdict[Group, dict[str, bool]] = defaultdict(dict)
    for user, competition, submission, thumbs_up in await queries.votes(session, touched):
        known[competition, user][submission] = thumbs_up
    rows: list[queries.Row] = []
    for group in groups.keys() | known.keys():
        votes = votes_of(groups.get(group, ()), left_out)
        now = {submission: vote.thumbs_up for submission, vote in votes.items()}
        gone = _enter(group, known.get(group, {}), now, ledger, rows)
        await _drop(session, group, gone)
    await queries.put(session, VoteRow, rows)


def slots_of(ratings: Iterable[RecordedRating], windows: Mapping[str, Window]) -> Counter[SlotKey]:
    return Counter(
        (one.submission_id, one.competition, slot_of(one)) for one in in_time(ratings, windows)
    )


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
                "user_key": user,
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
                VoteRow.user_key == user,
                VoteRow.competition == competition,
                VoteRow.submission_id == submission,
            )
        )


async def _left_out(
    session: AsyncSession,
    recorded: Collection[RecordedRating],
    groups: Collection[Sequence[RecordedRating]],
    around: Circumstances,
) -> set[str]:
    """Of all that was recorded of some users, in the groups what is under a flag that no admin has allowed.

    The audit trail says so from now on; flags of what is in no group any more are lifted.
    """
    bursts: defaultdict[str, dict[tuple[str, int], int]] = defaultdict(dict)
    for slot in await queries.bursts(session):
        bursts[slot.competition][slot.submission_id, slot.slot] = slot.ratings
    ratings = {one.id: one for one in recorded}
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
