"""The rules that leave ratings out of the votes, and which of the others are votes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from guanaco_server.feedback.records import RecordedRating
from guanaco_server.leaderboard.counting.votes import first_votes_of, votes_of
from guanaco_server.leaderboard.flags.rules import (
    DEVOTED_RATINGS,
    Owner,
    Rule,
    flags_of_user,
    is_contested,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OWNERS = {
    "one": Owner("acc-ada", "ada"),
    "two": Owner("acc-ada", "ada"),
    "three": Owner("acc-bob", "bob"),
}


def rating(
    hour: int,
    submission: str = "one",
    thumbs_up: bool = True,
    given_up: bool | None = None,
    is_withdrawn: bool = False,
) -> RecordedRating:
    return RecordedRating(
        f"fb-{hour}",
        f"conv-{hour}",
        submission,
        "cup",
        "user",
        "app",
        thumbs_up,
        NOON + timedelta(hours=hour),
        given_up=given_up,
        is_withdrawn=is_withdrawn,
    )


def rules(ratings: list[RecordedRating], *, is_alone: bool, by_latest: bool = False) -> set[Rule]:
    found = flags_of_user(ratings, OWNERS, {}, is_alone=is_alone, by_latest=by_latest)
    return {flag.rule for flag in found}


def test_nobody_is_devoted_where_one_developer_is_rated() -> None:
    fan = [rating(hour, ("one", "two")[hour % 2]) for hour in range(DEVOTED_RATINGS)]
    assert rules(fan, is_alone=False) == {Rule.DEVOTED_USER}
    assert rules(fan, is_alone=True) == set()
    assert not is_contested({"one", "two", "unknown"}, OWNERS)
    assert is_contested({"one", "three"}, OWNERS)


def test_devotion_is_of_thumbs_as_they_were_given() -> None:
    fan = [rating(hour) for hour in range(DEVOTED_RATINGS - 1)]
    hidden = [*fan, rating(90, thumbs_up=False, given_up=True)]
    late = [*fan, rating(90, thumbs_up=True, given_up=False)]
    assert rules(hidden, is_alone=False) == {Rule.DEVOTED_USER}
    assert rules(late, is_alone=False) == set()
    assert rules(late, is_alone=False, by_latest=True) == {Rule.DEVOTED_USER}


def test_a_withdrawn_rating_stays_the_first_vote() -> None:
    withdrawn = rating(1, thumbs_up=True, given_up=False, is_withdrawn=True)
    again = rating(2)
    assert votes_of([withdrawn], ()) == {}
    assert first_votes_of([withdrawn], ())["one"].first_up is False
    assert votes_of([withdrawn, again], ()) == {"one": again}
    assert first_votes_of([again, withdrawn], ()) == {"one": withdrawn}
    assert first_votes_of([again, withdrawn], {"fb-1"}) == {"one": again}, "a rule left it out"
