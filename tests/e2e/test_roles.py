"""The roles apart, over one PostgreSQL and one artifact store: what a Kubernetes cluster runs."""

from __future__ import annotations

import signal
from functools import partial

import httpx
import pytest

from guanaco import Client
from guanaco.chat import Bot
from guanaco.errors import ModelUnavailable
from guanaco.submissions import Outcome, Stage, Status
from tests.e2e.test_killed_in_every_stage import HELD_AT_HUB, is_running
from tests.fixtures.hub import ControlledHub
from tests.fixtures.roles import RoleProcess, Roles
from tests.fixtures.up import eventually

pytestmark = [pytest.mark.engine, pytest.mark.postgres]


@pytest.mark.parametrize("stage", [Stage.CHECK, Stage.SERIALIZE, Stage.STRESS])
def test_another_worker_takes_over_from_one_that_was_killed(
    roles: Roles, hub: ControlledHub, stage: Stage
) -> None:
    roles.migrate()
    api = roles.start("api", "api-0")
    first = roles.start("worker", "worker-0", stress_duration_s=60, stress_requests=240)
    client = roles.client(api)
    if stage in HELD_AT_HUB:
        hub.hold(*HELD_AT_HUB[stage])
    submission = client.submit("acme/tiny")
    eventually(lambda: is_running(client, submission.id, stage), f"{stage} stage")

    first.kill()
    roles.start("worker", "worker-1")
    hub.release()

    done = client.wait(submission.id)
    assert done.status is Status.DEPLOYED, done.failure
    assert all(run.outcome is Outcome.DONE for run in done.stages)
    attempts = {run.stage: run.attempts for run in done.stages}
    assert attempts[stage] >= 2
    assert client.preview(submission.id, Bot(name="Luna"), []).content
    assert "took over 1 submissions of worker worker-0" in roles.log("worker-1")


def test_a_worker_that_was_only_slow_ends_and_what_it_had_is_done_once(
    roles: Roles, hub: ControlledHub
) -> None:
    roles.migrate()
    api = roles.start("api", "api-0")
    slow = roles.start("worker", "worker-0")
    client = roles.client(api)
    hub.hold("/config.json")
    submission = client.submit("acme/tiny")
    eventually(lambda: is_running(client, submission.id, Stage.CHECK), "check stage")

    slow.process.send_signal(signal.SIGSTOP)
    roles.start("worker", "worker-1")
    eventually(lambda: "took over 1" in roles.log("worker-1"), "heir")
    slow.process.send_signal(signal.SIGCONT)
    eventually(lambda: slow.process.poll() is not None, "end of the slow worker")
    hub.release()

    done = client.wait(submission.id)
    assert done.status is Status.DEPLOYED, done.failure
    attempts = {run.stage: run.attempts for run in done.stages}
    assert {attempts[stage] for stage in Stage if stage is not Stage.CHECK} == {1}
    assert "silent for too long" in roles.log("worker-0")


def test_each_role_answers_what_is_its_own_and_no_secret_is_logged(roles: Roles) -> None:
    early = roles.launch("api", "api-0")
    eventually(lambda: "guanaco migrate" in roles.log("api-0"), "a word on the missing migrations")
    roles.migrate()
    roles.wait(early)
    worker = roles.start("worker", "worker-0")
    client = roles.client(early)
    done = client.wait(client.submit("acme/tiny").id)
    assert done.status is Status.DEPLOYED, done.failure
    eventually(lambda: answers(client, done.id), "an endpoint in the API's process")

    with httpx.Client(timeout=60) as http:
        assert http.get(f"{worker.base_url}/readyz").json() == {"status": "ok"}
        assert http.get(f"{worker.base_url}/api/v1/leaderboard").status_code == 404
        assert http.get(f"{worker.base_url}/metrics").status_code == 401
        for series in (
            'guanaco_stage_duration_seconds_count{outcome="done",stage="publish"} 1.0',
            'guanaco_deployments{phase="ready"}',
        ):
            eventually(partial(has_series, http, worker, series), series)
        gateway = http.get(f"http://127.0.0.1:{early.metrics_port}/metrics").text
        assert 'guanaco_gateway_requests_total{outcome="ok"}' in gateway
        assert 'route="/api/v1/submissions/{submission_id}/preview"' in gateway
    assert early.stop(signal.SIGTERM) == 0
    assert worker.stop(signal.SIGTERM) == 0
    for name in ("api-0", "worker-0"):
        assert not [secret for secret in roles.secrets if secret in roles.log(name)]


def answers(client: Client, submission_id: str) -> bool:
    try:
        return bool(client.preview(submission_id, Bot(name="Luna"), []).content)
    except ModelUnavailable:
        return False


def has_series(http: httpx.Client, process: RoleProcess, series: str) -> bool:
    return series in http.get(f"http://127.0.0.1:{process.metrics_port}/metrics").text
