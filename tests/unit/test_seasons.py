"""A season's document keeps its bytes whatever a later version adds to the models, and is read whatever it adds to it."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from guanaco.competitions import (
    AssignmentKind,
    AssignmentRule,
    Competition,
    EntryRule,
    RankingRule,
)
from guanaco_server.feedback.records import RecordedRating
from guanaco_server.leaderboard.flags.rules import Owner
from guanaco_server.leaderboard.seasons.document import final_ranking, read_entries, schema_of

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
# Written by the version before the document had a schema of its own.
FROZEN = (Path(__file__).parent / "golden" / "season.json").read_bytes().rstrip(b"\n")
FROZEN_SHA256 = "2c0e6cb3a490bce4310dd3f0ef9661a60db546001a825ae889483b7e1ac72d56"

OWNERS = {
    f"{name}_v1": Owner(f"acc-{number % 2}", f"developer-{number % 2}")
    for number, name in enumerate(("one", "two", "three"))
}
RATINGS = [
    RecordedRating(
        f"fb_{user}_{number}",
        f"conv_{user}_{number}",
        submission_id,
        "autumn",
        f"user-{user}",
        "backend",
        (user * (number + 2) + user // 3) % (number + 2) != 0,
        BEGIN + timedelta(minutes=3 * user + number),
    )
    for user in range(40)
    for number, submission_id in enumerate(OWNERS)
]
COMPETITION = Competition(
    id="autumn",
    name="Autumn \N{EN DASH} größer",
    starts_at=BEGIN.astimezone(timezone(timedelta(hours=2))),
    ends_at=BEGIN + timedelta(days=30, microseconds=5),
    frozen_at=BEGIN + timedelta(days=31, microseconds=123_456),
    entry=EntryRule(max_parameters=8_000_000_000, per_developer=2, submitted_within=True),
    assignment=AssignmentRule(
        kind=AssignmentKind.ADAPTIVE,
        newest_until=7,
        recency_floor=0.25,
        weights={"one_v1": 2, "two_v1": 0.5},
        seed=11,
    ),
    ranking=RankingRule.COMBINED,
)


class NextEntryRule(EntryRule):
    region: str | None = None


class NextAssignmentRule(AssignmentRule):
    exploration: float = 0.5


class NextCompetition(Competition):
    """A competition as a later version may define it."""

    motto: str = "Nothing ventured"
    entry: NextEntryRule = NextEntryRule()
    assignment: NextAssignmentRule = NextAssignmentRule()


def test_season_frozen_by_an_older_version_recomputes_equally() -> None:
    content = final_ranking(COMPETITION, RATINGS, OWNERS, (), schema=1)
    assert content == FROZEN
    assert hashlib.sha256(content).hexdigest() == FROZEN_SHA256


def test_new_fields_of_a_competition_change_no_season() -> None:
    later = NextCompetition.model_validate(COMPETITION.model_dump())
    assert later.motto
    content = final_ranking(later, RATINGS, OWNERS, (), schema=1)
    assert content == FROZEN
    assert hashlib.sha256(content).hexdigest() == FROZEN_SHA256


def test_a_new_season_has_the_intervals_of_the_board() -> None:
    content = final_ranking(COMPETITION, RATINGS, OWNERS, ())
    document = json.loads(content)
    assert document.pop("schema") == schema_of(content) == 7
    now, before = read_entries(content), read_entries(FROZEN)
    assert document["competition"] == json.loads(FROZEN)["competition"]
    for one, entry in now.items():
        assert entry.low is not None
        assert entry.high is not None
        assert (entry.score, entry.up, entry.down) == (
            before[one].score,
            before[one].up,
            before[one].down,
        )
        assert entry.low < (before[one].low or 0) < (before[one].high or 0) < entry.high


def test_older_schemas_rank_by_the_latest_votes_for_ever() -> None:
    """Everybody rates once more, and down: schemas 1 to 3 see nothing but that."""
    again = [
        one._replace(id=f"{one.id}_again", thumbs_up=False, at=one.at + timedelta(hours=3))
        for one in RATINGS
    ]
    for schema in (1, 2, 3):
        before = read_entries(final_ranking(COMPETITION, [*RATINGS, *again], OWNERS, (), schema))
        assert {(one.up, one.down) for one in before.values()} == {(0, 40)}
        assert len({one.score for one in before.values()}) == 1
    for schema in (4, 5, 7):
        content = final_ranking(COMPETITION, [*RATINGS, *again], OWNERS, (), schema)
        now = read_entries(content)
        once = read_entries(final_ranking(COMPETITION, RATINGS, OWNERS, (), schema))
        assert {name: one.score for name, one in now.items()} == {
            name: one.score for name, one in once.items()
        }
        assert {(one.up, one.down) for one in now.values()} == {(0, 40)}, "what is shown"
        assert all(line["first_up"] for line in json.loads(content)["standings"])


def test_unknown_assignment_rule_is_written_by_its_name() -> None:
    rule = COMPETITION.assignment.model_copy(update={"kind": AssignmentKind.read("oracle")})
    content = final_ranking(
        COMPETITION.model_copy(update={"assignment": rule}), RATINGS, OWNERS, ()
    )
    assert json.loads(content)["competition"]["assignment"]["kind"] == "oracle"


def test_document_of_the_next_version_is_readable() -> None:
    document = json.loads(FROZEN)
    document["schema"] = 3
    document["competition"] |= {"motto": "Nothing ventured", "ranking": "plackett_luce"}
    for line in document["standings"]:
        line["tier"] = "gold"
    later = json.dumps(document).encode()
    assert schema_of(FROZEN) == 1
    assert schema_of(later) == 3
    assert read_entries(later) == read_entries(FROZEN)
    assert [entry.rank for entry in read_entries(later).values()] == [1, 1, 2]
