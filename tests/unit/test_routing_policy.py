"""Which submission a new conversation goes to."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

from guanaco.prompts import PromptFormatter
from guanaco.submissions import GenerationParams, Status
from guanaco_server.routing.policy import LeastFeedbackFirst, LiveSubmission
from guanaco_server.submissions.service import ServingSubmission

START = datetime(2026, 1, 1, tzinfo=UTC)


def live(name: str, feedback_count: int, age_minutes: int = 0) -> LiveSubmission:
    serving = ServingSubmission(
        id=name,
        account_id="account",
        developer="ann",
        name=name,
        repo="acme/x",
        status=Status.DEPLOYED,
        params=GenerationParams(),
        formatter=PromptFormatter(),
        artifact_key="key",
        created_at=START - timedelta(minutes=age_minutes),
    )
    return LiveSubmission(serving, ("http://127.0.0.1:1",), feedback_count)


def chosen(*candidates: LiveSubmission) -> set[str]:
    """What is chosen, for every order of the candidates."""
    orders = itertools.permutations(candidates)
    return {LeastFeedbackFirst().choose(order).serving.id for order in orders}


def test_the_only_candidate_is_chosen() -> None:
    assert chosen(live("a", 1_000)) == {"a"}


def test_the_least_feedback_goes_first_however_old() -> None:
    assert chosen(live("a", 3), live("b", 1, age_minutes=9), live("c", 2)) == {"b"}


def test_of_several_with_the_least_feedback_the_newest_goes_first() -> None:
    old, new = live("old", 0, age_minutes=5), live("new", 0, age_minutes=1)
    assert chosen(old, new, live("newest", 1)) == {"new"}
