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


@pytest.mark.timeout(600)  # six starts of processes
def test_workers_take_over_killed_ones_and_roles_answer_their_own(
    roles: Roles, hub: ControlledHub
) -> None:
    early = roles.launch("api", "api-0")
    eventually(lambda: "guanaco migrate" in roles.log("api-0"), "a word on the missing migrations")
    roles.migrate()
    roles.wait(early)
    client = roles.client(early)
    slow = roles.start("worker", "worker-0")
    hub.hold(*HELD_AT_HUB[Stage.CHECK])
    submission = client.submit("acme/tiny")
    eventually(lambda: is_running(client, submission.id, Stage.CHECK), "check stage")

    slow.process.send_signal(signal.SIGSTOP)
    second = roles.start("worker", "worker-1")
    eventually(lambda: took_over(roles, "worker-1", "worker-0"), "heir of the slow worker")
    slow.process.send_signal(signal.SIGCONT)
    eventually(lambda: slow.process.poll() is not None, "end of the slow worker")
    assert "silent for too long" in roles.log("worker-0")
    hub.release()
    hub.hold(*HELD_AT_HUB[Stage.SERIALIZE])

    eventually(lambda: is_running(client, submission.id, Stage.SERIALIZE), "serialize stage")
    second.kill()
    third = roles.start("worker", "worker-2", stress_duration_s=60, stress_requests=240)
    hub.release()
    eventually(lambda: is_running(client, submission.id, Stage.STRESS), "stress stage")
    assert took_over(roles, "worker-2", "worker-1")
    third.kill()
    last = roles.start("worker", "worker-3")

    done = client.wait(submission.id)
    assert took_over(roles, "worker-3", "worker-2")
    assert done.status is Status.DEPLOYED, done.failure
    assert all(run.outcome is Outcome.DONE for run in done.stages)
    attempts = {run.stage: run.attempts for run in done.stages}
    assert all(attempts[stage] >= 2 for stage in (Stage.CHECK, Stage.SERIALIZE, Stage.STRESS))
    assert (attempts[Stage.RESOLVE], attempts[Stage.PUBLISH]) == (1, 1)
    eventually(lambda: answers(client, done.id), "an endpoint in the API's process")
    assert_each_answers_what_is_its_own(early, last)
    assert early.stop(signal.SIGTERM) == 0
    assert last.stop(signal.SIGTERM) == 0
    for name in ("api-0", "worker-0", "worker-3"):
        assert not [secret for secret in roles.secrets if secret in roles.log(name)]


def took_over(roles: Roles, heir: str, gone: str) -> bool:
    return f"took over 1 submissions of worker {gone}" in roles.log(heir)


def assert_each_answers_what_is_its_own(api: RoleProcess, worker: RoleProcess) -> None:
    with httpx.Client(timeout=60) as http:
        assert http.get(f"{worker.base_url}/readyz").json() == {"status": "ok"}
        assert http.get(f"{worker.base_url}/api/v1/leaderboard").status_code == 404
        assert http.get(f"{worker.base_url}/metrics").status_code == 401
        for series in (
            'guanaco_stage_duration_seconds_count{outcome="done",stage="publish"} 1.0',
            'guanaco_deployments{phase="ready"}',
        ):
            eventually(partial(has_series, http, worker, series), series)
        gateway = http.get(f"http://127.0.0.1:{api.metrics_port}/metrics").text
        assert 'guanaco_gateway_requests_total{outcome="ok"}' in gateway
        assert 'route="/api/v1/submissions/{submission_id}/preview"' in gateway


def answers(client: Client, submission_id: str) -> bool:
    try:
        return bool(client.preview(submission_id, Bot(name="Luna"), []).content)
    except ModelUnavailable:
        return False


def has_series(http: httpx.Client, process: RoleProcess, series: str) -> bool:
    return series in http.get(f"http://127.0.0.1:{process.metrics_port}/metrics").text
