"""Waking by a swap: the server of a submission that sleeps takes the weights of one that wakes.

The cluster and the model servers are in memory here; test_swapped_engines.py does it with real vLLM.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from guanaco.accounts import Role
from guanaco.errors import StoreUnreachable
from guanaco.submissions import Status
from guanaco_server.artifacts.stores.memory import MemoryStore
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.engines.health import HANGS_AFTER
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.model_servers.model_server import ModelServerFault, ServerBusy
from guanaco_server.deployments.tables import EngineRow, Phase
from guanaco_server.formats.control import TOKEN_VARIABLE
from guanaco_server.formats.shape import swap_refusal
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.artifacts import random_tensors, write_artifact
from tests.fixtures.scaled import QUIET_S, Scaled
from tests.fixtures.world import eventually

FIRST, SECOND, THIRD = "acme-tiny_v1", "acme-tiny_v2", "acme-tiny_v3"
OTHER = "acme-other_v1"
ADAPTER = "1" * 64
KEYS = {FIRST: "c" * 64, SECOND: "d" * 64, THIRD: "e" * 64, OTHER: "f" * 64}
LLAMA = {"architectures": ["LlamaForCausalLM"]}


class Hot(Scaled):
    """A world that keeps one server of a submission that sleeps."""

    changes = {**Scaled.changes, "hot_engines": 1, "hot_engine_s": 900, "hot_engine_requests": 0}

    async def make_artifact(
        self, folder: Path, key: str, config: dict[str, object], size: int = 64
    ) -> None:
        small = {"config.json": json.dumps(config).encode()}
        manifest = write_artifact(folder / key, random_tensors(size), small, key)
        assert isinstance(self.store, MemoryStore)
        self.store.stage(key, manifest, small)
        await self.store.publish(key)

    def deployment(self, submission_id: str) -> Deployment:
        return replace(
            super().deployment(submission_id), artifact_key=KEYS[submission_id], is_private=False
        )

    async def serve_known(self, submission_id: str) -> str:
        """Serve a submission by a server that knows which artifact it holds, and return its endpoint."""
        await self.serve(submission_id)
        return await self.leave(submission_id)

    async def has_swap_begun(self) -> bool:
        return bool(self.model_server.swaps)

    async def leave(self, submission_id: str) -> str:
        """Give the submission no new conversations, so that nobody wants it awake, and return its server's endpoint."""
        endpoint = self.cluster.deployments[deployment_name(submission_id)].state.endpoint
        self.model_server.artifacts[endpoint] = KEYS[submission_id]
        async with self.database.write() as session:
            row = await session.get(SubmissionRow, submission_id)
            assert row is not None
            row.status = Status.INACTIVE
        await self.routing.refresh()
        return endpoint


class Adapting(Hot):
    """A world whose servers take adapters, of which the second submission is one."""

    first_takes_adapters = True

    def deployment(self, submission_id: str) -> Deployment:
        wanted = super().deployment(submission_id)
        if submission_id == SECOND:
            return replace(wanted, artifact_key=ADAPTER, base_key=KEYS[SECOND])
        return replace(wanted, base_key=wanted.artifact_key if self.first_takes_adapters else None)


class PartlyAdapting(Adapting):
    """The same, except that the first server takes no adapters."""

    first_takes_adapters = False


class Hottest(Hot):
    """A world that keeps two."""

    changes = {**Hot.changes, "hot_engines": 2}


class Forgetful(Hot):
    """A world whose servers keep no weights while they sleep on a GPU."""

    changes = {**Hot.changes, "sleep_memory_bytes": 0}


class Cold(Hot):
    """A world that keeps none."""

    changes = {**Scaled.changes, "hot_engines": 0}


