"""The story of test_submit_to_first_feedback, with jobs and model servers in Kubernetes: the platform is the real one,
the API server and its nodes are the fake ones, the pods' commands run as processes, artifacts are in a bucket."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from guanaco import Client
from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.errors import GuanacoError
from guanaco.submissions import Outcome, Rollout, RolloutPhase, Stage, Status
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.versions import beside
from guanaco_server.formats.control import TOKEN_VARIABLE
from tests.e2e.conftest import StartPlatform
from tests.e2e.test_redeploy_killed import assert_nothing_is_left, is_in, published
from tests.e2e.test_served_by_vllm import REAL_ENGINE
from tests.fixtures.fake_kubernetes import statuses
from tests.fixtures.fake_kubernetes.store import Json
from tests.fixtures.forked import kill_server, pods_fork
from tests.fixtures.hub import ControlledHub
from tests.fixtures.kubernetes import FakeWorld, fake_world, shell
from tests.fixtures.lora_repos import make_lora_repo
from tests.fixtures.roles import Roles
from tests.fixtures.s3 import S3Server
from tests.fixtures.talking_users import TalkingUsers, misbehave
from tests.fixtures.up import SCRIPTED_ENGINE, Up, eventually

pytestmark = pytest.mark.engine


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with fake_world(tmp_path) as world:
        yield world


@pytest.fixture
def settings(world: FakeWorld, rclone: S3Server, engine_python: Path) -> dict[str, object]:
    kubeconfig = world.server.write_kubeconfig(world.folder / "kubeconfig")
    return dict(
        cluster="kubernetes",
        kubernetes_kubeconfig=str(kubeconfig),
        kubernetes_contexts=["fake:models"],
        kubernetes_python=str(engine_python),
        kubernetes_engine_egress=["127.0.0.0/8:443"],
        kubernetes_pending_s=3,
        engine_image="registry.test/engine:1",
        serializer_image="registry.test/serializer:1",
        **rclone.settings(),
    )


@pytest.fixture
def up(start_platform: StartPlatform, settings: dict[str, object]) -> Up:
    return start_platform(**settings)


@pytest.fixture
def role_settings(settings: dict[str, object]) -> dict[str, object]:
    engine = [*SCRIPTED_ENGINE, "--token-delay-ms", "100", "--start-delay", "3"]
    return {**settings, "engine_command": engine, "failover_s": 60}


def test_from_submit_to_feedback_to_teardown_leaves_no_object(world: FakeWorld, up: Up) -> None:
    developer = up.client(Role.DEVELOPER, "ada")
    app = up.client(Role.BACKEND, "app")
    submission = developer.wait(developer.submit("acme/tiny", name="Tiny").id)
    assert submission.status is Status.DEPLOYED, submission.failure
    assert [run.stage for run in submission.stages] == list(Stage)
    assert all(run.outcome is Outcome.DONE and run.attempts == 1 for run in submission.stages)

    opened = app.open_conversation("user-17", next(iter(BOTS.values())), consent=True)
    reply = app.send(opened.conversation_id, "Hello! How are you?")
    assert "scripted engine" in reply.content
    app.rate(opened.conversation_id, True, "She is funny.")
    (feedback,) = developer.feedback(submission.id)
    assert feedback.text == "She is funny."

    (deployment,) = world.server.store.all("deployments")
    assert deployment["metadata"]["annotations"]["guanaco.dev/submission"] == submission.id
    world.server.store.delete(("deployments", "models", deployment["metadata"]["name"]))
    eventually(lambda: world.server.store.all("deployments"), "deployment that came back")
    eventually(lambda: _replies(app, opened.conversation_id), "reply of the server that came back")

    asyncio.run(_leave_a_stray(world))
    eventually(lambda: len(world.server.store.all("deployments")) == 1, "cluster without a stray")

    developer.teardown(submission.id)
    eventually(lambda: _left(world) == [], "cluster without an object of ours")


@pytest.mark.timeout(900)  # a pod imports vLLM
def test_submission_is_served_by_vllm_in_a_waiting_pod(
    world: FakeWorld,
    start_platform: StartPlatform,
    settings: dict[str, object],
    engine_forks: None,
) -> None:
    """The pod imports vLLM itself. That which takes its place in the pool is forked."""
    pools = {"small": {"size": 1}}
    up = start_platform(**settings, **REAL_ENGINE, kubernetes_pools=pools, engine_cache_bytes=0)
    (waiting,) = eventually(lambda: _waiting(world), "pod that waits", 300)
    pods_fork(world.kubelet)
    developer, app = up.client(Role.DEVELOPER, "ada"), up.client(Role.BACKEND, "app")
    submission = developer.wait(developer.submit("acme/tiny", name="Tiny").id)
    assert submission.status is Status.DEPLOYED, submission.failure
    (pod,) = world.kubelet.pods(deployment_name(submission.id))
    assert pod["metadata"]["uid"] == waiting["metadata"]["uid"]
    opened = app.open_conversation("user-17", next(iter(BOTS.values())), consent=True)
    assert opened.submission_id == submission.id
    assert app.send(opened.conversation_id, "Hello!").content
    developer.teardown(submission.id)
    eventually(lambda: not world.kubelet.pods(deployment_name(submission.id)), "end of its pod")


def test_of_two_clusters_one_that_is_drained_gets_nothing(
    world: FakeWorld, start_platform: StartPlatform, settings: dict[str, object]
) -> None:
    """Two namespaces stand for two clusters."""
    two = {
        "kubernetes_contexts": ["fake:models", "fake:others"],
        "kubernetes_weights": {"fake:models": 0},
    }
    up = start_platform(**{**settings, **two})
    developer = up.client(Role.DEVELOPER, "ada")
    app = up.client(Role.BACKEND, "app")
    submission = developer.wait(developer.submit("acme/tiny", name="Tiny").id)
    assert submission.status is Status.DEPLOYED, submission.failure
    (deployment,) = world.server.store.all("deployments")
    assert deployment["metadata"]["namespace"] == "others"
    opened = app.open_conversation("user-17", next(iter(BOTS.values())), consent=True)
    assert "scripted engine" in app.send(opened.conversation_id, "Hello!").content
    developer.teardown(submission.id)
    eventually(lambda: _left(world) == [], "clusters without an object of ours")


@pytest.mark.timeout(600)  # three redeploys
def test_redeploy_worse_canary_and_rollback_while_users_talk(
    world: FakeWorld, start_platform: StartPlatform, settings: dict[str, object]
) -> None:
    engine = [*SCRIPTED_ENGINE, "--token-delay-ms", "100"]
    up = start_platform(**settings, engine_command=engine)
    developer = up.client(Role.DEVELOPER, "ada")
    submission = developer.wait(developer.submit("acme/tiny", name="Tiny").id)
    assert submission.status is Status.DEPLOYED, submission.failure
    first = deployment_name(submission.id)
    second, third, fourth = (deployment_name(beside(submission.id, run)) for run in (2, 3, 4))
    with (
        objects_seen(world) as seen,
        TalkingUsers(up.base_url, up.admin_key) as users,
    ):
        developer.redeploy(submission.id)
        done = developer.wait(submission.id)
        assert done.rollout is not None
        assert done.rollout.phase is RolloutPhase.DONE, done.rollout.failure
        eventually(lambda: _names(world) == {second}, "end of the version before")
        users.talk_on()

        developer.redeploy(submission.id, canary=0.5)
        assert developer.wait(submission.id).is_served
        misbehave(up.replicas(beside(submission.id, 3))[0], fail=0.7)
        ended = eventually(lambda: _ended(developer, submission.id), "end of the canary")
        assert ended.phase is RolloutPhase.FAILED
        assert ended.failure is not None
        assert ended.failure.detail.startswith("The canary is worse: ")
        assert "conversations had a failed reply" in ended.failure.detail
        eventually(lambda: _names(world) == {second}, "end of the canary's server")
        users.talk_on()

        developer.rollback(submission.id)
        back = developer.wait(submission.id)
        assert back.rollout is not None
        assert back.rollout.phase is RolloutPhase.DONE, back.rollout.failure
        eventually(lambda: _names(world) == {fourth}, "end of the version before")
        users.talk_on()

    assert users.faults == []
    assert {first, second} in seen
    assert {second, third} in seen
    assert {second, fourth} in seen
    assert all(len(names) <= 2 for names in seen)
    developer.teardown(submission.id)
    eventually(lambda: _left(world) == [], "cluster without an object of ours")


@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_a_redeploy_goes_on_when_another_worker_takes_over(world: FakeWorld, roles: Roles) -> None:
    api, worker, client, submission = published(roles)
    with TalkingUsers(api.base_url, roles.admin_key, 4) as users:
        client.redeploy(submission.id)
        eventually(lambda: is_in(client, submission.id, RolloutPhase.PREPARING), "new server")
        worker.kill()
        roles.start("worker", "worker-1")
        done = client.wait(submission.id)
        assert done.rollout is not None
        assert done.rollout.phase is RolloutPhase.DONE, done.rollout.failure
        second = deployment_name(beside(submission.id, 2))
        eventually(lambda: _names(world) == {second}, "end of the version before")
        users.talk_on()
    assert users.faults == []
    assert_nothing_is_left(roles, submission.id)


def test_cluster_limits_reach_the_developer_as_one_sentence(world: FakeWorld, up: Up) -> None:
    world.kubelet.no_quota[""] = 'pods "s" is forbidden: exceeded quota: models, used: pods=4'
    developer = up.client(Role.DEVELOPER, "ada")
    submission = developer.wait(developer.submit("acme/tiny", name="Tiny").id)
    assert submission.status is Status.FAILED
    assert submission.failure is not None
    assert submission.failure.detail == (
        "The cluster's quota does not allow it: exceeded quota: models, used: pods=4."
    )
    eventually(lambda: _left(world) == [], "cluster without an object of ours")


async def _leave_a_stray(world: FakeWorld) -> None:
    async with world.cluster("a worker of another time") as cluster:
        await cluster.apply_deployment(shell("m-stray", "sleep 600"))


def _replies(app: Client, conversation_id: str) -> bool:
    try:
        return bool(app.send(conversation_id, "And now?"))
    except GuanacoError:
        return False


@contextmanager
def objects_seen(world: FakeWorld) -> Iterator[set[frozenset[str]]]:
    """Collect which Deployments there were at once, until the block ends."""
    seen: set[frozenset[str]] = set()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.05):
            seen.add(frozenset(_names(world)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def _names(world: FakeWorld) -> set[str]:
    """The platform's names of the Deployments that are there."""
    return {
        found["metadata"]["annotations"]["guanaco.dev/name"]
        for found in world.server.store.all("deployments")
    }


