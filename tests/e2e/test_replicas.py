"""Two replicas of one submission on one machine, one killed again and again; with real processes."""

from __future__ import annotations

from functools import partial

import pytest

from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.submissions import Status
from tests.e2e.conftest import StartPlatform
from tests.fixtures.up import eventually

BOT = next(iter(BOTS.values()))


@pytest.mark.engine
def test_every_message_is_answered_while_two_replicas_are_killed(
    start_platform: StartPlatform,
) -> None:
    up = start_platform(min_replicas=2, scale_interval_s=0.2)
    developer, app = up.client(Role.DEVELOPER, "ada"), up.client(Role.BACKEND, "app")
    submission = developer.wait(developer.submit("acme/tiny").id)
    assert submission.status is Status.DEPLOYED, submission.failure
    conversation = app.open_conversation("user-1", BOT, consent=True).conversation_id

    def has_both() -> bool:
        return len(up.replicas(submission.id)) == 2

    def is_replaced(number: int, killed: int) -> bool:
        found = up.replica(submission.id, number)
        if found is None or found.leader.pid == killed:
            return False
        return has_both() and found.endpoint in up.replicas(submission.id)

    eventually(has_both, "second replica")
    for number in (0, 1, 0, 1):
        killed = up.kill_replica(submission.id, number)
        assert app.send(conversation, "Are you there?").content
        eventually(partial(is_replaced, number, killed), "replica in its place")
        assert app.send(conversation, "Still there?").content

    pids = [up.replica_pid(submission.id, number) for number in (0, 1)]
    up.kill()
    up.start()
    assert app.send(conversation, "And now?").content
    eventually(has_both, "replicas found again")
    assert [up.replica_pid(submission.id, number) for number in (0, 1)] == pids
    developer.teardown(submission.id)
    eventually(lambda: not up.model_servers(), "empty cluster")
