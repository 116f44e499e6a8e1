"""The rules that leave ratings out of the votes.

    own_account   the backend that had the chat is the submission's own account
    devoted_user  the user rated often, always thumbs up, and only one of several developers' submissions
    burst         a submission got more ratings in a minute than its past hour, or the others' minute, makes likely

A rule depends on the recorded ratings alone, neither on the clock nor on the order of arrival. So ratings that are
counted again are flagged alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache

from guanaco_server.feedback.records import RecordedRating

DEVOTED_RATINGS = 20  # with two developers who get half of the users each: by chance 1 in 2^19
SLOT_S = 60
BASELINE_SLOTS = 60
BASELINE_FLOOR = 10.0  # ratings a minute that need no explanation
UNEVENNESS = 2.0  # routing may give one submission twice what the others get
BURST_ODDS = 1e-9  # a million submission-minutes give a false alarm with a chance of 1 in 1,000


class Rule(StrEnum):
    OWN_ACCOUNT = "own_account"
    DEVOTED_USER = "devoted_user"
    BURST = "burst"


@dataclass(frozen=True)
class Owner:
    """The account and the developer that a submission belongs to."""

    account_id: str
    developer: str


@dataclass(frozen=True)
class Flag:
    feedback_id: str
    rule: Rule
    evidence: str


def slot_of(rating: RecordedRating) -> int:
    return slot_at(rating.at)


def slot_at(at: datetime) -> int:
    return int(at.timestamp() // SLOT_S)


def times_of(slot: int) -> tuple[datetime, datetime]:
    """Return the first moment of a slot, and the first one after it."""
    since = datetime.fromtimestamp(slot * SLOT_S, UTC)
    return since, since + timedelta(seconds=SLOT_S)


def flags_of_user(
    ratings: Sequence[RecordedRating],
    owners: Mapping[str, Owner],
    bursts: Mapping[tuple[str, int], int],
    *,
    is_alone: bool,
    by_latest: bool = False,
) -> Iterator[Flag]:
    """Yield the flags of one user's ratings in one competition.

    Args:
        ratings: All ratings that the user gave in the competition.
        owners: The owner of each submission.
        bursts: The number of ratings in each (submission, slot) that is a burst.
        is_alone: Only one developer has ratings in the competition, whom everybody rates alone.
        by_latest: Thumbs are those that ratings were changed to, as in seasons up to schema 6.
    """
    for rating in ratings:
        if rating.account_id == owners[rating.submission_id].account_id:
            yield Flag(rating.id, Rule.OWN_ACCOUNT, "The submission's own account had this chat.")
        if count := bursts.get((rating.submission_id, slot_of(rating))):
            evidence = f"One of {count} ratings of the submission within a minute."
            yield Flag(rating.id, Rule.BURST, evidence)
    developers = {owners[rating.submission_id].developer for rating in ratings}
    thumbs = (one.thumbs_up if by_latest else one.first_up for one in ratings)
    is_devoted = not is_alone and len(developers) == 1 and all(thumbs)
    if is_devoted and len(ratings) >= DEVOTED_RATINGS:
        evidence = f"All {len(ratings)} ratings of this user are thumbs up for {developers.pop()}."
        yield from (Flag(rating.id, Rule.DEVOTED_USER, evidence) for rating in ratings)


def is_contested(rated: Collection[str], owners: Mapping[str, Owner]) -> bool:
    """Tell whether at least two developers have one of the submissions that were rated."""
    return len({owners[one].developer for one in rated if one in owners}) > 1


def least_burst() -> int:
    """Return a number of ratings that no burst can be smaller than, which saves a closer look."""
    return _bound(BASELINE_FLOOR)


def is_rush_of_all(ratings: int, others: Collection[int]) -> bool:
    """Tell whether the ratings of the ``others`` in the same minute explain a submission's ratings.

    Users do not choose whom they talk to, so a rush reaches all submissions.
    """
    return ratings <= _bound(max(BASELINE_FLOOR, _typical(others)))


def is_burst(ratings: int, hour_before: int, others: Collection[int]) -> bool:
    """Tell whether a minute is a burst; ``hour_before`` counts the submission's ratings in the BASELINE_SLOTS before."""
    usual = hour_before / BASELINE_SLOTS
    return ratings > _bound(max(BASELINE_FLOOR, _typical(others), usual))


def _typical(others: Collection[int]) -> float:
    return UNEVENNESS * sum(others) / len(others) if others else 0.0


@lru_cache(maxsize=10_000)
def _bound(expected: float) -> int:
    """Return the least number that a Poisson variable reaches with a chance of at most BURST_ODDS.

    By its Chernoff bound, P(X ≥ k) ≤ exp(k - λ - k·ln(k/λ)) for k > λ (Mitzenmacher and Upfal, "Probability and
    Computing", theorem 5.4).
    """
    wanted = math.log(BURST_ODDS)
    k = math.ceil(expected)
    while k - expected - k * math.log(k / expected) > wanted:
        k += 1
    return k
