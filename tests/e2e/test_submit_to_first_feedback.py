"""The story that everything else serves: a developer submits a repo, and reads what a user thought of that very model."""

from __future__ import annotations

import pytest

from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.chat import Reply, Sender, Token
from guanaco.submissions import EventKind, GenerationParams, Outcome, Stage, Status
from tests.e2e.conftest import StartPlatform
from tests.fixtures.up import eventually


@pytest.mark.engine
@pytest.mark.timeout(300)  # the product's promise, not a measurement: half a minute on two cores
@pytest.mark.parametrize(
    "outgrown",
    [False, pytest.param(True, marks=pytest.mark.postgres)],
    ids=["embedded", "outgrown"],
)
def test_a_developer_reads_the_first_feedback_within_five_minutes(
    start_platform: StartPlatform, outgrown: bool, request: pytest.FixtureRequest
) -> None:
    """``outgrown``: on PostgreSQL and an S3 server, in place of SQLite and a folder; and served by the real vLLM.

    tests/e2e/test_served_by_vllm.py has vLLM over SQLite and a folder.
    """
    settings: dict[str, object] = {}
    if outgrown:
        settings["engine_command"] = "null"
        request.getfixturevalue("engine_forks")
        postgres = request.getfixturevalue("postgres")
        settings["database_url"] = postgres.url(postgres.create()).replace("+psycopg", "")
        settings |= request.getfixturevalue("rclone").settings()
    up = start_platform(**settings)
    developer = up.client(Role.DEVELOPER, "ada")
    app = up.client(Role.BACKEND, "app")

    params = GenerationParams(best_of=2, max_output_tokens=24)
    submission = developer.submit("acme/tiny", name="Tiny", params=params)
    events = []
    submission = developer.wait(submission.id, events.append)
    assert submission.status is Status.DEPLOYED, submission.failure
    assert [run.stage for run in submission.stages] == list(Stage)
    assert all(run.outcome is Outcome.DONE and run.attempts == 1 for run in submission.stages)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert {event.kind for event in events} == set(EventKind)
    assert developer.stress(submission.id).is_passed

    bot = BOTS["luna"] if "luna" in BOTS else next(iter(BOTS.values()))
    opened = app.open_conversation("user-17", bot, user_name="Sam", consent=True)
    assert opened.submission_id == submission.id
    *tokens, reply = list(app.stream_send(opened.conversation_id, "Hello! How are you?"))
    assert isinstance(reply, Reply)
    assert "".join(token.text for token in tokens if isinstance(token, Token)) == reply.content
    assert reply.usage.prompt_tokens > 10 < len(reply.content)
    app.rate(opened.conversation_id, True, "She is funny.")

    (feedback,) = developer.feedback(submission.id)
    assert feedback.thumbs_up
    assert feedback.text == "She is funny."
    assert feedback.user.startswith("user_")
    assert "user-17" not in feedback.model_dump_json()
    assert [(m.sender, m.content) for m in feedback.messages] == [
        (Sender.USER, "Hello! How are you?"),
        (Sender.BOT, reply.content),
    ]
    eventually(lambda: app.leaderboard().rows[0].feedback_count == 1, "the ranking")
    (row,) = app.leaderboard().rows
    assert (row.rank, row.submission_id, row.thumbs_up) == (1, submission.id, 1)
