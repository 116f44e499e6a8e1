"""Frozen competitions: their final ranking, from the recorded ratings, as canonical bytes.

    freeze: the competition takes no more (one transaction) ─▶ rank what came before that moment ─▶ store the bytes

Freezing waits for ratings that are being recorded, and later ones have a later time: so the same ratings are found
whenever they are ranked again. Numbers are decimal strings of six places, keys are sorted, and every sum is of whole
numbers or in a fixed order (bradley_terry.py): the same ratings give the same bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime

from guanaco.competitions import Competition
from guanaco.errors import SeasonNotFound
from guanaco.leaderboard import Season, SeasonCheck
from guanaco_server.accounts.audit import Actor
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.feedback import records
from guanaco_server.feedback.records import RecordedRating
from guanaco_server.leaderboard import flag_queries, ranking, standing_queries
from guanaco_server.leaderboard.ballots import BallotBox
from guanaco_server.leaderboard.flags import (
    BASELINE_SLOTS,
    Owner,
    flags_of_user,
    is_burst,
    least_burst,
    slot_of,
)
from guanaco_server.leaderboard.ranking import Count, Standing
from guanaco_server.leaderboard.tables import SeasonRow
from guanaco_server.leaderboard.votes import in_time, votes_of, window_of
from guanaco_server.submissions.service import SubmissionService

Allowed = Collection[tuple[str, str]]  # (rating, rule)


class SeasonService:
    def __init__(
        self, database: Database, submissions: SubmissionService, competitions: CompetitionService
    ) -> None:
        self._database = database
        self._submissions = submissions
        self._competitions = competitions

    async def freeze(self, competition_id: str, by: Actor) -> Season:
        """The final ranking; the same when it is frozen already."""
        competition = await self._competitions.freeze(competition_id, by)
        assert competition.frozen_at is not None
        async with self._database.read() as session:
            known = await standing_queries.season(session, competition_id)
        if known is None:
            content = await self._rank(competition, competition.frozen_at)
            sha256 = hashlib.sha256(content).hexdigest()
            async with self._database.write() as session:
                known = await standing_queries.keep_season(
                    session, competition_id, competition.frozen_at, content, sha256
                )
        return _read(known)

    async def find(self, competition_id: str) -> Season:
        """SeasonNotFound when it is not frozen."""
        await self._competitions.find(competition_id)
        async with self._database.read() as session:
            row = await standing_queries.season(session, competition_id)
        if row is None:
            raise SeasonNotFound(competition_id)
        return _read(row)

    async def recompute(self, competition_id: str) -> SeasonCheck:
        """Rank anew from what is recorded, and compare. It changes nothing."""
        season = await self.find(competition_id)
        competition = await self._competitions.find(competition_id)
        content = await self._rank(competition, season.frozen_at)
        sha256 = hashlib.sha256(content).hexdigest()
        return SeasonCheck(
            competition=competition_id,
            sha256=season.sha256,
            recomputed_sha256=sha256,
            is_same=content == season.ranking.encode() and sha256 == season.sha256,
        )

    async def _rank(self, competition: Competition, frozen_at: datetime) -> bytes:
        owners = {
            one.id: Owner(one.account_id, one.developer) for one in await self._submissions.briefs()
        }
        async with self._database.read() as session:
            ratings = await records.of_competition(session, competition.id)
            allowed = await flag_queries.allowed(session, competition.id, frozen_at)
        return await asyncio.to_thread(final_ranking, competition, ratings, owners, allowed)


def final_ranking(
    competition: Competition,
    ratings: Collection[RecordedRating],
    owners: Mapping[str, Owner],
    allowed: Allowed,
) -> bytes:
    """Canonical JSON of the standings by the competition's rule."""
    votes = _votes(competition, ratings, owners, allowed)
    ups: Counter[str] = Counter()
    downs: Counter[str] = Counter()
    for _, submission_id, thumbs_up in votes:
        (ups if thumbs_up else downs)[submission_id] += 1
    counts = {one: Count(ups[one], downs[one]) for one in sorted(ups.keys() | downs.keys())}
    box = BallotBox(votes)
    found = ranking.standings(competition.ranking, counts, box.ids, box.ballots())
    content = {
        "competition": competition.model_dump(mode="json"),
        "standings": [_entry(one, counts[one.submission_id], owners) for one in found],
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def _votes(
    competition: Competition,
    ratings: Collection[RecordedRating],
    owners: Mapping[str, Owner],
    allowed: Allowed,
) -> list[tuple[str, str, bool]]:
    """(user, submission, thumbs up), ordered by submission and user, so that ids get the same indexes every time."""
    within = in_time(ratings, {competition.id: window_of(competition)})
    bursts = _bursts(within)
    groups: defaultdict[str, list[RecordedRating]] = defaultdict(list)
    for rating in within:
        groups[rating.user_key].append(rating)
    found = []
    for user, group in groups.items():
        left_out = {
            flag.feedback_id
            for flag in flags_of_user(group, owners, bursts)
            if (flag.feedback_id, flag.rule.value) not in allowed
        }
        votes = votes_of(group, left_out)
        found += [(user, submission, vote.thumbs_up) for submission, vote in votes.items()]
    return sorted(found, key=lambda vote: (vote[1], vote[0]))


def _bursts(ratings: Collection[RecordedRating]) -> dict[tuple[str, int], int]:
    slots: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for rating in ratings:
        slots[slot_of(rating)][rating.submission_id] += 1
    found = {}
    for slot, counts in slots.items():
        for submission_id, count in counts.items():
            if count <= least_burst():
                continue
            others = [other for one, other in counts.items() if one != submission_id]
            before = range(slot - BASELINE_SLOTS, slot)
            hour = sum(slots[one][submission_id] for one in before if one in slots)
            if is_burst(count, hour, others):
                found[submission_id, slot] = count
    return found


def _entry(standing: Standing, count: Count, owners: Mapping[str, Owner]) -> dict[str, object]:
    score = standing.score
    return {
        "rank": standing.rank,
        "submission_id": standing.submission_id,
        "developer": owners[standing.submission_id].developer,
        "thumbs_up": count.up,
        "thumbs_down": count.down,
        "score": _decimal(score.value),
        "low": _decimal(score.low),
        "high": _decimal(score.high),
    }


def _decimal(value: float) -> str:
    """Six places; there is no negative zero."""
    return f"{round(value, 6) + 0.0:.6f}"


def _read(row: SeasonRow) -> Season:
    return Season(
        competition=row.competition,
        frozen_at=row.frozen_at,
        sha256=row.sha256,
        ranking=row.ranking.decode(),
    )
