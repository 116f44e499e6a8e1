"""The story of test_submit_to_first_feedback, with jobs and model servers in Kubernetes: the platform is the real one,
the API server and its nodes are the fake ones, the pods' commands run as processes, artifacts are in a bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from guanaco import Client
from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.errors import GuanacoError
from guanaco.submissions import Outcome, Stage, Status
from tests.e2e.conftest import StartPlatform
from tests.fixtures.kubernetes import FakeWorld, fake_world, shell
from tests.fixtures.s3 import S3Server
from tests.fixtures.up import Up, eventually

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


def test_what_the_cluster_cannot_do_is_one_sentence_for_the_developer(
    world: FakeWorld, up: Up
) -> None:
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


def _left(world: FakeWorld) -> list[str]:
    return [line for line in world.left() if not line.startswith("leases/")]
