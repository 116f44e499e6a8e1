"""A season's document: the final ranking of a frozen competition as canonical bytes.

    {"competition": {…}, "standings": [{"rank": 1, "submission_id": …, "score": "0.636578", …}, …]}

The same ratings give the same bytes: keys are sorted, numbers are decimal strings of six places, and every sum is of
whole numbers or in a fixed order (ranking/strengths/bradley_terry.py). The document has a schema of its own, so that a new
field of ``Competition`` changes no season. To change the schema, add another one, write its number as ``schema`` into
the document, and keep the others: a season is always recomputed by the schema that it was frozen with.

    1   intervals for one look at one submission; does not name its schema
    2   intervals that hold at every look and for all submissions together, as the board shows them
    3   the same, of a competition whose duels count: with the rule of duels, each one's number, and what style adds
    4   as 2, ranked by each user's first vote on a submission, whose counts are in it too; 1 to 3 take the latest one
    5   as 3, by first votes
    6   as 5, without duels in bursts, and with those that an admin had allowed; 3 and 5 know neither
    7   as 4, or as 6 where duels count, with each battle's first vote in place of the latest one, with the first votes of ratings
        that were withdrawn, and without the rule devoted_user where only one developer was rated
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from guanaco.competitions import Competition
from guanaco.leaderboard import SubmissionMetrics
from guanaco_server.feedback.records import RecordedRating
from guanaco_server.leaderboard.counting.votes import (
    first_votes_of,
    in_window,
    votes_of,
    window_of,
)
from guanaco_server.leaderboard.flags.rules import (
    BASELINE_SLOTS,
    Owner,
    flags_of_user,
    is_burst,
    is_contested,
    least_burst,
    slot_of,
)
from guanaco_server.leaderboard.ranking.duels.duel_table import NO_DUELS, DuelVotes
from guanaco_server.leaderboard.ranking.duels.style import TERMS
from guanaco_server.leaderboard.ranking.estimators import proportion
from guanaco_server.leaderboard.ranking.rules import (
    Standing,
    VotesByUser,
    compares_users,
    standings,
)
from guanaco_server.leaderboard.ranking.strengths import bradley_terry
from guanaco_server.leaderboard.ranking.strengths.influence import RankedVotes
from guanaco_server.statistics.votes import VoteCount

SCHEMA = 7
FOR_ONE_LOOK = 1
SCHEMAS = (1, 2, 3, 4, 5, 6, 7)
WITH_DUELS = (3, 5, 6)
BY_FIRST_VOTES = (4, 5, 6, 7)
WITH_WITHDRAWN = (7,)

NONE = VoteCount(0, 0)
AllowedFlags = Collection[tuple[str, str]]  # (rating, rule)


class _EntryV1(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    max_parameters: int | None
    per_developer: int | None
    submitted_within: bool


class _AssignmentV1(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    kind: str
    newest_until: int
    recency_floor: float
    weights: dict[str, float]
    seed: int | None


class _CompetitionV1(BaseModel):
    """The fields of a competition in schema 1. Never add one: see the module's docstring."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    name: str
    starts_at: datetime
    ends_at: datetime | None
    frozen_at: datetime | None
    entry: _EntryV1
    assignment: _AssignmentV1
    ranking: str


@dataclass(frozen=True)
class SeasonEntry:
    """A submission's line in the document. Without arguments: a submission without a vote."""

    rank: int | None = None
    score: float | None = None
    low: float | None = None
    high: float | None = None
    up: int = 0
    down: int = 0

    def with_votes(self, metrics: SubmissionMetrics) -> SubmissionMetrics:
        """Return the metrics with the season's votes. The others are about conversations, which a freeze does not end."""
        ratio = proportion(self.up, self.up + self.down)
        return metrics.model_copy(
            update={
                "thumbs_up": self.up,
                "thumbs_down": self.down,
                "thumbs_up_ratio": ratio.value if ratio else None,
                "interval_low": ratio.low if ratio else None,
                "interval_high": ratio.high if ratio else None,
            }
        )


NO_VOTES = SeasonEntry()


def schema_of(document: bytes) -> int:
    """Return the schema that a document was written by."""
    schema: int = json.loads(document).get("schema", 1)
    return schema


def takes_duels(competition: Competition, schema: int) -> bool:
    """Tell whether a season's document has duels; up to 6 the schema says so, for each number is with or without them."""
    return schema in WITH_DUELS or (schema == SCHEMA and competition.duels.counted)


def read_entries(document: bytes) -> dict[str, SeasonEntry]:
    """Read the lines by submission. Fields that a newer version has added are ignored."""
    return {
        line["submission_id"]: SeasonEntry(
            rank=line["rank"],
            score=float(line["score"]),
            low=float(line["low"]),
            high=float(line["high"]),
            up=line["thumbs_up"],
            down=line["thumbs_down"],
        )
        for line in json.loads(document)["standings"]
    }


