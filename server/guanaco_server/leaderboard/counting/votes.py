"""Counts votes: one a user and submission, among the ratings that no rule leaves out.

The thumbs-up ratio shows the latest rating. Whatever holds at every look (ranks, verdicts, intervals) takes the first one, as it was
given: a vote that is replaced or withdrawn changes what was counted before, and no martingale allows for that. So a first vote stays
one when its rating is withdrawn, until its conversation is deleted or its user is erased. All votes of a user with a new rating are counted
again, and the difference from the user's stored votes is entered.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.competitions import Competition
from guanaco_server.database.bulk import upsert
from guanaco_server.feedback import records
from guanaco_server.feedback.records import RecordedRating
from guanaco_server.leaderboard.counting import queries
from guanaco_server.leaderboard.counting.aggregate import Aggregate, Deltas, UserKey
from guanaco_server.leaderboard.flags import queries as flag_queries
from guanaco_server.leaderboard.flags.bursts import SlotKey, users_of_changed_bursts
from guanaco_server.leaderboard.flags.rules import (
    DEVOTED_RATINGS,
    Flag,
    Owner,
    flags_of_user,
    is_contested,
    slot_of,
)
from guanaco_server.leaderboard.tables import VoteFlagRow, VoteRow, WithdrawnVoteRow
from guanaco_server.statistics.votes import VoteCount

IN_ORDER = attrgetter("at", "id")


@dataclass(frozen=True)
class Vote:
    """A user's vote on a submission: the thumb of the latest rating, and of the first one as it was given."""

    thumbs_up: bool
    first_up: bool

    def aggregate(self) -> Aggregate:
        counts = {"up" if self.thumbs_up else "down": 1}
        if self.first_up is not self.thumbs_up:
            counts["turned_up" if self.thumbs_up else "turned_down"] = 1
        return Aggregate(counts)


def first_votes(counts: Aggregate) -> VoteCount:
    """Return the first votes that an aggregate has counted."""
    turned = counts["turned_up"] - counts["turned_down"]
    up = counts["up"] - turned + counts["withdrawn_up"]
    return VoteCount(up, counts["down"] + turned + counts["withdrawn_down"])


def withdrawn_vote(first_up: bool) -> Aggregate:
    """Return what the first vote of a user counts whose ratings of the submission are all withdrawn."""
    return Aggregate({"withdrawn_up" if first_up else "withdrawn_down": 1})


@dataclass(frozen=True)
class VotingWindow:
    """A competition's ratings count from ``starts_at`` until before ``ends_at``."""

    starts_at: datetime
    ends_at: datetime | None

    def holds(self, at: datetime) -> bool:
        return self.starts_at <= at and (self.ends_at is None or at < self.ends_at)


@dataclass(frozen=True)
class VotingContext:
    """The facts beside the ratings that the rules need."""

    owners: Mapping[str, Owner]
    windows: Mapping[str, VotingWindow]
    now: datetime


@dataclass(frozen=True)
class Recount:
    """The users and rating slots to count again although they have no new rating."""

    users: set[str] = field(default_factory=set)
    slots: set[SlotKey] = field(default_factory=set)


def window_of(competition: Competition) -> VotingWindow:
    ends = [at for at in (competition.ends_at, competition.frozen_at) if at is not None]
    return VotingWindow(competition.starts_at, min(ends, default=None))


def in_window(
    ratings: Iterable[RecordedRating], windows: Mapping[str, VotingWindow]
) -> list[RecordedRating]:
    """Return the ratings within their competition's window. No vote, rule or slot sees any other rating."""
    return [
        rating
        for rating in ratings
        if rating.competition in windows and windows[rating.competition].holds(rating.at)
    ]


