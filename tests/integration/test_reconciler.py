"""The reconciler brings the cluster to what the database wishes."""

from __future__ import annotations

import json

import pytest
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

from guanaco.accounts import Role
from guanaco.errors import ModelServerDied, StoreUnreachable
from guanaco.submissions import Quantization, Status
from guanaco_server.clusters.cluster import DeploymentSpec
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.health import HANGS_AFTER, DeploymentHealth
from guanaco_server.deployments.engines.servers import RENEW_S
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.reconciling.backoff import BURST, LONGEST_DELAY_S
from guanaco_server.deployments.reconciling.engine_reconciler import LOST, STABLE_S
from guanaco_server.deployments.tables import Phase
from guanaco_server.engine.artifacts.source import URLS_VARIABLE
from guanaco_server.formats.manifest import MANIFEST_NAME, TENSORS_NAME
from guanaco_server.submissions.pipeline.server_start import evidence
from tests.fixtures.reconciling import SwitchedLeadership, compute_of, reconciler_of
from tests.fixtures.world import World, eventually

ID = "acme-tiny_v1"
NAME = deployment_name(ID)
OTHER = "acme-tiny_v2"


class Kept(World):
    """A world with a reconciler that allows one restart."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.leadership = SwitchedLeadership()
        self.given_up: list[tuple[str, list[str]]] = []
        compute = compute_of(self, leadership=self.leadership, regions=frozenset({"eu"}))
        self.reconciler = reconciler_of(self, self._give_up, compute)

    async def _give_up(self, submission_id: str, lines: list[str]) -> None:
        """Give it up as the platform does."""
        self.given_up.append((submission_id, lines))
        await self.journal.fail_published(submission_id, ModelServerDied(evidence(lines)))

    async def deploy(self) -> None:
        await self.publish(await self.account(Role.DEVELOPER, "ada"), ID)
        deployment = Deployment(ID, 1, "a" * 64, 1_096, Quantization.FP8)
        await self.deployments.wish(deployment)
        await self.deployments.servers.apply(deployment)

    async def make_ready(self) -> None:
        await self.deploy()
        await self.deployments.mark_ready(ID, "memory://1")
        await self.reconciler.reconcile()


@pytest.fixture
def world(database: Database) -> Kept:
    return Kept(database)


async def test_a_server_is_given_the_size_of_its_artifact(database: Database) -> None:
    """Kubernetes gives a server time to start by it: without it the largest models are killed while they load."""
    world = Kept(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), ID)
    stored = await world.store.find("a" * 64)
    assert stored is not None
    world.store.stage("b" * 64, stored.model_copy(update={"tensors_bytes": 140_000_000_000}), {})
    await world.store.publish("b" * 64)
    deployment = Deployment(ID, 1, "b" * 64, 1_096)
    await world.deployments.wish(deployment)
    await world.deployments.servers.apply(deployment)
    assert world.cluster.deployments[NAME].spec.artifact_bytes == 140_000_000_000


async def test_dead_server_restarts_and_is_used_when_healthy(world: Kept) -> None:
    await world.make_ready()
    world.cluster.die(NAME)
    await world.reconciler.reconcile()
    assert not world.deployments.replicas(ID)
    assert world.cluster.starts == [NAME, NAME]
    await world.reconciler.reconcile()
    assert world.deployments.replicas(ID)
    assert "--quantization" in world.cluster.deployments[NAME].spec.command


async def test_server_that_keeps_dying_is_given_up_with_its_output(world: Kept) -> None:
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
    assert not world.deployments.replicas(ID)
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
    assert world.deployments.replicas(ID)


async def test_server_found_at_platform_start_is_used_at_once(world: Kept) -> None:
    await world.make_ready()
    world.deployments.note_replicas(ID, ())
    await world.reconciler.start()
    assert world.deployments.replicas(ID)
    assert world.cluster.starts == [NAME]
    await world.reconciler.stop()


async def test_hanging_server_is_removed_at_once_and_restarted_later(world: Kept) -> None:
    await world.make_ready()
    world.model_server.unhealthy.update(world.deployments.replicas(ID))
    await world.reconciler.reconcile()
    assert not world.deployments.replicas(ID)
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


@pytest.mark.both_databases
async def test_late_apply_does_not_revive_a_withdrawn_server(
    world: Kept,
) -> None:
    await world.make_ready()
    await world.withdraw(ID)
    await world.deployments.servers.apply(Deployment(ID, 1, "a" * 64, 1_096))
    assert await world.cluster.list_deployments() == []


async def test_each_server_start_gets_fresh_artifact_urls(world: Kept) -> None:
    await world.make_ready()
    first = world.cluster.deployments[NAME].spec
    assert "a" * 64 in " ".join(first.command)
    assert set(json.loads(first.secrets[URLS_VARIABLE])) == {TENSORS_NAME, MANIFEST_NAME}
    assert not any("manifest.json" in part for part in first.command)
    world.cluster.die(NAME)
    await world.reconciler.reconcile()
    assert world.cluster.starts == [NAME, NAME]


async def test_servers_moved_by_the_cluster_find_valid_urls(
    world: Kept,
) -> None:
    await world.make_ready()
    for _ in range(2):
        world.clock.advance(RENEW_S + 1)
        await world.reconciler.reconcile()
        await world.reconciler.reconcile()
    assert world.cluster.renewed == [NAME, NAME]
    assert world.cluster.starts == [NAME]


@pytest.mark.both_databases
async def test_submission_says_since_when_and_why_nothing_answers(world: Kept) -> None:
    await world.make_ready()
    ada = await world.account(Role.DEVELOPER, "ada")
    assert (await world.submissions.require_visible(ada, ID)).unserved is None
    world.cluster.die(NAME, 7)
    await world.reconciler.reconcile()
    unserved = (await world.submissions.require_visible(ada, ID)).unserved
    assert unserved is not None
    assert (unserved.trouble, unserved.since) == ("crashed", world.clock.now())
    assert unserved.problem == "Its model server exited with status 7."
    assert (await world.overview.count_unserved())["crashed"] == 1
    await world.reconciler.reconcile()
    assert (await world.submissions.require_visible(ada, ID)).unserved is None
    assert not any((await world.overview.count_unserved()).values())


async def test_a_store_out_of_reach_counts_as_no_restart(database: Database) -> None:
    world = Kept(database)
    await world.make_ready()
    world.cluster.die(NAME)
    reach, world.store.access = world.store.access, _out_of_reach  # type: ignore[method-assign]
    for _ in range(5):
        await world.reconciler.reconcile()
    assert world.given_up == []
    assert not world.deployments.replicas(ID)
    world.store.access = reach  # type: ignore[method-assign]
    world.clock.advance(LONGEST_DELAY_S)
    await world.reconciler.reconcile()
    assert world.cluster.starts == [NAME, NAME]


async def test_a_lost_artifact_is_waited_for_and_is_no_crash(
    world: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    await world.make_ready()
    manifest = await world.store.find("a" * 64)
    assert manifest is not None
    await world.store.delete("a" * 64)
    world.cluster.die(NAME)
    for _ in range(5):
        await world.reconciler.reconcile()
        world.clock.advance(LONGEST_DELAY_S)
    assert (world.given_up, world.cluster.starts) == ([], [NAME])
    ada = await world.account(Role.DEVELOPER, "ada")
    unserved = (await world.submissions.require_visible(ada, ID)).unserved
    assert unserved is not None
    assert (unserved.trouble, unserved.problem) == ("artifact_missing", LOST)
    assert caplog.text.count(LOST) == 1
    assert await world.deployments.lost() == [[ID]]
    world.store.stage("a" * 64, manifest, {})
    await world.store.publish("a" * 64)
    for _ in range(2):
        await world.reconciler.reconcile()
    assert world.cluster.starts == [NAME, NAME]
    assert world.deployments.replicas(ID)
    assert await world.deployments.lost() == []


async def test_a_platform_that_starts_without_its_artifacts_starts_no_server(world: Kept) -> None:
    await world.make_ready()
    await world.store.delete("a" * 64)
    await world.cluster.delete(NAME)
    restarted = reconciler_of(world, world._give_up)
    for _ in range(3):
        await restarted.reconcile()
    assert (world.given_up, world.cluster.starts) == ([], [NAME])
    assert await world.deployments.lost() == [[ID]]


async def test_a_server_that_was_deleted_by_hand_comes_back(world: Kept) -> None:
    await world.make_ready()
    await world.cluster.delete(NAME)
    for _ in range(2):
        await world.reconciler.reconcile()
    assert world.deployments.replicas(ID)
    assert world.cluster.starts == [NAME, NAME]


async def test_dead_node_is_noticed_once_and_its_server_moves(
    world: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    await world.make_ready()
    world.cluster.trouble(NAME, "Node n1 is not ready.")
    world.model_server.unhealthy.update(world.deployments.replicas(ID))
    for _ in range(HANGS_AFTER + 1):
        await world.reconciler.reconcile()
    assert caplog.text.count(f"{ID} has a problem: Node n1 is not ready.") == 1
    assert world.cluster.starts == [NAME, NAME]


async def test_every_action_says_why(world: Kept, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await world.make_ready()
    world.cluster.die(NAME, 137)
    await world.cluster.apply_deployment(DeploymentSpec("m-stray", ("engine",)))
    await world.reconciler.reconcile()
    assert f"starting the server of {ID} again (1): it exited with status 137" in caplog.text
    assert "stopping m-stray: nobody wishes for it" in caplog.text


async def test_trouble_with_one_deployment_delays_no_other_and_is_paced(world: Kept) -> None:
    await world.make_ready()
    await world.publish(await world.account(Role.DEVELOPER, "bob"), OTHER)
    await world.store_artifact("b" * 64, {})
    await world.deployments.wish(Deployment(OTHER, 1, "b" * 64, 1_096))
    await world.deployments.servers.apply(Deployment(OTHER, 1, "b" * 64, 1_096))
    await world.deployments.mark_ready(OTHER, "memory://2")
    world.cluster.die(NAME)
    world.cluster.die(deployment_name(OTHER))
    tries, access = list[str](), world.store.access

    async def broken(key: str) -> dict[str, str]:
        tries.append(key)
        return await (_out_of_reach(key) if key == "a" * 64 else access(key))

    world.store.access = broken  # type: ignore[method-assign]
    for _ in range(20):
        await world.reconciler.reconcile()
    assert world.deployments.replicas(OTHER)
    assert not world.deployments.replicas(ID)
    assert tries.count("a" * 64) == BURST


@pytest.mark.both_databases
async def test_only_the_leader_acts_and_a_new_one_observes_first(world: Kept) -> None:
    await world.make_ready()
    world.deployments.note_replicas(ID, ())
    world.leadership.leads = False
    await world.reconciler.start()
    assert world.deployments.replicas(ID), "learnt from the database"
    world.cluster.die(NAME)
    await world.reconciler.reconcile()
    assert world.cluster.starts == [NAME]
    world.leadership.leads = True
    world.deployments.woken.set()

    async def is_started_again() -> bool:
        return world.cluster.starts == [NAME, NAME]

    await eventually(is_started_again)
    row = await world.deployments.find(ID)
    assert row is not None
    assert row.restarts == 0, "what happened without a leader is nobody's fault"
    await world.reconciler.stop()


async def test_servers_of_a_lost_region_move_without_a_crash(
    world: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    await world.make_ready()
    await world.deployments.note(ID, region="us")
    await world.cluster.delete(NAME)
    for _ in range(2):
        await world.reconciler.reconcile()
    assert f"moving {ID}: its region us is no longer in the settings" in caplog.text
    row = await world.deployments.find(ID)
    assert row is not None
    assert (row.region, row.restarts, row.phase) == (None, 0, Phase.READY)


async def _out_of_reach(key: str) -> dict[str, str]:
    raise StoreUnreachable("The store does not answer.")


async def test_follower_starts_and_stops_nothing_but_knows_readiness(
    world: Kept,
) -> None:
    await world.make_ready()
    world.leadership.leads = False
    await world.reconciler.start()
    await world.reconciler.stop()
    assert world.deployments.replicas(ID) == (world.cluster.deployments[NAME].state.endpoint,)
    world.cluster.die(NAME)
    await world.cluster.apply_deployment(DeploymentSpec("m-stray", ("serve",)))
    await world.reconciler.reconcile()
    assert world.cluster.starts == [NAME, "m-stray"]
    assert "m-stray" in await world.cluster.list_deployments()
    world.leadership.leads = True
    await world.reconciler.reconcile()
    assert world.cluster.starts == [NAME, "m-stray", NAME]
    assert await world.cluster.list_deployments() == [NAME]


@pytest.mark.both_databases
async def test_older_state_does_not_replace_a_new_runs_server(world: Kept) -> None:
    """A task may have waited for the cluster while the submission was submitted again."""
    await world.make_ready()
    old = (await world.deployments.list_wishes())[0]
    new = Deployment(ID, 2, "a" * 64, 1_096)
    await world.deployments.wish(new)
    await world.deployments.servers.apply(new)
    world.clock.advance(RENEW_S + 1)
    await world.deployments.servers.apply(Deployment.of(old))
    await world.deployments.servers.renew_secrets(old)
    await world.deployments.mark(ID, Phase.READY, ("memory://1",), seen=old)
    assert not await world.deployments.servers.stop_server_of(old)
    assert world.cluster.deployments[NAME].spec.environment["GUANACO_RUN"] == "2"
    assert world.cluster.renewed == []
    assert not world.deployments.replicas(ID)
    assert [row.phase for row in await world.deployments.list_wishes()] == [Phase.STARTING]


@pytest.mark.both_databases
async def test_submission_put_to_sleep_meanwhile_is_not_marked_restarting(
    database: Database,
) -> None:
    world = Kept(database)
    await world.make_ready()
    apply_deployment = world.cluster.apply_deployment

    async def slow(spec: DeploymentSpec) -> None:
        """The operator's hand is quicker than the cluster."""
        await world.deployments.note(ID, phase=Phase.SLEEPING)
        await apply_deployment(spec)

    world.cluster.apply_deployment = slow  # type: ignore[method-assign]
    world.cluster.die(NAME)
    await world.reconciler.reconcile()
    assert [row.phase for row in await world.deployments.list_wishes()] == [Phase.SLEEPING]
    await world.reconciler.reconcile()
    assert await world.cluster.list_deployments() == []


@pytest.mark.both_databases
async def test_lack_of_connections_ends_neither_loop_nor_tasks(world: Kept) -> None:
    await world.make_ready()
    look = world.deployments.servers.look

    async def without_connection(server_key: str) -> DeploymentHealth:
        raise NoConnectionLeft("QueuePool limit of size 10 overflow 10 reached")

    world.deployments.servers.look = without_connection  # type: ignore[method-assign]
    await world.reconciler.reconcile()
    world.deployments.servers.look = look  # type: ignore[method-assign]
    await world.reconciler.reconcile()
    assert world.deployments.replicas(ID)
