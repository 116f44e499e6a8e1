"""Redeploys and canaries while users talk: every turn is answered, and a model server stops only when it has drained."""

from __future__ import annotations

import pytest

from guanaco import Client
from guanaco.submissions import Rollout, RolloutPhase, Status, Submission
from guanaco_server.deployments.versions import beside
from tests.e2e.conftest import StartPlatform
from tests.fixtures.deployed import hold_any_number
from tests.fixtures.talking_users import TalkingUsers, misbehave
from tests.fixtures.up import SCRIPTED_ENGINE, Up, eventually

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_users_notice_nothing_of_redeploy_and_worse_canary(
    start_platform: StartPlatform,
) -> None:
    """Canaries that fail are in test_kubernetes_journey.py, those that people dislike in tests/integration/test_canaries.py."""
    up, client, submission = published(start_platform)
    old = up.model_server()
    with TalkingUsers(up.base_url, up.admin_key, 16) as users:
        assert client.redeploy(submission.id).status is Status.DEPLOYED
        done = client.wait(submission.id)
        users.talk_on()
        assert done.status is Status.DEPLOYED
        assert done.rollout is not None
        assert (done.run, done.rollout.phase) == (2, RolloutPhase.DONE), done.rollout.failure
        new = up.model_server()
        assert new.pid != old.pid

        slow = ended_canary(up, client, submission.id, 3, delay_ms=1_500)
        assert "began slowly" in slow
        eventually(lambda: up.model_servers() == [new], "end of the canary's model server")
        users.talk_on()
    assert users.faults == []


def published(start_platform: StartPlatform) -> tuple[Up, Client, Submission]:
    up = start_platform(engine_command=[*SCRIPTED_ENGINE, "--token-delay-ms", "100"])
    client = up.client()
    submission = client.wait(client.submit("acme/tiny").id)
    hold_any_number(str(up.settings.get("database_url", f"sqlite:///{up.data_dir}/guanaco.db")))
    return up, client, submission


def ended_canary(up: Up, client: Client, submission_id: str, run: int, **faults: object) -> str:
    """Make a canary worse once it has passed every stage; the sentence that its developer reads."""
    client.redeploy(submission_id, canary=0.5)
    assert client.wait(submission_id).is_served
    (endpoint,) = up.replicas(beside(submission_id, run))
    misbehave(endpoint, **faults)
    rollout = eventually(lambda: _ended(client, submission_id), "end of the canary", 120)
    assert rollout.phase is RolloutPhase.FAILED
    assert rollout.failure is not None
    said = [event.message for event in client.events(submission_id) if event.level == "error"]
    assert rollout.failure.detail in said[-1]
    return said[-1]


def _ended(client: Client, submission_id: str) -> Rollout | None:
    rollout = client.submission(submission_id).rollout
    return rollout if rollout is not None and not rollout.phase.is_in_progress else None
