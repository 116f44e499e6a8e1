"""kill -9 of the worker in each phase of a redeploy while users talk: it goes on to its end, and no turn fails.

The gateway is a process of its own, so the users' connections outlive the worker. Here the worker is started again and finds
its model servers; on Kubernetes another one takes over (test_kubernetes_journey.py).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import psutil
import pytest
from sqlalchemy import NullPool, create_engine, text

from guanaco import Client
from guanaco.submissions import RolloutPhase, Stage, Status, Submission
from tests.fixtures.roles import RoleProcess, Roles
from tests.fixtures.talking_users import TalkingUsers
from tests.fixtures.up import SCRIPTED_ENGINE, eventually

pytestmark = [pytest.mark.engine, pytest.mark.postgres]

ENGINE = [*SCRIPTED_ENGINE, "--token-delay-ms", "100", "--start-delay", "3"]


@pytest.fixture
def role_settings() -> dict[str, object]:
    return {"engine_command": ENGINE, "lifeline_grace_s": 120, "failover_s": 60}


@pytest.mark.timeout(900)  # three redeploys and three starts of a worker
def test_a_redeploy_goes_on_when_its_worker_is_started_again(roles: Roles, tmp_path: Path) -> None:
    api, worker, client, submission = published(roles)
    with TalkingUsers(api.base_url, roles.admin_key, 4) as users:
        for run, phase in enumerate(in_progress(), start=2):
            client.redeploy(submission.id)
            eventually(partial(is_in, client, submission.id, phase), f"{phase} phase")
            worker.kill()
            users.talk_on()
            worker = roles.start("worker", "worker-0")
            done = client.wait(submission.id)
            assert done.rollout is not None
            assert (done.run, done.rollout.phase) == (run, RolloutPhase.DONE), done.rollout.failure
            eventually(lambda: len(model_servers(tmp_path)) == 1, "end of the old model server")
        users.talk_on()
    assert users.faults == []
    assert_nothing_is_left(roles, submission.id)


def in_progress() -> list[RolloutPhase]:
    return [phase for phase in RolloutPhase if phase.is_in_progress]


def published(roles: Roles) -> tuple[RoleProcess, RoleProcess, Client, Submission]:
    roles.migrate()
    api = roles.start("api", "api-0")
    worker = roles.start("worker", "worker-0")
    client = roles.client(api)
    submission = client.wait(client.submit("acme/tiny").id)
    assert submission.status is Status.DEPLOYED, submission.failure
    return api, worker, client, submission


def is_in(client: Client, submission_id: str, phase: RolloutPhase) -> bool:
    """Return whether the newest redeploy is in that phase; while it is prepared, whether its server comes up."""
    found = client.submission(submission_id)
    assert found.rollout is not None
    if phase is RolloutPhase.PREPARING:
        return any(
            (run.run, run.stage, run.outcome) == (found.run, Stage.DEPLOY, None)
            for run in found.stages
        )
    return found.rollout.phase is phase


def model_servers(folder: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter()
        if "--artifact" in (command := _command(process))
        and any(str(folder) in part for part in command)
    ]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def assert_nothing_is_left(roles: Roles, submission_id: str) -> None:
    """One deployment, the submission's own, and no workflow that still runs."""
    engine = create_engine(roles.database_url, poolclass=NullPool)
    unfinished = "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('PENDING', 'ENQUEUED')"
    with engine.connect() as tables:
        kept = tables.execute(text("SELECT submission_id FROM deployments")).scalars().all()
        eventually(lambda: not tables.execute(text(unfinished)).scalar(), "end of every workflow")
    assert kept == [submission_id]
