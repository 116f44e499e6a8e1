"""A canary takes its share of new conversations, is ended when it is worse, and takes over when it is not."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from guanaco.accounts import Role
from guanaco.errors import Conflict, NothingToRollBack, RedeployInProgress
from guanaco.submissions import RedeployRequest, RolloutPhase, Status
from guanaco_server.chat.gateway.places.turn_queue import Asker
from guanaco_server.database.database import Database
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.deployments.versions import Arm, ConversationStart, VersionBeside, beside
from guanaco_server.statistics.buckets import bucket_of
from guanaco_server.statistics.sequential import Proportion
from guanaco_server.submissions.pipeline.records import PipelineRun
from guanaco_server.submissions.pipeline.runner import Step
from guanaco_server.submissions.rollouts import queries
from guanaco_server.submissions.rollouts.canaries import ComparedConversation
from tests.fixtures.pipeline import ID, RUN, tiny_files
from tests.fixtures.rolling import KEY, NEW, OLD, RollingWorld

NUMBERS = count()
CANARY = RedeployRequest(canary=0.25, canary_s=600)


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> RollingWorld:
    """A submission that is published and served."""
    world = RollingWorld(database)
    await world.serialized(tiny_files(tmp_path / "repo"))
    assert await world.bring_up(RUN) is Step.DONE
    world.clock.advance(60)
    await world.routing.refresh()
    return world


async def note(
    world: RollingWorld, *, is_new: bool, replies: int, faults: int = 0, wait_s: float = 0.1
) -> None:
    """Note replies and faults, each of a conversation of its own, as a gateway does while it answers."""
    for _ in range(replies):
        talk(world, is_new=is_new).note_reply(wait_s)
    for _ in range(faults):
        talk(world, is_new=is_new).note_fault()
    await world.canaries.write()


def talk(world: RollingWorld, *, is_new: bool) -> ComparedConversation:
    """A conversation that has just begun."""
    return world.canaries.conversation(Arm(ID, 2, is_new), f"conv_{next(NUMBERS)}")


async def why(world: RollingWorld) -> str:
    rollout = (await world.submission()).rollout
    assert rollout is not None
    assert rollout.failure is not None, rollout
    return rollout.failure.detail


async def test_a_canary_takes_its_share_of_the_conversations_that_begin(
    world: RollingWorld,
) -> None:
    await world.redeploy(CANARY)
    old, new = (world.endpoint(OLD),), (world.endpoint(NEW),)
    names = [f"conv_{number}" for number in range(400)]
    given = Counter([await world.endpoints(name=name) for name in names])
    assert given[new] == pytest.approx(100, abs=40)
    assert given[new] + given[old] == 400
    assert {await world.endpoints(began_s=30, name=name) for name in names[:50]} == {old}
    assert not (await world.submission()).is_in_progress, "nobody waits for a canary"
    followed = [event async for event in world.events.follow(ID, 0) if event is not None]
    assert (
        "25.0% of new conversations go to the new version."
        in followed[-2].message + followed[-1].message
    )


async def test_a_canary_brings_places_of_its_own(world: RollingWorld) -> None:
    await world.redeploy(CANARY)
    for key in (ID, KEY):
        await world.deployments.note(key, capacity=2)
    await world.routing.refresh()
    began_at = world.clock.now().timestamp()
    talks = [ConversationStart(f"conv_{number}", began_at) for number in range(40)]
    assert {(await world.routing.target(ID, talk)).version for talk in talks} == {ID, KEY}
    turns = [await world.places.take(key, Asker("app", "user")) for key in (ID, ID, KEY, KEY)]
    assert (world.places.in_flight(ID), world.places.in_flight(KEY)) == (2, 2)
    for turn in turns:
        turn.__exit__()


@pytest.mark.slow
async def test_canary_as_good_as_before_takes_over_in_the_end(
    world: RollingWorld,
) -> None:
    await world.redeploy(CANARY)
    for _ in range(3):
        await note(world, is_new=False, replies=300)
        await note(world, is_new=True, replies=100)
        await world.take_over(after_s=100)
        assert await world.phase() is RolloutPhase.SHIFTING
    await world.take_over(after_s=300)
    assert await world.phase() is RolloutPhase.DRAINING
    await world.drain()
    assert await world.cluster.list_deployments() == [NEW]


async def test_a_canary_that_fails_more_is_ended(world: RollingWorld) -> None:
    await world.redeploy(CANARY)
    old = world.endpoint(OLD)
    await note(world, is_new=False, replies=200, faults=1)
    await note(world, is_new=True, replies=20, faults=10)
    await world.rollouts.step()
    assert await world.phase() is RolloutPhase.FAILED
    assert await why(world) == (
        "The canary is worse: 10 of its 30 conversations had a failed reply (33%), and 1 of 201 of the version that serves (0%)."
    )
    await world.routing.refresh()
    assert await world.endpoints() == (old,)
    await world.drain()
    assert await world.cluster.list_deployments() == [OLD]
    assert (await world.submission()).status is Status.DEPLOYED


async def test_a_canary_that_is_slower_is_ended(world: RollingWorld) -> None:
    """The limit of slowness is learnt from the old version's first replies, which are not compared."""
    await world.redeploy(CANARY)
    await note(world, is_new=False, replies=60, wait_s=0.1)
    await note(world, is_new=True, replies=60, wait_s=0.4)
    await world.rollouts.step()
    assert await world.phase() is RolloutPhase.SHIFTING
    await note(world, is_new=False, replies=60, wait_s=0.1)
    await note(world, is_new=True, replies=20, wait_s=0.4)
    await world.rollouts.step()
    assert await world.phase() is RolloutPhase.FAILED
    assert "20 of its 20 conversations began slowly (100%)" in await why(world)


