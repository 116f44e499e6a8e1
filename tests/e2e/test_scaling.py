"""Model servers that sleep and wake, and a budget that two developers share; with real processes."""

from __future__ import annotations

import pytest

from guanaco import Client
from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.chat import Reply
from guanaco.errors import ModelWaking
from guanaco.submissions import Status, Submission
from guanaco_server.demo.tiny_repo import make_tiny_repo
from tests.e2e.conftest import StartPlatform
from tests.fixtures.hub import ControlledHub
from tests.fixtures.up import Up, eventually

BOT = next(iter(BOTS.values()))
NO_ROOM = "Waiting for room: 1 of 1 model servers are taken, and none can be freed"


def deploy(developer: Client, name: str) -> Submission:
    submission = developer.wait(developer.submit("acme/tiny", name=name).id)
    assert submission.status is Status.DEPLOYED, submission.failure
    return submission


def no_server(up: Up) -> bool:
    return not up.model_servers()


def reply(app: Client, conversation_id: str) -> Reply | None:
    """Return None while the server takes longer to wake than a message waits."""
    try:
        return app.send(conversation_id, "Still there?")
    except ModelWaking:
        return None


@pytest.mark.engine
def test_rated_submission_sleeps_and_any_message_wakes_it(
    start_platform: StartPlatform,
) -> None:
    up = start_platform(feedback_target=1, sleep_idle_s=6, scale_interval_s=0.2)
    developer, app = up.client(Role.DEVELOPER, "ada"), up.client(Role.BACKEND, "app")
    deploy(developer, "Tiny")
    opened = app.open_conversation("user-1", BOT, consent=True)
    first = app.send(opened.conversation_id, "Hello!")
    app.rate(opened.conversation_id, True)

    eventually(lambda: no_server(up), "sleeping model server")
    assert "is put to sleep: it has 1 ratings" in up.log

    again = eventually(lambda: reply(app, opened.conversation_id), "reply of the woken server")
    assert again.content == first.content
    assert len(up.model_servers()) == 1
    eventually(lambda: no_server(up), "model server that sleeps again")
    app.open_conversation("user-2", BOT, consent=True)
    eventually(lambda: len(up.model_servers()) == 1, "model server that an opening wakes")


@pytest.mark.engine
def test_new_submission_waits_for_room_and_survives_a_kill(
    start_platform: StartPlatform, hub: ControlledHub
) -> None:
    """Undisturbed ones are in tests/integration/test_pipeline_in_flight.py and test_scaling.py."""
    make_tiny_repo(hub.root / "acme" / "other", seed=2)  # else it would share the server
    up = start_platform(max_model_servers=1, preempt_quiet_s=4)
    ada, bob = up.client(Role.DEVELOPER, "ada"), up.client(Role.DEVELOPER, "bob")
    app = up.client(Role.BACKEND, "app")
    first = deploy(ada, "One")
    opened = app.open_conversation("user-1", BOT, consent=True)
    app.send(opened.conversation_id, "Hello!")

    second = bob.submit("acme/other", name="Two")

    def waits() -> bool:
        """While the first one goes on talking, so that it cannot be put to sleep."""
        app.send(opened.conversation_id, "Are you there?")
        lines = [event.message for event in bob.events(second.id, follow=False)]
        return any(line.startswith(NO_ROOM) for line in lines)

    eventually(waits, "waiting submission")
    assert f"{second.id} waits for room: 1 of 1" in up.log
    up.kill()
    up.start()
    second = bob.wait(second.id)
    assert second.status is Status.DEPLOYED, second.failure
    assert len(up.model_servers()) == 1
    lines = [event.message for event in bob.events(second.id)]
    assert any(line.startswith(NO_ROOM) for line in lines), lines
    assert f"{first.id} is put to sleep: its room is needed" in up.log
    assert app.open_conversation("user-2", BOT, consent=True).submission_id == second.id

    ada.teardown(first.id)
    bob.teardown(second.id)
    eventually(lambda: no_server(up), "empty cluster")