async def one_asleep_one_hot(
    world: Hot, folder: Path, second: dict[str, object] = LLAMA, size: int = 64
) -> str:
    """The second submission sleeps without a server; the first sleeps too, and its server is kept. Return its endpoint."""
    await world.make_artifact(folder, KEYS[FIRST], LLAMA)
    await world.make_artifact(folder, KEYS[SECOND], second, size)
    await world.store_artifact(ADAPTER, {})
    await world.serve_known(SECOND)
    await world.deployments.put_to_sleep(SECOND, world.clock.now())
    endpoint = await world.serve_known(
        FIRST
    )  # it is used later, so its server is the one that stays
    await world.deployments.put_to_sleep(FIRST, world.clock.now())
    await world.reconciler.reconcile()
    assert list(world.cluster.deployments) == [deployment_name(FIRST)]
    world.cluster.starts.clear()
    return endpoint


async def wake(world: Hot, submission_id: str) -> None:
    await world.deployments.wake(submission_id)
    for _ in range(3):
        await world.reconciler.reconcile()


async def test_what_wakes_takes_over_a_hot_server_of_its_shape(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database)
    by_another_person = {**LLAMA, "transformers_version": "5.19.0", "use_cache": False}
    endpoint = await one_asleep_one_hot(world, tmp_path, by_another_person)
    started = (await world.row(SECOND)).start_s
    assert started
    await wake(world, SECOND)
    assert world.cluster.starts == [], "no process was started"
    assert (await world.row(SECOND)).start_s == started, "what its next start may take"
    assert [at for at, _ in world.model_server.swaps] == [endpoint]
    assert world.deployments.replicas(SECOND) == (endpoint,)
    assert world.deployments.model_name(SECOND) == f"{FIRST}#{KEYS[SECOND]}"
    spec = world.cluster.deployments[deployment_name(FIRST)].spec
    assert world.store.uri(KEYS[SECOND]) in spec.command, "what a restart would load"
    order = world.model_server.swaps[0][1]
    async with database.read() as session:
        rows = {name: await session.get(EngineRow, name) for name in (FIRST, SECOND)}
    first = rows[FIRST]
    assert first is not None
    assert order.token == first.token == spec.secrets[TOKEN_VARIABLE]

    await world.deployments.put_to_sleep(SECOND, world.clock.now())
    await wake(world, FIRST)
    assert world.cluster.starts == []
    assert world.deployments.replicas(FIRST) == (endpoint,)
    assert world.model_server.artifacts[endpoint] == KEYS[FIRST]


async def test_an_adapter_takes_over_a_server_that_takes_adapters(
    database: Database, tmp_path: Path
) -> None:
    world = Adapting(database)
    endpoint = await one_asleep_one_hot(world, tmp_path)
    world.model_server.adapters[endpoint] = {"2" * 64}  # on what it held
    await wake(world, SECOND)
    assert world.cluster.starts == [], "no process was started"
    assert world.model_server.artifacts[endpoint] == KEYS[SECOND]
    assert world.model_server.adapters[endpoint] == {ADAPTER}
    assert world.deployments.replicas(SECOND) == (endpoint,)
    assert world.deployments.model_name(SECOND) == f"{ADAPTER}#{KEYS[SECOND]}"


async def test_an_adapter_takes_over_no_server_without_adapters(
    database: Database, tmp_path: Path
) -> None:
    world = PartlyAdapting(database)
    await one_asleep_one_hot(world, tmp_path)
    await wake(world, SECOND)
    assert world.cluster.starts == [deployment_name(SECOND)]
    assert world.model_server.swaps == []


async def test_its_own_hot_server_needs_no_swap(database: Database, tmp_path: Path) -> None:
    world = Hot(database)
    endpoint = await one_asleep_one_hot(world, tmp_path)
    await wake(world, FIRST)
    assert world.deployments.replicas(FIRST) == (endpoint,)
    assert (world.cluster.starts, world.model_server.swaps) == ([], [])