def final_ranking(
    competition: Competition,
    ratings: Collection[RecordedRating],
    owners: Mapping[str, Owner],
    allowed: AllowedFlags,
    schema: int = SCHEMA,
    duels: DuelVotes = NO_DUELS,
) -> bytes:
    """Rank a frozen competition by its rule.

    Args:
        competition: The competition, with the moment of its freeze.
        ratings: All ratings that were recorded in it, with those that were withdrawn for the schemas ``WITH_WITHDRAWN``.
        owners: The owner of each submission.
        allowed: The flags that an admin had allowed before the freeze.
        schema: One of ``SCHEMAS``.
        duels: The duels that count, where the document ``takes_duels``.

    Returns:
        The document.
    """
    counted = counted_votes(competition, ratings, owners, allowed, schema)
    is_first = schema in BY_FIRST_VOTES
    votes = [(one.user, one.submission_id, one.up(is_first=is_first)) for one in counted]
    counts = _counts(votes)
    latest = _counts(
        [
            (one.user, one.submission_id, one.latest_up)
            for one in counted
            if one.latest_up is not None
        ]
    )
    by_user = VotesByUser(votes)
    strengths = (
        duels.fit(by_user, by_user.comparing())(by_user.comparable(), len(by_user.ids))
        if duels.total and compares_users(competition.ranking)
        else None
    )
    found = standings(
        competition.ranking,
        counts,
        by_user.ids,
        by_user.comparable(),
        is_for_one_look=schema == FOR_ONE_LOOK,
        fit=bradley_terry.fit if strengths is None else lambda _votes, _size: strengths,
    )
    content: dict[str, object] = {} if schema == 1 else {"schema": schema}
    content |= {
        "competition": _CompetitionV1.model_validate(competition).model_dump(mode="json"),
        "standings": [
            _line(
                one,
                latest.get(one.submission_id, NONE),
                owners,
                counts.get(one.submission_id, NONE) if is_first else None,
            )
            for one in found
        ],
    }
    if takes_duels(competition, schema):
        content["duels"] = _duel_lines(competition, duels, strengths)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def ballots_of(
    competition: Competition,
    ratings: Collection[RecordedRating],
    owners: Mapping[str, Owner],
    allowed: AllowedFlags,
    schema: int,
    duels: DuelVotes,
) -> RankedVotes:
    """Return the votes that ``final_ranking`` ranks, of the same arguments."""
    is_first = schema in BY_FIRST_VOTES
    votes = [
        (one.user, one.submission_id, one.up(is_first=is_first))
        for one in counted_votes(competition, ratings, owners, allowed, schema)
    ]
    return RankedVotes.of(competition.ranking, votes, duels)


@dataclass(frozen=True)
class CountedVote:
    """A user's vote on a submission: by the latest rating, if it is not withdrawn, and by the first one as it was given."""

    user: str
    submission_id: str
    latest_up: bool | None
    first_up: bool

    def up(self, *, is_first: bool) -> bool:
        return self.first_up if is_first or self.latest_up is None else self.latest_up


def counted_votes(
    competition: Competition,
    ratings: Collection[RecordedRating],
    owners: Mapping[str, Owner],
    allowed: AllowedFlags,
    schema: int = SCHEMA,
) -> list[CountedVote]:
    """Return the votes sorted by submission and user, so that indexes are the same every time."""
    within = in_window(ratings, {competition.id: window_of(competition)})
    bursts = _bursts(within)
    is_old = schema not in WITH_WITHDRAWN
    is_alone = not is_old and not is_contested({one.submission_id for one in within}, owners)
    groups: defaultdict[str, list[RecordedRating]] = defaultdict(list)
    for rating in within:
        groups[rating.user_key].append(rating)
    found = []
    for user, group in groups.items():
        left_out = {
            flag.feedback_id
            for flag in flags_of_user(group, owners, bursts, is_alone=is_alone, by_latest=is_old)
            if (flag.feedback_id, flag.rule.value) not in allowed
        }
        votes = votes_of(group, left_out)
        found += [
            CountedVote(
                user,
                submission,
                votes[submission].thumbs_up if submission in votes else None,
                first.first_up,
            )
            for submission, first in first_votes_of(group, left_out).items()
        ]
    return sorted(found, key=lambda vote: (vote.submission_id, vote.user))


def _counts(votes: Collection[tuple[str, str, bool]]) -> dict[str, VoteCount]:
    ups: Counter[str] = Counter()
    downs: Counter[str] = Counter()
    for _, submission_id, thumbs_up in votes:
        (ups if thumbs_up else downs)[submission_id] += 1
    return {one: VoteCount(ups[one], downs[one]) for one in sorted(ups.keys() | downs.keys())}


def _bursts(ratings: Collection[RecordedRating]) -> dict[tuple[str, int], int]:
    """Return the ratings of each (submission, slot) that is a burst."""
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


def _line(
    standing: Standing, count: VoteCount, owners: Mapping[str, Owner], firsts: VoteCount | None
) -> dict[str, object]:
    """Write a line; ``firsts`` are the first votes, by which it is ranked, of a schema that has them."""
    score = standing.score
    first = {} if firsts is None else {"first_up": firsts.up, "first_down": firsts.down}
    return first | {
        "rank": standing.rank,
        "submission_id": standing.submission_id,
        "developer": owners[standing.submission_id].developer,
        "thumbs_up": count.up,
        "thumbs_down": count.down,
        "score": _decimal(score.value),
        "low": _decimal(score.low),
        "high": _decimal(score.high),
    }


def _duel_lines(
    competition: Competition, duels: DuelVotes, strengths: bradley_terry.Strengths | None
) -> dict[str, object]:
    """Say by which rule duels count, how many each submission had, and what a term of style adds to the log odds."""
    effects = (
        zip(TERMS, strengths.effects, strengths.effect_errors, strict=False) if strengths else ()
    )
    return {
        "style_control": competition.duels.style_control,
        "counted": duels.total,
        "by_submission": dict(duels.counts()),
        "style": {
            name: {"effect": _decimal(effect), "error": _decimal(error)}
            for name, effect, error in effects
        },
    }


def _decimal(value: float) -> str:
    """Write six places, and never a negative zero."""
    return f"{round(value, 6) + 0.0:.6f}"