async def test_a_canary_that_people_like_less_is_ended(world: RollingWorld) -> None:
    await world.redeploy(CANARY)
    http = await world.http(Role.BACKEND)
    row = await world.deployments.find(KEY)
    assert row is not None
    assert row.takes_since is not None
    version = VersionBeside(KEY, 0.25, row.takes_since)
    for user in range(120):
        conversation = await world.open(http, f"user-{user}")
        is_new = version.takes(ConversationStart(conversation, world.clock.now().timestamp()))
        await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
        rating, path = {"thumbs_up": not is_new}, f"/conversations/{conversation}/feedback"
        rated = await http.post(path, json=rating)
        assert rated.is_success, rated.text
        if user % 2:  # what is withdrawn stays the first rating
            assert (await http.delete(path)).is_success
            world.clock.advance(0.001)
            assert (await http.post(path, json={"thumbs_up": True})).is_success
    await world.rollouts.step()
    assert await world.phase() is RolloutPhase.FAILED
    assert "users gave a thumbs down (100%)" in await why(world)


async def test_the_gateway_counts_replies_and_faults_of_each_version(world: RollingWorld) -> None:
    await world.redeploy(RedeployRequest(canary=0.999999))
    http = await world.http(Role.BACKEND)
    conversation = await world.open(http)
    said = await http.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
    assert said.is_success
    world.model_server.scripts[:] = [Script(pieces=("Hi",), fault="CUDA error")]
    await http.post(f"/conversations/{conversation}/messages", json={"content": "And now?"})
    await world.routing.refresh()
    assert await shown(world) == (Proportion(1, 1), Proportion(1, 1)), "one conversation"


async def shown(
    world: RollingWorld, *, is_new: bool = True
) -> tuple[Proportion, Proportion | None]:
    """Read what conversations of a version failed, and which began slowly if any wait is slow."""
    async with world.database.read() as session:
        return await queries.shown(session, Arm(ID, 2, is_new), 0)


@pytest.mark.both_databases
async def test_a_conversation_counts_once_however_often_it_fails(world: RollingWorld) -> None:
    await world.redeploy(CANARY)
    one = talk(world, is_new=True)
    one.note_reply(0.1)
    for _ in range(3):
        one.note_fault()
        await world.canaries.write()
    one.note_reply(9.0)
    talk(world, is_new=True).note_reply(0.2)
    await world.canaries.write()
    assert await shown(world) == (Proportion(1, 2), Proportion(2, 2))
    async with world.database.read() as session:
        waits = await queries.first_waits(session, Arm(ID, 2, True))
    assert sum(waits) == 2
    assert len(waits) <= bucket_of(0.2) + 1, "the first reply's wait stays"


async def test_what_a_canary_has_shown_is_deleted_with_its_end(world: RollingWorld) -> None:
    await world.redeploy(CANARY)
    await note(world, is_new=True, replies=3)
    await world.submissions.rollouts.rollback(world.developer, ID)
    assert await shown(world) == (Proportion(0, 0), Proportion(0, 0))


async def test_a_reply_that_ends_after_a_write_is_counted(world: RollingWorld) -> None:
    await world.redeploy(CANARY)
    await note(world, is_new=False, replies=200)
    talking = [talk(world, is_new=True) for _ in range(30)]
    await note(world, is_new=True, replies=1)
    for one in talking:
        one.note_fault()
    await world.canaries.write()
    await world.rollouts.step()
    assert "31" in await why(world), "the conversations under way, and the one before"


@pytest.mark.both_databases
async def test_a_canary_survives_a_restart(world: RollingWorld) -> None:
    await world.redeploy(CANARY)
    await note(world, is_new=False, replies=200)
    world.restart()
    await world.reconciler.reconcile()
    await world.routing.refresh()
    await note(world, is_new=True, replies=20, faults=10)
    await world.rollouts.step()
    assert await world.phase() is RolloutPhase.FAILED


async def test_a_rollback_ends_a_canary(world: RollingWorld) -> None:
    await world.redeploy(CANARY)
    await world.submissions.rollouts.rollback(world.developer, ID)
    assert await world.phase() is RolloutPhase.CANCELLED
    await world.drain()
    assert await world.cluster.list_deployments() == [OLD]


async def test_a_rollback_brings_the_version_before_back(world: RollingWorld) -> None:
    await world.redeploy()
    await world.take_over()
    with pytest.raises(RedeployInProgress):
        await world.submissions.rollouts.rollback(world.developer, ID)
    await world.drain()
    await world.submissions.rollouts.rollback(world.developer, ID)
    back = PipelineRun(ID, 3)
    assert await world.runner.run_next(back) is Step.NEXT, "deployed"
    assert await world.runner.run_next(back) is Step.DONE, "published"
    await world.take_over()
    await world.drain()
    assert await world.cluster.list_deployments() == [deployment_name(beside(ID, 3))]
    row = await world.deployments.find(ID)
    assert row is not None
    assert row.run == 3
    assert any("Bringing back the version of run 1" in line for line in await world.log())


async def test_without_a_version_before_there_is_nothing_to_roll_back(world: RollingWorld) -> None:
    with pytest.raises(NothingToRollBack):
        await world.submissions.rollouts.rollback(world.developer, ID)


async def test_a_canary_needs_what_it_is_compared_with(world: RollingWorld) -> None:
    await world.submissions.teardown(world.developer, ID)
    with pytest.raises(Conflict):
        await world.submissions.redeploy(world.developer, ID, request=CANARY)
    assert (await world.submission()).status is Status.TORN_DOWN