@pytest.mark.parametrize(("kind", "level"), [(Hot, 1), (Forgetful, 2)])
async def test_hot_server_on_a_gpu_sleeps_until_a_swap(
    database: Database, tmp_path: Path, kind: type[Hot], level: int
) -> None:
    world = kind(database)
    world.model_server.has_sleep_levels = True
    endpoint = await one_asleep_one_hot(world, tmp_path)
    assert world.model_server.asleep[endpoint] == level
    for submission_id in (FIRST, SECOND):
        await wake(world, submission_id)
        assert world.deployments.replicas(submission_id) == (endpoint,)
        assert endpoint not in world.model_server.asleep
        assert world.model_server.artifacts[endpoint] == KEYS[submission_id]
        await world.deployments.put_to_sleep(submission_id, world.clock.now())
        await world.reconciler.reconcile()
        assert world.model_server.asleep[endpoint] == level
    world.restart()
    await world.reconciler.reconcile()
    assert world.model_server.asleep[endpoint] == level
    assert world.cluster.starts == []


@pytest.mark.both_databases
async def test_a_server_swapped_meanwhile_does_not_sleep(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database)
    world.model_server.has_sleep_levels = True
    endpoint = await one_asleep_one_hot(world, tmp_path)
    await wake(world, FIRST)
    await world.deployments.put_to_sleep(FIRST, world.clock.now())
    for held, level in ((KEYS[SECOND], None), (KEYS[FIRST], 1)):
        world.model_server.artifacts[endpoint] = held
        await world.reconciler.reconcile()
        assert world.model_server.asleep.get(endpoint) == level


async def test_a_kept_server_that_hangs_is_stopped(database: Database, tmp_path: Path) -> None:
    world = Hot(database)
    endpoint = await one_asleep_one_hot(world, tmp_path)
    world.model_server.unhealthy.add(endpoint)
    for _ in range(HANGS_AFTER - 1):
        await world.reconciler.reconcile()
        assert len(world.cluster.deployments) == 1
    await world.reconciler.reconcile()
    assert world.cluster.deployments == {}


async def test_a_server_without_sleep_levels_waits_as_it_is(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database)
    endpoint = await one_asleep_one_hot(world, tmp_path)
    world.model_server.has_sleep_levels = True
    await world.reconciler.reconcile()
    assert world.model_server.asleep == {}, "it is not asked again"
    await wake(world, FIRST)
    assert world.deployments.replicas(FIRST) == (endpoint,)
    assert world.model_server.swaps == []


async def test_a_new_submission_wakes_the_server_that_it_joins(
    database: Database, tmp_path: Path
) -> None:
    """Its artifact is the one that the sleeping server keeps."""
    world = Hot(database)
    world.model_server.has_sleep_levels = True
    endpoint = await one_asleep_one_hot(world, tmp_path)
    await world.deployments.wish(replace(world.deployment(SECOND), artifact_key=KEYS[FIRST], run=2))
    taken, found = await take(world)
    assert (taken.server_key, found) == (FIRST, endpoint)
    assert endpoint not in world.model_server.asleep


async def test_its_own_server_is_taken_before_another_one(
    database: Database, tmp_path: Path
) -> None:
    world = Hottest(database)
    for key in KEYS.values():
        await world.make_artifact(tmp_path, key, LLAMA)
    for submission_id in (FIRST, SECOND):
        await world.serve_known(submission_id)
        await world.deployments.put_to_sleep(submission_id, world.clock.now())
    await wake(world, SECOND)
    assert world.model_server.swaps == []
    assert world.deployments.model_name(SECOND) == f"{SECOND}#{KEYS[SECOND]}"


@pytest.mark.parametrize("why", ["size", "tied"])
async def test_another_shape_starts_a_server_of_its_own(
    database: Database, tmp_path: Path, why: str
) -> None:
    world = Hot(database)
    if why == "size":
        await one_asleep_one_hot(world, tmp_path, size=65)
    else:
        await one_asleep_one_hot(world, tmp_path, {**LLAMA, "tie_word_embeddings": True})
    await wake(world, SECOND)
    assert world.cluster.starts == [deployment_name(SECOND)]
    assert world.model_server.swaps == []
    assert await world.phase(SECOND) is Phase.READY


