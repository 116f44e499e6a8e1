"""Which ratings are left out of the votes, by rules that depend on the recorded ratings alone.

    own_account   the backend that talked is the submission's own account
    devoted_user  a user who rated often, always thumbs up, and one developer's submissions only
    burst         more ratings of a submission in a minute than its past hour, or the others' minute, makes likely

Nothing but the ratings themselves goes into a rule, neither the clock nor the order of arrival, so that ratings
counted anew are flagged alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from guanaco_server.feedback.records import RecordedRating

DEVOTED_RATINGS = (
    20  # with two developers who get half of the users each, chance does it in 1 of 2^19
)
SLOT_S = 60
BASELINE_SLOTS = 60
BASELINE_FLOOR = 10.0  # ratings a minute that no submission has to explain
UNEVENNESS = 2.0  # routing may give one submission so many times what the others get
BURST_ODDS = 1e-9  # a million submission-minutes give one false alarm in a thousand


class Rule(StrEnum):
    OWN_ACCOUNT = "own_account"
    DEVOTED_USER = "devoted_user"
    BURST = "burst"


@dataclass(frozen=True)
class Owner:
    """Whose a submission is."""

    account_id: str
    developer: str


@dataclass(frozen=True)
class Flag:
    feedback_id: str
    rule: Rule
    evidence: str


def slot_of(rating: RecordedRating) -> int:
    return int(rating.at.timestamp() // SLOT_S)


def flags_of_user(
    ratings: Sequence[RecordedRating],
    owners: Mapping[str, Owner],
    bursts: Mapping[tuple[str, int], int],
) -> Iterator[Flag]:
    """Of all ratings that one user gave in one competition; ``bursts`` are the ratings of each (submission, slot) that is one."""
    for rating in ratings:
        if rating.account_id == owners[rating.submission_id].account_id:
            yield Flag(rating.id, Rule.OWN_ACCOUNT, "The submission's own account had this chat.")
        if count := bursts.get((rating.submission_id, slot_of(rating))):
            evidence = f"One of {count} ratings of the submission within a minute."
            yield Flag(rating.id, Rule.BURST, evidence)
    developers = {owners[rating.submission_id].developer for rating in ratings}
    is_devoted = len(developers) == 1 and all(rating.thumbs_up for rating in ratings)
    if is_devoted and len(ratings) >= DEVOTED_RATINGS:
        evidence = f"All {len(ratings)} ratings of this user are thumbs up for {developers.pop()}."
        yield from (Flag(rating.id, Rule.DEVOTED_USER, evidence) for rating in ratings)


def least_burst() -> int:
    """So many ratings, and no burst can be smaller: spares a closer look."""
    return _bound(BASELINE_FLOOR)


def is_rush(ratings: int, others: Collection[int]) -> bool:
    """Whether a minute's ratings need no other explanation than those of the ``others`` that were rated in that minute.

    Users do not choose whom they talk to, so a rush reaches all.
    """
    return ratings <= _bound(max(BASELINE_FLOOR, _beside(others)))


def is_burst(ratings: int, hour_before: int, others: Collection[int]) -> bool:
    """``hour_before`` are the submission's own in the BASELINE_SLOTS before."""
    usual = hour_before / BASELINE_SLOTS
    return ratings > _bound(max(BASELINE_FLOOR, _beside(others), usual))


def _beside(others: Collection[int]) -> float:
    return UNEVENNESS * sum(others) / len(others) if others else 0.0


@lru_cache(maxsize=10_000)
def _bound(expected: float) -> int:
    """The least number that a Poisson variable exceeds with at most BURST_ODDS: its Chernoff bound,
    P(X ≥ k) ≤ exp(k - λ - k·ln(k/λ)) for k > λ (Mitzenmacher and Upfal, "Probability and Computing", theorem 5.4)."""
    wanted = math.log(BURST_ODDS)
    k = math.ceil(expected)
    while k - expected - k * math.log(k / expected) > wanted:
        k += 1
    return k