def _ended(client: Client, submission_id: str) -> Rollout | None:
    rollout = client.submission(submission_id).rollout
    return rollout if rollout is not None and not rollout.phase.is_in_progress else None


def _waiting(world: FakeWorld) -> list[Json]:
    pods = world.server.store.all("pods")
    waiting = [pod for pod in pods if "guanaco.dev/pool" in pod["metadata"]["labels"]]
    return [pod for pod in waiting if statuses.is_ready(pod)]


def _left(world: FakeWorld) -> list[str]:
    return [line for line in world.left() if not line.startswith("leases/")]


@pytest.mark.timeout(900)
def test_adapter_is_served_by_its_bases_pod_after_kill_9(
    world: FakeWorld,
    start_platform: StartPlatform,
    settings: dict[str, object],
    hub: ControlledHub,
    engine_forks: None,
) -> None:
    pods_fork(world.kubelet)
    for seed, name in enumerate(("one", "two"), 1):
        make_lora_repo(hub.root / "acme" / name, hub.root / "acme" / "tiny", seed=seed)
    world.kubelet.back_off_s = 0.2
    up = start_platform(**settings, **REAL_ENGINE, lora_serving="adapter", engine_cache_bytes=0)
    developer, app = up.client(Role.DEVELOPER, "ada"), up.client(Role.BACKEND, "app")
    first = developer.wait(developer.submit("acme/one", name="One").id)
    assert first.status is Status.DEPLOYED, first.failure
    second = developer.wait(developer.submit("acme/two", name="Two").id)
    assert second.status is Status.DEPLOYED, second.failure
    (deployment,) = world.server.store.all("deployments")
    assert TOKEN_VARIABLE not in json.dumps(deployment)
    talks = [
        app.open_conversation("user-17", next(iter(BOTS.values())), consent=True) for _ in range(2)
    ]
    assert {talk.submission_id for talk in talks} == {first.id, second.id}
    for talk in talks:
        assert app.send(talk.conversation_id, "Hello!").content

    (pod,) = world.kubelet.pods(deployment["metadata"]["name"])
    before = world.kubelet.processes[pod["metadata"]["uid"]]
    kill_server(before.folder)
    for talk in talks:
        eventually(partial(_replies, app, talk.conversation_id), "reply", 300)
    of_second = next(talk for talk in talks if talk.submission_id == second.id)
    developer.teardown(first.id)
    assert app.send(of_second.conversation_id, "Still there?").content
    developer.teardown(second.id)
    eventually(lambda: _left(world) == [], "cluster without an object of ours")