def votes_of(
    ratings: Iterable[RecordedRating], left_out: Collection[str]
) -> dict[str, RecordedRating]:
    """Return the rating that is the vote, by submission.

    Args:
        ratings: One user's ratings in one competition that are ``in_window``.
        left_out: The ids of the ratings that a rule leaves out.
    """
    found: dict[str, RecordedRating] = {}
    for rating in sorted(ratings, key=IN_ORDER):
        if rating.id not in left_out and not rating.is_withdrawn:
            found[rating.submission_id] = rating
    return found


def first_votes_of(
    ratings: Iterable[RecordedRating], left_out: Collection[str]
) -> dict[str, RecordedRating]:
    """Return the first rating by submission, although it may be withdrawn; otherwise as ``votes_of``."""
    found: dict[str, RecordedRating] = {}
    for rating in sorted(ratings, key=IN_ORDER):
        if rating.id not in left_out:
            found.setdefault(rating.submission_id, rating)
    return found


def slots_of(
    ratings: Iterable[RecordedRating], windows: Mapping[str, VotingWindow]
) -> Counter[SlotKey]:
    """Count the ratings in each slot."""
    return Counter(
        (rating.submission_id, rating.competition, slot_of(rating))
        for rating in in_window(ratings, windows)
    )


async def count_votes(
    session: AsyncSession,
    ratings: Collection[RecordedRating],
    recount: Recount,
    context: VotingContext,
    deltas: Deltas,
) -> None:
    """Count the votes of everybody whom new ratings or a recount concern."""
    slots = slots_of(ratings, context.windows)
    recount.users.update(await _newly_contested(session, slots, context.owners))
    await flag_queries.add_to_slots(session, slots)
    users = {rating.user_key for rating in ratings} | recount.users
    users |= await users_of_changed_bursts(session, slots.keys() | recount.slots)
    if not users:
        return
    recorded = await records.of_users(session, users)
    recorded += await records.withdrawn_by_users(session, users)
    groups: defaultdict[UserKey, list[RecordedRating]] = defaultdict(list)
    for rating in in_window(recorded, context.windows):
        groups[rating.competition, rating.user_key].append(rating)
    left_out = await _flag(session, recorded, groups.values(), context)
    known: defaultdict[UserKey, dict[str, Vote]] = defaultdict(dict)
    for user, competition, submission, thumbs_up, first_up in await queries.votes(session, users):
        first = thumbs_up if first_up is None else first_up
        known[competition, user][submission] = Vote(thumbs_up, first)
    withdrawn: defaultdict[UserKey, dict[str, bool]] = defaultdict(dict)
    for user, competition, submission, first_up in await queries.withdrawn_votes(session, users):
        withdrawn[competition, user][submission] = first_up
    rows: list[dict[str, object]] = []
    withdrawn_rows: list[dict[str, object]] = []
    for key in groups.keys() | known.keys() | withdrawn.keys():
        votes = votes_of(groups.get(key, ()), left_out)
        firsts = first_votes_of(groups.get(key, ()), left_out)
        deltas.votes[key] = {submission: one.first_up for submission, one in firsts.items()}
        now = {
            submission: Vote(vote.thumbs_up, firsts[submission].first_up)
            for submission, vote in votes.items()
        }
        gone = _enter(key, known.get(key, {}), now, deltas, rows)
        await queries.drop_votes(session, key, gone)
        alone = {name: one.first_up for name, one in firsts.items() if name not in votes}
        gone = _enter_withdrawn(key, withdrawn.get(key, {}), alone, deltas, withdrawn_rows)
        await queries.drop_votes(session, key, gone, WithdrawnVoteRow)
    await upsert(session, VoteRow, rows)
    await upsert(session, WithdrawnVoteRow, withdrawn_rows)


async def _newly_contested(
    session: AsyncSession, slots: Iterable[SlotKey], owners: Mapping[str, Owner]
) -> set[str]:
    """Return the users who may be devoted to the only developer of a competition, in which another one is rated now."""
    rated: defaultdict[str, set[str]] = defaultdict(set)
    for submission, competition, _ in slots:
        rated[competition].add(submission)
    users: set[str] = set()
    for competition, new in rated.items():
        before = await queries.rated_in(session, competition)
        if is_contested(before | new, owners) and before and not is_contested(before, owners):
            users |= await records.frequent_users(session, competition, DEVOTED_RATINGS)
    return users