async def test_a_server_that_cannot_become_another_is_left_alone(
    database: Database, tmp_path: Path
) -> None:
    """On Kubernetes: a pod whose template names its artifact."""
    world = Hot(database)
    await one_asleep_one_hot(world, tmp_path)
    donor = world.cluster.deployments[deployment_name(FIRST)]
    donor.state = replace(donor.state, is_swappable=False)
    await wake(world, SECOND)
    assert world.cluster.starts == [deployment_name(SECOND)]
    assert world.model_server.swaps == []


async def test_a_swap_that_fails_is_replaced_by_a_new_process(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database)
    await one_asleep_one_hot(world, tmp_path)
    world.model_server.swap_fault = ModelServerFault("The artifact is damaged.")
    await wake(world, SECOND)
    assert world.cluster.starts == [deployment_name(FIRST)], "under the name that it took over"
    assert await world.phase(SECOND) is Phase.READY
    row = await world.row(SECOND)
    assert row.restarts == 0, "it is no crash"


async def test_a_server_that_dies_silently_in_a_swap_is_replaced(
    database: Database, tmp_path: Path
) -> None:
    """Its connection stays open, as that to a node that was lost."""
    world = Hot(database)
    world.model_server.silent.add(await one_asleep_one_hot(world, tmp_path))
    waking = asyncio.create_task(wake(world, SECOND))
    await eventually(world.has_swap_begun)
    world.cluster.die(deployment_name(FIRST))
    await waking
    assert world.cluster.starts == [deployment_name(FIRST)]
    assert await world.phase(SECOND) is Phase.READY


@pytest.mark.slow
async def test_a_server_that_hangs_in_a_swap_is_replaced(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database)
    endpoint = await one_asleep_one_hot(world, tmp_path)
    world.model_server.silent.add(endpoint)
    waking = asyncio.create_task(wake(world, SECOND))
    await eventually(world.has_swap_begun)
    world.model_server.unhealthy.add(endpoint)
    await waking
    assert world.cluster.starts == [deployment_name(FIRST)]
    assert await world.phase(SECOND) is Phase.READY


async def test_a_store_that_is_away_does_not_stop_the_reconciler(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Hot(database)
    await one_asleep_one_hot(world, tmp_path)

    async def find(key: str) -> None:
        raise StoreUnreachable("The artifact store did not answer.")

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "find", find)
        await world.deployments.wake(SECOND)
        await world.reconciler.reconcile()
        assert world.deployments.replicas(SECOND) == ()
    await world.reconciler.reconcile()
    await world.reconciler.reconcile()
    assert await world.phase(SECOND) is Phase.READY, "by a process of its own"


async def test_a_server_with_open_replies_is_waited_for(database: Database, tmp_path: Path) -> None:
    world = Hot(database)
    endpoint = await one_asleep_one_hot(world, tmp_path)
    world.model_server.swap_fault = ServerBusy("One reply is not complete.")
    await wake(world, SECOND)
    assert await world.phase(SECOND) is Phase.RESTARTING
    assert world.deployments.replicas(SECOND) == ()
    world.model_server.swap_fault = None
    await world.reconciler.reconcile()
    assert world.deployments.replicas(SECOND) == (endpoint,)


@pytest.mark.both_databases
async def test_swap_of_a_killed_platform_is_finished_by_the_next(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database)
    endpoint = await one_asleep_one_hot(world, tmp_path)
    await world.deployments.wake(SECOND)
    assert await world.deployments.take_server(SECOND, FIRST)
    await world.reconciler.reconcile()  # all that it finds is a server with the wrong artifact
    assert world.deployments.replicas(SECOND) == (endpoint,)
    assert world.model_server.artifacts[endpoint] == KEYS[SECOND]


