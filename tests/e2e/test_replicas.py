"""Two replicas of one submission on one machine, one killed again and again; with real processes."""

from __future__ import annotations

import pytest

from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.submissions import Status
from tests.e2e.conftest import StartPlatform
from tests.fixtures.up import eventually

BOT = next(iter(BOTS.values()))


@pytest.mark.engine
def test_two_replicas_are_killed_in_turns_and_every_message_is_answered(
    start_platform: StartPlatform,
) -> None:
    up = start_platform(min_replicas=2, scale_interval_s=0.2)
    developer, app = up.client(Role.DEVELOPER, "ada"), up.client(Role.BACKEND, "app")
    submission = developer.wait(developer.submit("acme/tiny").id)
    assert submission.status is Status.DEPLOYED, submission.failure
    conversation = app.open_conversation("user-1", BOT, consent=True).conversation_id

    def has_both() -> bool:
        return len(up.replicas(submission.id)) == 2

    def is_replaced(before: list[str]) -> bool:
        return has_both() and up.replicas(submission.id) != before

    eventually(has_both, "second replica")
    for number in (0, 1, 0, 1):
        before, killed = up.replicas(submission.id), up.kill_replica(submission.id, number)
        assert app.send(conversation, "Are you there?").content
        eventually(lambda before=before: is_replaced(before), "replica in its place")  # type: ignore[misc]
        assert up.replica_pid(submission.id, number) != killed
        assert app.send(conversation, "Still there?").content

    pids = [up.replica_pid(submission.id, number) for number in (0, 1)]
    up.kill()
    up.start()
    assert app.send(conversation, "And now?").content
    eventually(has_both, "replicas found again")
    assert [up.replica_pid(submission.id, number) for number in (0, 1)] == pids
    developer.teardown(submission.id)
    eventually(lambda: not up.model_servers(), "empty cluster")
