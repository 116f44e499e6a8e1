"""The reconciler brings the cluster to what the database wishes; on both databases."""

from __future__ import annotations

import json

import pytest

from guanaco.accounts import Role
from guanaco.errors import ModelServerDied, StoreUnreachable
from guanaco.submissions import Quantization, Status
from guanaco_server.database.database import Database
from guanaco_server.deployments.clusters.cluster import DeploymentSpec
from guanaco_server.deployments.reconciler import HANGS_AFTER, STABLE_S, Reconciler
from guanaco_server.deployments.service import Deployment
from guanaco_server.deployments.specs import deployment_name
from guanaco_server.engine.artifact_source import URLS_VARIABLE
from guanaco_server.formats.manifest import MANIFEST_NAME, TENSORS_NAME
from guanaco_server.submissions.pipeline.readiness import evidence
from tests.fixtures.world import World

ID = "acme-tiny_v1"
NAME = deployment_name(ID)


class Kept(World):
    """A world with a reconciler that allows one restart."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.given_up: list[tuple[str, list[str]]] = []
        self.is_leading = True
        self.reconciler = Reconciler(
            self.deployments,
            self.cluster,
            self.clock,
            self._give_up,
            restart_limit=1,
            ready_timeout_s=60,
            is_leading=lambda: self.is_leading,
        )

    async def _give_up(self, submission_id: str, lines: list[str]) -> None:
        """As the platform does."""
        self.given_up.append((submission_id, lines))
        await self.journal.fail_published(submission_id, ModelServerDied(evidence(lines)))

    async def deploy(self) -> None:
        await self.publish(await self.account(Role.DEVELOPER, "ada"), ID)
        deployment = Deployment(ID, 1, "a" * 64, 1_096, Quantization.FP8)
        await self.deployments.wish(deployment)
        await self.deployments.apply(deployment)

    async def make_ready(self) -> None:
        await self.deploy()
        await self.deployments.mark_ready(ID, "memory://1")
        await self.reconciler.reconcile()


@pytest.fixture
def world(database: Database) -> Kept:
    return Kept(database)


async def test_a_dead_server_is_started_again_and_used_when_it_is_healthy(world: Kept) -> None:
    await world.make_ready()
    world.cluster.die(NAME)
    await world.reconciler.reconcile()
    assert world.deployments.endpoints() == {}
    assert world.cluster.starts == [NAME, NAME]
    await world.reconciler.reconcile()
    assert set(world.deployments.endpoints()) == {ID}
    assert "--quantization" in world.cluster.deployments[NAME].spec.command


async def test_a_server_that_keeps_dying_is_given_up_with_its_last_words(world: Kept) -> None:
    await world.make_ready()
    for _ in range(2):
        world.cluster.die(NAME, lines=["ERROR: out of luck"])
        await world.reconciler.reconcile()
        await world.reconciler.reconcile()
    assert [submission_id for submission_id, _ in world.given_up] == [ID]
    assert world.given_up[0][1][-1] == "ERROR: out of luck"
    ada = await world.account(Role.DEVELOPER, "ada")
    submission = await world.submissions.require_visible(ada, ID)
    assert submission.status is Status.FAILED
    assert submission.failure is not None
    assert submission.failure.code == "model_server_died"
    assert "ERROR: out of luck" in submission.failure.detail
    assert await world.deployments.list_wishes() == []
    assert world.deployments.endpoints() == {}
    assert await world.cluster.list_deployments() == []


async def test_a_server_that_ran_long_has_its_restarts_forgiven(world: Kept) -> None:
    await world.make_ready()
    for _ in range(3):
        world.cluster.die(NAME)
        await world.reconciler.reconcile()  # starts it again
        await world.reconciler.reconcile()  # finds it healthy
        world.clock.advance(STABLE_S + 1)
        await world.reconciler.reconcile()
    assert world.given_up == []
    assert set(world.deployments.endpoints()) == {ID}


async def test_a_server_found_at_the_start_of_the_platform_is_used_at_once(world: Kept) -> None:
    await world.make_ready()
    world.deployments.note_endpoint(ID, None)
    await world.reconciler.start()
    assert set(world.deployments.endpoints()) == {ID}
    assert world.cluster.starts == [NAME]
    await world.reconciler.stop()


async def test_a_server_that_hangs_is_taken_out_at_once_and_restarted_later(world: Kept) -> None:
    await world.make_ready()
    world.model_server.unhealthy.update(world.deployments.endpoints().values())
    await world.reconciler.reconcile()
    assert world.deployments.endpoints() == {}
    assert world.cluster.starts == [NAME]
    for _ in range(HANGS_AFTER):
        await world.reconciler.reconcile()
    assert world.cluster.starts == [NAME, NAME]


async def test_a_stray_server_is_stopped(world: Kept) -> None:
    await world.make_ready()
    await world.cluster.apply_deployment(DeploymentSpec("m-stray", ("engine",)))
    await world.reconciler.reconcile()
    assert await world.cluster.list_deployments() == [NAME]


async def test_a_starting_server_belongs_to_its_pipeline_stage(world: Kept) -> None:
    await world.deploy()
    world.cluster.die(NAME)
    await world.reconciler.reconcile()
    assert world.cluster.starts == [NAME]
    assert world.given_up == []


async def test_a_withdrawn_server_is_stopped_and_a_late_apply_does_not_bring_it_back(
    world: Kept,
) -> None:
    await world.make_ready()
    await world.deployments.remove(ID)
    await world.deployments.apply(Deployment(ID, 1, "a" * 64, 1_096))
    assert await world.cluster.list_deployments() == []


async def test_each_start_of_a_server_gets_fresh_urls_of_a_remote_artifact(world: Kept) -> None:
    await world.make_ready()
    first = world.cluster.deployments[NAME].spec
    assert "a" * 64 in " ".join(first.command)
    assert set(json.loads(first.secrets[URLS_VARIABLE])) == {TENSORS_NAME, MANIFEST_NAME}
    assert not any("manifest.json" in part for part in first.command)
    world.cluster.die(NAME)
    await world.reconciler.reconcile()
    assert world.cluster.starts == [NAME, NAME]


async def test_a_store_out_of_reach_counts_as_no_restart(database: Database) -> None:
    world = Kept(database)
    await world.make_ready()
    world.cluster.die(NAME)
    reach, world.store.access = world.store.access, _out_of_reach  # type: ignore[method-assign]
    for _ in range(5):
        with pytest.raises(StoreUnreachable):
            await world.reconciler.reconcile()
    assert world.given_up == []
    assert world.deployments.endpoints() == {}
    world.store.access = reach  # type: ignore[method-assign]
    await world.reconciler.reconcile()
    assert world.cluster.starts == [NAME, NAME]


async def _out_of_reach(key: str) -> dict[str, str]:
    raise StoreUnreachable("The store does not answer.")


async def test_who_does_not_lead_stops_and_starts_nothing_and_knows_what_is_ready(
    world: Kept,
) -> None:
    await world.make_ready()
    world.is_leading = False
    await world.reconciler.start()
    await world.reconciler.stop()
    assert world.deployments.endpoints() == {ID: "memory://1"}
    world.cluster.die(NAME)
    await world.cluster.apply_deployment(DeploymentSpec("m-stray", ("serve",)))
    await world.reconciler.reconcile()
    assert world.cluster.starts == [NAME, "m-stray"]
    assert "m-stray" in await world.cluster.list_deployments()
    world.is_leading = True
    await world.reconciler.reconcile()
    assert world.cluster.starts == [NAME, "m-stray", NAME]
    assert await world.cluster.list_deployments() == [NAME]