async def one_new_one_hot(world: Hot, folder: Path, size: int = 64) -> str:
    """The first submission sleeps and its server is kept; the second is new, in its deploy stage. Return the server's endpoint."""
    await world.make_artifact(folder, KEYS[FIRST], LLAMA)
    await world.make_artifact(folder, KEYS[SECOND], LLAMA, size)
    endpoint = await world.serve_known(FIRST)
    await world.deployments.put_to_sleep(FIRST, world.clock.now())
    await world.reconciler.reconcile()
    await world.ask(SECOND, "bob")
    world.cluster.starts.clear()
    return endpoint


async def take(world: Hot, submission_id: str = SECOND) -> tuple[Deployment, str | None]:
    """Take a server over for a submission as its deploy stage does."""
    takeover = world.platform.rooms.deployments.takeover
    taken = await takeover.claim(Deployment.of(await world.row(submission_id)))
    return taken, await takeover.swap(taken)


async def test_new_submission_takes_over_a_hot_server_of_its_shape(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database)
    endpoint = await one_new_one_hot(world, tmp_path)
    taken, found = await take(world)
    assert found == endpoint
    assert taken.model == f"{FIRST}#{KEYS[SECOND]}"
    await world.deployments.mark_ready(SECOND, endpoint)
    for _ in range(2):
        await world.reconciler.reconcile()
    assert world.cluster.starts == [], "no process was started"
    assert world.deployments.replicas(SECOND) == (endpoint,)
    assert world.model_server.artifacts[endpoint] == KEYS[SECOND]
    assert await world.phase(FIRST) is Phase.SLEEPING


async def test_a_new_submission_of_another_shape_takes_nothing_over(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database)
    await one_new_one_hot(world, tmp_path, size=65)
    taken, found = await take(world)
    assert (taken.server_key, found) == (SECOND, None)
    assert world.model_server.swaps == []


async def test_a_server_that_a_new_submission_cannot_swap_is_stopped(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database)
    await one_new_one_hot(world, tmp_path)
    world.model_server.swap_fault = ModelServerFault("The artifact is damaged.")
    taken, found = await take(world)
    assert (taken.server_key, found) == (FIRST, None), "a new process starts under this name"
    assert world.cluster.deployments == {}


@pytest.mark.both_databases
async def test_takeover_of_a_killed_platform_is_finished_by_its_stage(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database)
    endpoint = await one_new_one_hot(world, tmp_path)
    assert await world.deployments.take_server(SECOND, FIRST)
    given = await world.deployments.wish(world.deployment(SECOND))
    assert given.server == FIRST, "the stage that is run again keeps it"
    assert (await take(world))[1] == endpoint


@pytest.mark.both_databases
async def test_room_for_one_is_passed_on_by_a_swap(database: Database, tmp_path: Path) -> None:
    """No server is kept hot: the least used submission gives its own up."""
    world = Cold(database, servers=1, feedback_target=1)
    await world.make_artifact(tmp_path, KEYS[FIRST], LLAMA)
    await world.make_artifact(tmp_path, KEYS[SECOND], LLAMA)
    await world.serve_known(SECOND)
    await world.deployments.put_to_sleep(SECOND, world.clock.now())
    await world.reconciler.reconcile()
    endpoint = await world.serve_known(FIRST)
    world.clock.advance(QUIET_S + 1)
    starts = len(world.cluster.starts)
    await wake(world, SECOND)
    assert world.deployments.replicas(SECOND) == (endpoint,)
    assert await world.phase(FIRST) is Phase.SLEEPING
    assert len(world.cluster.starts) == starts


