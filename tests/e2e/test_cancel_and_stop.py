"""Stopping things: a submission in any stage, the platform in any stage, a published model."""

from __future__ import annotations

import signal

import pytest

from guanaco import Client
from guanaco.errors import IllegalTransition, NoModelAvailable
from guanaco.submissions import GenerationParams, Outcome, Stage, Status
from tests.e2e.conftest import SharedPlatform, StartPlatform
from tests.e2e.test_bad_submissions import can_reply
from tests.e2e.test_killed_in_every_stage import HELD_AT_HUB, SETTINGS, is_running
from tests.fixtures.hub import ControlledHub
from tests.fixtures.up import Up, eventually

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    "stage", [one for one in Stage if one not in (Stage.STRESS, Stage.PUBLISH)]
)
def test_a_submission_cancelled_in_a_stage_leaves_nothing_behind(
    stage: Stage, platform: SharedPlatform
) -> None:
    name = "late" if stage is Stage.DEPLOY else stage.value
    platform.repo(name)
    cancel_in(stage, platform.up, platform.hub, f"acme/{name}")


def test_a_submission_cancelled_under_stress_leaves_nothing_behind(
    start_platform: StartPlatform, hub: ControlledHub
) -> None:
    cancel_in(Stage.STRESS, start_platform(**SETTINGS[Stage.STRESS]), hub, "acme/tiny")


def cancel_in(stage: Stage, up: Up, hub: ControlledHub, repo: str) -> None:
    client = up.client()
    if stage in HELD_AT_HUB:
        hub.hold(*HELD_AT_HUB[stage])
    submission = client.submit(repo)
    eventually(lambda: is_running(client, submission.id, stage), f"{stage} stage")

    assert client.cancel(submission.id).status is Status.CANCELLED

    eventually(
        lambda: client.submission(submission.id).stages[-1].outcome is Outcome.CANCELLED,
        "end of the stage",
    )
    hub.release()
    eventually(lambda: not up.model_servers(), "end of the model server")
    staging = up.data_dir / "artifacts" / ".staging"
    eventually(lambda: not staging.exists() or not any(staging.iterdir()), "empty staging")
    with pytest.raises(IllegalTransition):
        client.cancel(submission.id)


def test_platform_stopped_in_any_stage_resumes_at_next_start(
    start_platform: StartPlatform,
) -> None:
    up = start_platform(**SETTINGS[Stage.DEPLOY])
    submission = up.client().submit("acme/tiny")
    for by in (signal.SIGTERM, signal.SIGINT):
        client = up.client()
        eventually(lambda: is_running(client, submission.id, Stage.DEPLOY), "deploy stage")  # noqa: B023
        assert up.stop(by) == 0
        assert up.model_servers() == []
        up.start()
    client = up.client()
    done = client.wait(submission.id)
    assert done.status is Status.DEPLOYED, done.failure
    opened = client.open_conversation("user", {"name": "Luna"}, consent=True)

    assert up.stop() == 0
    assert up.model_servers() == []
    up.start()
    client = up.client()

    eventually(lambda: client.leaderboard().rows[0].status is Status.DEPLOYED, "leaderboard")
    eventually(up.model_servers, "model server")
    eventually(lambda: can_reply(client, opened.conversation_id), "reply")


def takes_conversations(client: Client) -> bool:
    try:
        client.open_conversation("user", {"name": "Luna"}, consent=True)
    except NoModelAvailable:
        return False
    return True


def test_deactivate_reactivate_redeploy_and_teardown(platform: SharedPlatform) -> None:
    client, up = platform.client, platform.up
    platform.repo("twice")
    submission = client.wait(client.submit("acme/twice").id)
    opened = client.open_conversation("user", {"name": "Luna"}, consent=True)

    client.deactivate(submission.id)
    assert client.send(opened.conversation_id, "Still here?").content
    eventually(lambda: not takes_conversations(client), "end of new conversations")
    client.reactivate(submission.id)
    client.open_conversation("user", {"name": "Luna"}, consent=True)

    before = up.model_server()
    client.redeploy(submission.id)
    redeployed = client.wait(submission.id)
    assert redeployed.status is Status.DEPLOYED, redeployed.failure
    after = up.model_server()
    assert after.pid != before.pid
    assert redeployed.commit == submission.commit

    assert client.teardown(submission.id).status is Status.TORN_DOWN
    eventually(lambda: not up.model_servers(), "end of the model server")


def test_submissions_of_one_commit_share_artifact_and_model_server(
    platform: SharedPlatform,
) -> None:
    client, up = platform.client, platform.up
    platform.repo("again")
    first = client.wait(client.submit("acme/again").id)
    server = up.model_server()
    cooler = GenerationParams(temperature=0.5, stopping_words=["You:"])
    second = client.wait(client.submit("acme/again", params=cooler).id)
    assert (first.id, second.id) == ("acme-again_v1", "acme-again_v2")
    assert second.status is Status.DEPLOYED, second.failure
    assert first.artifact_key == second.artifact_key
    said = [event.message for event in client.events(second.id)]
    assert any("used again" in message for message in said)
    assert any("is shared" in message for message in said)
    assert [each.pid for each in up.model_servers()] == [server.pid], "no second start"
    talks = {
        each.id: client.open_conversation(
            f"of {each.id}", {"name": "Luna"}, consent=True, model=each.id
        ).conversation_id
        for each in (first, second)
    }
    assert all(can_reply(client, talk) for talk in talks.values())

    server.kill()
    for talk in talks.values():
        eventually(lambda talk=talk: can_reply(client, talk), "reply after the crash")
    restarted = up.model_server()

    client.teardown(first.id)
    eventually(lambda: up.replicas(first.id) == [], "end of the first")
    assert can_reply(client, talks[second.id])
    assert up.model_server().pid == restarted.pid
    client.teardown(second.id)
    eventually(lambda: not up.model_servers(), "end of the model server")