def _enter_withdrawn(
    key: UserKey,
    before: Mapping[str, bool],
    now: Mapping[str, bool],
    deltas: Deltas,
    rows: list[dict[str, object]],
) -> list[str]:
    """Enter the difference of the first votes that are withdrawn, and return the submissions on which there is none any more."""
    competition, user = key
    for submission in before.keys() | now.keys():
        old, new = before.get(submission), now.get(submission)
        if old is new:
            continue
        deltas.replace(
            (competition, submission),
            None if old is None else withdrawn_vote(old),
            None if new is None else withdrawn_vote(new),
        )
        if new is not None:
            rows.append(
                {
                    "user_key": user,
                    "competition": competition,
                    "submission_id": submission,
                    "first_up": new,
                }
            )
    return [submission for submission in before if submission not in now]


def _enter(
    key: UserKey,
    before: Mapping[str, Vote],
    now: dict[str, Vote],
    deltas: Deltas,
    rows: list[dict[str, object]],
) -> list[str]:
    """Enter the difference, and return the submissions on which the user has no vote any more."""
    competition, user = key
    for submission in before.keys() | now.keys():
        old, new = before.get(submission), now.get(submission)
        if old == new:
            continue
        deltas.replace(
            (competition, submission),
            old.aggregate() if old else None,
            new.aggregate() if new else None,
        )
        if new is not None:
            rows.append(
                {
                    "user_key": user,
                    "competition": competition,
                    "submission_id": submission,
                    "thumbs_up": new.thumbs_up,
                    "first_up": new.first_up,
                }
            )
    return [submission for submission in before if submission not in now]


async def _flag(
    session: AsyncSession,
    recorded: Collection[RecordedRating],
    groups: Collection[Sequence[RecordedRating]],
    context: VotingContext,
) -> set[str]:
    """Update the audit trail, and return the ratings in ``groups`` that a rule leaves out and no admin has allowed.

    Args:
        recorded: All ratings of some users. A flag of one that is in no group is lifted.
        groups: Those within their competition's window, by user and competition.
    """
    bursts: defaultdict[str, dict[tuple[str, int], int]] = defaultdict(dict)
    for slot in await flag_queries.bursts(session):
        bursts[slot.competition][slot.submission_id, slot.slot] = slot.ratings
    ratings = {rating.id: rating for rating in recorded}
    known = {
        (row.feedback_id, row.rule): row for row in await flag_queries.of_ratings(session, ratings)
    }
    found: dict[tuple[str, str], Flag] = {}
    rated: defaultdict[str, set[str]] = defaultdict(set)
    for group in groups:
        rated[group[0].competition].update(one.submission_id for one in group)
    alone = {
        competition
        for competition, new in rated.items()
        if not is_contested(new | await queries.rated_in(session, competition), context.owners)
    }
    for group in groups:
        competition = group[0].competition
        is_alone = competition in alone
        for flag in flags_of_user(group, context.owners, bursts[competition], is_alone=is_alone):
            found[flag.feedback_id, flag.rule] = flag
    for key, row in known.items():
        row.lifted_at = None if key in found else row.lifted_at or context.now
    session.add_all(
        _flag_row(flag, ratings[flag.feedback_id], context.now)
        for key, flag in found.items()
        if key not in known
    )
    await session.flush()
    allowed = {key for key, row in known.items() if row.allowed_at is not None}
    return {flag.feedback_id for key, flag in found.items() if key not in allowed}


def _flag_row(flag: Flag, rating: RecordedRating, now: datetime) -> VoteFlagRow:
    return VoteFlagRow(
        feedback_id=flag.feedback_id,
        rule=flag.rule.value,
        submission_id=rating.submission_id,
        competition=rating.competition,
        evidence=flag.evidence,
        at=now,
    )