async def two_hot(world: Hot, folder: Path, third: dict[str, object] = LLAMA) -> None:
    """The first and the second submission sleep, the second used later, and both servers are kept."""
    for name, config in ((FIRST, LLAMA), (SECOND, LLAMA), (THIRD, third), (OTHER, third)):
        await world.make_artifact(folder, KEYS[name], config)
    for name in (FIRST, SECOND):
        await world.serve_known(name)
    for name in (FIRST, SECOND):
        world.clock.advance(1)
        assert await world.deployments.put_to_sleep(name, world.clock.now())
    await world.reconciler.reconcile()
    assert len(world.cluster.deployments) == 2


@pytest.mark.both_databases
async def test_a_wake_between_two_reads_stops_no_hot_server(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Hottest(database)
    await two_hot(world, tmp_path)
    list_deployments, looks = world.cluster.list_deployments, 0

    async def wake_after_admission() -> list[str]:
        nonlocal looks
        looks += 1
        if looks == 1:  # admission has read who asks for room
            await world.deployments.wake(FIRST)
        return await list_deployments()

    monkeypatch.setattr(world.cluster, "list_deployments", wake_after_admission)
    await world.reconciler.reconcile()
    assert await world.phase(FIRST) is Phase.WAKING
    assert len(world.cluster.deployments) == 2


class TwoOfThree(Hottest):
    """A budget of three servers, two of them kept."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, servers=3)


@pytest.mark.both_databases
async def test_a_claim_stops_no_more_hot_servers_than_it_needs(
    database: Database, tmp_path: Path
) -> None:
    world = TwoOfThree(database)
    await two_hot(world, tmp_path, {**LLAMA, "tie_word_embeddings": True})
    await world.ask(THIRD, "bob")
    for _ in range(3):
        await world.reconciler.reconcile()
    assert await world.phase(THIRD) is Phase.STARTING, "there was room for it"
    assert len(world.cluster.deployments) == 2, "so nothing had to go"
    await world.deployments.servers.apply(world.deployment(THIRD))
    await world.deployments.mark_ready(THIRD, f"memory://{THIRD}")
    await world.ask(OTHER, "eve")
    for _ in range(3):
        await world.reconciler.reconcile()
    assert await world.phase(OTHER) is Phase.STARTING
    assert deployment_name(SECOND) in world.cluster.deployments
    assert deployment_name(FIRST) not in world.cluster.deployments, "it was used longest ago"


async def test_wake_uses_its_own_hot_server_in_a_full_budget(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database, servers=1)
    await world.make_artifact(tmp_path, KEYS[FIRST], LLAMA)
    endpoint = await world.serve_known(FIRST)
    await world.deployments.put_to_sleep(FIRST, world.clock.now())
    await world.reconciler.reconcile()
    world.cluster.starts.clear()
    await wake(world, FIRST)
    assert world.cluster.starts == []
    assert world.deployments.replicas(FIRST) == (endpoint,)


async def test_server_of_its_own_name_is_swapped_back(database: Database, tmp_path: Path) -> None:
    """The second submission took the first one's server, sleeps there, and gives it back to the first one's next run."""
    world = Hot(database)
    endpoint = await one_new_one_hot(world, tmp_path)
    await take(world)
    await world.deployments.mark_ready(SECOND, endpoint)
    async with world.database.write() as session:
        await world.deployments.withdraw(session, FIRST)
        row = await session.get(SubmissionRow, SECOND)
        assert row is not None
        row.status = Status.INACTIVE
    await world.deployments.put_to_sleep(SECOND, world.clock.now())
    await world.reconciler.reconcile()
    given = await world.deployments.wish(replace(world.deployment(FIRST), run=2))
    assert given.server is not None, "its name is taken"
    takeover = world.platform.rooms.deployments.takeover
    taken = await takeover.claim(given)
    assert taken.server is None, "the name is its own again"
    assert await takeover.swap(taken) == endpoint
    assert world.model_server.artifacts[endpoint] == KEYS[FIRST]


@pytest.mark.parametrize(
    ("config", "quantization", "names"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, None, "MixtralForCausalLM"),
        ({"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}, None, "tied"),
        ({"architectures": ["LlamaForCausalLM"], "quantization_config": {"x": 1}}, None, "quantized"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "some_bits", "some_bits"),
        ({}, None, "architecture"),
    ],
)  # fmt: skip
def test_untested_shapes_are_refused_by_name(
    config: dict[str, object], quantization: str | None, names: str
) -> None:
    assert names in (swap_refusal(config, quantization) or "")


async def one_torn_down(world: Hot, folder: Path, second: dict[str, object] = LLAMA) -> str:
    """The first submission served and is torn down. Return its server's endpoint."""
    await world.make_artifact(folder, KEYS[FIRST], LLAMA)
    await world.make_artifact(folder, KEYS[SECOND], second)
    endpoint = await world.serve_known(FIRST)
    admin = await world.account(Role.ADMIN)
    await world.submissions.teardown(admin, FIRST)
    await world.reconciler.reconcile()
    assert await world.deployments.find(FIRST) is None
    world.cluster.starts.clear()
    return endpoint


async def test_server_of_a_torn_down_submission_serves_the_next(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database)
    endpoint = await one_torn_down(world, tmp_path)
    world.restart()  # another process finds it again
    await world.reconciler.reconcile()
    await world.ask(SECOND, "bob")
    taken, found = await take(world)
    assert found == endpoint
    assert taken.model == f"{FIRST}#{KEYS[SECOND]}"
    await world.deployments.mark_ready(SECOND, endpoint)
    await world.reconciler.reconcile()
    assert world.cluster.starts == []
    assert world.deployments.replicas(SECOND) == (endpoint,)
    async with database.read() as session:
        left = {row.id: row.spare for row in await session.scalars(select(EngineRow))}
    assert left == {FIRST: None}, "the name that it did not need is forgotten"


async def test_the_same_model_joins_the_server_that_was_kept(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database)
    await one_torn_down(world, tmp_path)
    given = await world.deployments.wish(
        replace(world.deployment(SECOND), artifact_key=KEYS[FIRST])
    )
    assert given.server_key == FIRST
    await world.deployments.servers.apply(given)
    await world.reconciler.reconcile()
    assert world.cluster.starts == []
    assert await world.deployments.spares.list() == []


@pytest.mark.parametrize("why", ["time", "shape", "memory", "crash"])
async def test_a_kept_server_that_helps_nobody_is_stopped(
    database: Database, tmp_path: Path, why: str
) -> None:
    world = Hot(database)
    if why == "memory":
        compute = replace(world.adapters.compute, has_memory=lambda _: False)
        world.adapters = replace(world.adapters, compute=compute)
        world.restart()
    config = {**LLAMA, "tie_word_embeddings": why == "shape"}
    await world.make_artifact(tmp_path, KEYS[FIRST], config)
    await world.serve_known(FIRST)
    await world.submissions.teardown(await world.account(Role.ADMIN), FIRST)
    if why == "crash":
        world.cluster.die(deployment_name(FIRST))
    if why == "time":
        await world.reconciler.reconcile()
        assert len(world.cluster.deployments) == 1
        world.clock.advance(world.settings.hot_engine_s + 1)
    await world.reconciler.reconcile()
    assert world.cluster.deployments == {}
    assert await world.deployments.spares.list() == []


async def test_a_kept_server_is_in_the_budget_and_makes_room(
    database: Database, tmp_path: Path
) -> None:
    world = Hot(database, servers=1)
    await one_torn_down(world, tmp_path, {**LLAMA, "tie_word_embeddings": True})
    await world.ask(SECOND, "bob")
    await world.reconciler.reconcile()
    assert await world.phase(SECOND) is Phase.WAITING
    assert world.cluster.deployments == {}
    await world.reconciler.reconcile()
    assert await world.phase(SECOND) is Phase.STARTING
