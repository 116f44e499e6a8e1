"""kill -9 of the platform in every stage: the next start ends with `deployed`, and nothing finished is done twice."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from guanaco import Client
from guanaco.chat import Bot
from guanaco.submissions import Outcome, Stage, Status, Submission
from tests.e2e.conftest import StartPlatform
from tests.fixtures.hub import ControlledHub
from tests.fixtures.up import SCRIPTED_ENGINE, eventually

pytestmark = pytest.mark.engine

# Keep each stage from ending, so that it can be hit: the Hub holds an answer, the model server is slow.
HELD_AT_HUB = {
    Stage.RESOLVE: ("/api/models/", 0),
    Stage.CHECK: ("/config.json", 0),
    Stage.SERIALIZE: ("/model.safetensors", 1),  # the first request is the check's, for the header
}
SETTINGS: dict[Stage, dict[str, object]] = {
    Stage.DEPLOY: {"engine_command": [*SCRIPTED_ENGINE, "--start-delay", "8"]},
    Stage.STRESS: {"stress_duration_s": 8, "stress_requests": 32},
}
REFUSE_TO_PUBLISH = """
CREATE TRIGGER refuse_to_publish BEFORE UPDATE OF status ON submissions WHEN NEW.status = 'deployed'
BEGIN SELECT RAISE(ABORT, 'held by the test'); END
"""


@pytest.mark.timeout(600)  # eight starts of a platform
def test_platform_killed_in_every_stage_finishes_and_finds_its_server(
    start_platform: StartPlatform, hub: ControlledHub
) -> None:
    """One submission meets a kill in each of its stages, and another one when it is published."""
    hub.hold(*HELD_AT_HUB[Stage.RESOLVE])
    up = start_platform(**SETTINGS[Stage.DEPLOY])
    quick = dict(up.settings)
    execute(up.data_dir, REFUSE_TO_PUBLISH)
    client = up.client()
    submission = client.submit("acme/tiny")
    finished: dict[Stage, int] = {}
    for stage, following in zip(Stage, [*list(Stage)[1:], None], strict=True):
        eventually(lambda: is_running(client, submission.id, stage), f"{stage} stage")  # noqa: B023
        finished |= attempts_of_finished(client, submission.id)
        up.kill()
        hub.release()
        if following in HELD_AT_HUB:
            hub.hold(*HELD_AT_HUB[following])
        if stage is Stage.PUBLISH:
            execute(up.data_dir, "DROP TRIGGER refuse_to_publish")
        up.settings = quick | (SETTINGS[Stage.STRESS] if following is Stage.STRESS else {})
        up.start()

    done = client.wait(submission.id)
    assert done.status is Status.DEPLOYED, done.failure
    assert all(run.outcome is Outcome.DONE for run in done.stages)
    attempts = {run.stage: run.attempts for run in done.stages}
    assert all(attempts[stage] >= 2 for stage in Stage)
    assert finished.keys() == set(Stage) - {Stage.PUBLISH}
    assert finished.items() <= attempts.items(), "nothing finished is done twice"

    before = up.model_server()
    up.kill()
    up.start()
    after = up.model_server()
    assert (after.pid, after.create_time()) == (before.pid, before.create_time())
    assert client.preview(submission.id, Bot(name="Luna"), []).content


def test_servers_end_by_themselves_when_no_platform_comes_back(
    start_platform: StartPlatform,
) -> None:
    up = start_platform(lifeline_grace_s=1)
    client = up.client()
    client.wait(client.submit("acme/tiny").id)
    assert up.model_servers()

    up.kill()

    eventually(lambda: not up.model_servers(), "end of the model servers", 60)


def is_running(client: Client, submission_id: str, stage: Stage) -> bool:
    submission: Submission = client.submission(submission_id)
    assert submission.status is not Status.FAILED, submission.failure
    return any(run.stage is stage and run.outcome is None for run in submission.stages)


def attempts_of_finished(client: Client, submission_id: str) -> dict[Stage, int]:
    stages = client.submission(submission_id).stages
    return {run.stage: run.attempts for run in stages if run.outcome is Outcome.DONE}


def execute(data_dir: Path, statement: str) -> None:
    with closing(sqlite3.connect(data_dir / "guanaco.db", timeout=10)) as connection, connection:
        connection.execute(statement)
