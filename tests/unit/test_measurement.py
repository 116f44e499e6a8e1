"""The definitions of what is counted of a conversation, and their version."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from guanaco.chat import Sender
from guanaco_server.chat.conversations.records import RecordedMessage
from guanaco_server.leaderboard.counting.aggregate import Aggregate, sum_of
from guanaco_server.leaderboard.counting.measurement import (
    DEFINITIONS,
    Definitions,
    is_measured_since,
    measure,
)
from guanaco_server.leaderboard.ranking.metrics import metrics_of

GOLDEN = Path(__file__).parent / "golden" / "measurements.json"
START = datetime(2026, 1, 1, 23, 59, tzinfo=UTC)


def said(*words: str) -> list[RecordedMessage]:
    """A conversation in turns, begun by the user, in which the second reply was regenerated."""
    return [
        RecordedMessage(
            sender=Sender.BOT if number % 2 else Sender.USER,
            content=content,
            at=START + timedelta(seconds=17 * number),
            is_deleted=number == 3,
            ttft_ms=100.0 + number if number % 2 else None,
            total_ms=900.0 + number if number % 2 else None,
        )
        for number, content in enumerate(words)
    ]


MEASURED = {
    "empty": measure([], is_rated=False),
    "rated": measure(said("Hi", "Ahoy there"), is_rated=True),
    "long": measure(
        said("Hi", "Ahoy there", "Who are you", "Luna", "Again?", "Ahoy there you", "I see"),
        is_rated=True,
    ),
}


def test_changed_measurement_needs_a_new_version_of_the_definitions() -> None:
    """Read the rules in measurement.py if this fails, raise the version, and write the file again with both."""
    known = json.loads(GOLDEN.read_text())
    found = {
        name: {
            "aggregate": dict(one.aggregate.counts),
            "days": [one.first_day, one.second_day],
        }
        for name, one in MEASURED.items()
    }
    assert {"version": DEFINITIONS.version, "measured": found} == known


def test_aggregate_is_marked_with_the_version_of_its_definitions() -> None:
    message = said("Hi")
    assert Definitions(1, measure).apply(message, is_rated=False) == measure(
        message, is_rated=False
    )
    marked = Definitions(3, measure).apply(message, is_rated=False).aggregate
    assert marked["definition:3"] == 1


def test_new_metric_is_hidden_until_every_conversation_has_it() -> None:
    messages = said("Hi", "Ahoy there", "Who are you", "-", "So", "Ahoy you")
    old = Definitions(1, measure).apply(messages, is_rated=True).aggregate
    new = Definitions(2, measure).apply(messages, is_rated=True).aggregate
    newest = Definitions(3, measure).apply(messages, is_rated=True).aggregate
    introduced = {"repetition": 2}
    half = sum_of((old, new))
    assert not is_measured_since(half, 2)
    assert metrics_of("one_v1", half, 800_000, introduced).repetition is None
    assert metrics_of("one_v1", half, 800_000, introduced).conversation_length is not None
    assert metrics_of("one_v1", half, 800_000).repetition is not None
    whole = sum_of((new, newest))
    assert is_measured_since(whole, 2)
    assert not is_measured_since(whole, 3)
    assert metrics_of("one_v1", whole, 800_000, introduced).repetition is not None
    assert is_measured_since(Aggregate(), 2)
