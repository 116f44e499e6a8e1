"""An adapter that does well is promoted: merged into its base, beside the version that serves it unmerged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.competitions import OPEN
from guanaco.errors import Conflict, HubUnreachable
from guanaco.submissions import Outcome, RedeployRequest, Stage
from guanaco_server.artifacts.collector import ArtifactCollector, GracePeriods
from guanaco_server.database.database import Database
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.formats.manifest import AdapterPart, Manifest
from guanaco_server.leaderboard.tables import ScoreRow
from guanaco_server.statistics.votes import VoteCount
from guanaco_server.submissions.pipeline.checks import merge
from guanaco_server.submissions.pipeline.records import PipelineRun
from guanaco_server.submissions.pipeline.runner import Step
from guanaco_server.submissions.rollouts.promotions import AGAIN_S
from tests.fixtures.pipeline import ID, RUN, tiny_files
from tests.fixtures.pipeline import KEY as ADAPTER
from tests.fixtures.rolling import KEY as BESIDE
from tests.fixtures.rolling import NEXT, RollingWorld

BASE, MERGED = "b" * 64, "e" * 64
WHY = "It was promoted."
UNMERGED = (ADAPTER, False, None)
PROMOTE = RedeployRequest(promote=True)


class PromotingWorld(RollingWorld):
    """A submission of a LoRA adapter, whose artifact names its base's; the load of its stress check is short."""

    changes = {
        **RollingWorld.changes,
        "stress_requests": 2,
        "stress_duration_s": 0.05,
        "stress_rate": 200,
        "lora_promote_after": 100,
    }

    async def make_artifacts(self, folder: Path) -> None:
        """Store the adapter, and the same merged into its base."""
        files = {path.name: path.read_bytes() for path in folder.glob("*.json")}
        await self.store_artifact(MERGED, files)
        await self.store_artifact(BASE, files)
        manifest = await self.store.find(ADAPTER)
        assert isinstance(manifest, Manifest)
        part = AdapterPart(base_key=BASE, scales={})
        await self.store.delete(ADAPTER)
        self.store.stage(ADAPTER, manifest.model_copy(update={"adapter": part}), files)
        await self.store.publish(ADAPTER)

    async def merge(self) -> None:
        """Do the stages of the second run up to its deployment; what serializing found is the merged artifact."""
        for stage in (Stage.RESOLVE, Stage.CHECK, Stage.SERIALIZE):
            assert await self.journal.begin_stage(NEXT, stage) is None
            is_last = stage is Stage.SERIALIZE
            facts = {"artifact_key": MERGED, "merged_because": WHY} if is_last else {}
            await self.journal.end_stage(NEXT, stage, facts)
        assert await self.runner.run(NEXT, Stage.DEPLOY) is Outcome.DONE

    async def said(self) -> tuple[str | None, bool, str | None]:
        """Return what the submission says that it serves."""
        row = await self.submissions.require_visible(self.developer, ID)
        return row.artifact_key, row.is_promoted, row.merged_because

    async def report(self) -> dict[str, Any]:
        http = await self.http(Role.ADMIN)
        found: dict[str, Any] = (await http.get(f"/submissions/{ID}/stress")).json()
        return found

    async def keep_for(self, days: int) -> None:
        """Let the collector sweep once a day."""
        needed = self.submissions.catalog.needed_artifacts
        collector = ArtifactCollector(self.database, self.clock, self.store, needed, GracePeriods())
        for _ in range(days):
            self.clock.advance(86_400)
            await collector.sweep()

    async def stored(self) -> set[str]:
        return set(await self.store.list_keys()) & {ADAPTER, BASE, MERGED}


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> PromotingWorld:
    """An adapter that is published, and served on its base's model server."""
    world = PromotingWorld(database)
    folder = tiny_files(tmp_path / "repo")
    commit = world.hub.add_repo("acme/base", {})
    world.hub.add_repo("acme/tiny", {})
    await world.serialized(folder, base_repo="acme/base", base_commit=commit)
    await world.make_artifacts(folder)
    assert await world.bring_up(RUN) is Step.DONE
    row = await world.deployments.find(ID)
    assert row is not None
    assert (row.artifact_key, row.base_key) == (ADAPTER, BASE)
    world.clock.advance(60)
    await world.routing.refresh()
    return world


async def test_a_promoted_adapter_is_merged_beside_the_version_that_serves(
    world: PromotingWorld,
) -> None:
    promoted = await world.submissions.redeploy(world.developer, ID, request=PROMOTE)
    assert promoted.rollout is not None
    assert promoted.rollout.promotes
    await world.merge()
    old, new = await world.deployments.find(ID), await world.deployments.find(BESIDE)
    assert old is not None
    assert new is not None
    assert (old.artifact_key, old.base_key) == (ADAPTER, BASE)
    assert (new.artifact_key, new.base_key) == (MERGED, None)

    world.model_server.scores = [(-1.0, -2.0, -3.0), (-1.0, -2.1, -2.8)]
    assert await world.runner.run(NEXT, Stage.STRESS) is Outcome.DONE
    unmerged_at, merged_at = [endpoint for endpoint, _ in world.model_server.scored[-2:]]
    assert deployment_name(BESIDE) in merged_at
    assert deployment_name(BESIDE) not in unmerged_at
    found = (await world.report())["divergence"]
    assert found["tokens"] == 3
    assert (found["mean"], found["largest"]) == pytest.approx((0.1, 0.2))
    assert await world.runner.run_next(NEXT) is Step.DONE
    assert await world.said() == UNMERGED
    await world.take_over()
    served = await world.deployments.find(ID)
    assert served is not None
    assert (served.artifact_key, served.base_key) == (MERGED, None)
    assert await world.said() == (MERGED, True, WHY)
    serving = world.routing.serving(ID)
    assert serving is not None
    assert serving.artifact_key == MERGED


async def test_a_promotion_is_rolled_back_to_the_adapter(world: PromotingWorld) -> None:
    await world.submissions.redeploy(world.developer, ID, request=PROMOTE)
    await world.merge()
    assert await world.runner.run(NEXT, Stage.STRESS) is Outcome.DONE
    assert await world.runner.run_next(NEXT) is Step.DONE
    await world.take_over()
    await world.drain()
    await world.keep_for(9)
    assert await world.stored() == {ADAPTER, BASE, MERGED}
    await world.submissions.rollouts.rollback(world.developer, ID)
    third = PipelineRun(ID, 3)
    assert await world.runner.run(third, Stage.DEPLOY) is Outcome.DONE
    assert await world.bring_up(third) is Step.DONE
    await world.take_over()
    served = await world.deployments.find(ID)
    assert served is not None
    assert (served.artifact_key, served.base_key) == (ADAPTER, BASE)
    assert await world.said() == UNMERGED


async def test_a_cancelled_promotion_leaves_the_adapter_as_it_was(world: PromotingWorld) -> None:
    await world.submissions.redeploy(world.developer, ID, request=PROMOTE)
    await world.merge()
    assert (await world.journal.load(NEXT)).artifact_key == MERGED
    await world.submissions.cancel(world.developer, ID)
    assert await world.said() == UNMERGED
    await world.keep_for(9)
    assert await world.stored() == {ADAPTER, BASE}


async def test_an_adapter_that_sleeps_is_woken_to_be_compared(world: PromotingWorld) -> None:
    await world.submissions.redeploy(world.developer, ID, request=PROMOTE)
    await world.merge()
    assert await world.deployments.put_to_sleep(ID, world.clock.now())
    assert world.deployments.replicas(ID) == ()
    world.model_server.scores = [(-1.0, -2.0, -3.0), (-1.0, -2.1, -2.8)]

    stress = asyncio.create_task(world.runner.run(NEXT, Stage.STRESS))
    while not stress.done():
        await world.autoscaler.step()
        await world.reconciler.reconcile()
    assert stress.result() is Outcome.DONE
    found = await world.report()
    assert found["divergence"]["mean"] == pytest.approx(0.1)
    assert found["not_compared"] is None


@pytest.mark.parametrize("is_asleep", [True, False])
async def test_the_report_says_why_an_adapter_was_not_compared(
    world: PromotingWorld, monkeypatch: pytest.MonkeyPatch, is_asleep: bool
) -> None:
    monkeypatch.setattr(merge, "ROOM_PATIENCE_S", 0.0)
    await world.submissions.redeploy(world.developer, ID, request=PROMOTE)
    await world.merge()
    if is_asleep:
        await world.deployments.put_to_sleep(ID, world.clock.now())
        await world.deployments.note(ID, waits_for="All servers work.")
    else:
        await world.deployments.note(ID, endpoints=[], endpoint=None, problem="vLLM refuses it.")
        world.deployments.note_replicas(ID, ())
    assert await world.runner.run(NEXT, Stage.STRESS) is Outcome.DONE
    found = await world.report()
    assert found["divergence"] is None
    why = "no room to wake it. All servers work." if is_asleep else "vLLM refuses it."
    assert found["not_compared"].endswith(why)
    assert any(found["not_compared"] in line for line in await world.log())


async def test_only_an_adapter_that_is_served_unmerged_is_promoted(
    world: PromotingWorld, tmp_path: Path
) -> None:
    await world.submissions.redeploy(world.developer, ID, request=PROMOTE)
    await world.merge()
    assert await world.runner.run(NEXT, Stage.STRESS) is Outcome.DONE
    assert await world.runner.run_next(NEXT) is Step.DONE
    await world.take_over()
    await world.drain()
    with pytest.raises(Conflict, match="merged into its base already"):
        await world.submissions.redeploy(world.developer, ID, request=PROMOTE)
    whole = await world.publish(world.developer, "acme-whole_v1")
    with pytest.raises(Conflict, match="is no LoRA adapter"):
        await world.submissions.redeploy(world.developer, whole, request=PROMOTE)
    await world.submissions.teardown(world.developer, whole)
    http = await world.http(Role.DEVELOPER, "ada")
    answer: httpx.Response = await http.post(
        f"/submissions/{whole}/redeploy", json={"promote": True}
    )
    assert answer.status_code == 409, answer.text
    assert "is not served, so there is nothing to promote" in answer.json()["detail"]


async def promoted(world: PromotingWorld, votes: dict[str, VoteCount]) -> str | None:
    """Let the world's own loop look at a board with these votes."""
    async with world.database.write() as session:
        for name, given in votes.items():
            row = ScoreRow(
                competition=OPEN, submission_id=name, tally="{}", up=given.up, down=given.down
            )
            row.version = 1
            session.add(row)
    return await world.platform.rooms.rollouts.promotions.step()


GOOD, OTHERS = VoteCount(180, 20), {"x_v1": VoteCount(60, 40), "y_v1": VoteCount(50, 50)}


@pytest.mark.parametrize(
    "votes",
    [
        {ID: VoteCount(80, 10), **OTHERS},
        {ID: VoteCount(110, 90), **OTHERS},
        {ID: GOOD},
        {ID: GOOD, "x_v1": VoteCount(5, 5)},
        {},
    ],
)
async def test_an_adapter_with_few_or_mixed_votes_is_not_promoted(
    world: PromotingWorld, votes: dict[str, VoteCount]
) -> None:
    assert await promoted(world, votes) is None
    row = await world.submissions.require_visible(world.developer, ID)
    assert row.rollout is None


async def test_an_adapter_that_does_well_is_promoted_once(world: PromotingWorld) -> None:
    assert await promoted(world, {ID: GOOD, **OTHERS}) == ID
    found = await world.submissions.require_visible(world.developer, ID)
    assert found.rollout is not None
    assert found.rollout.promotes
    assert await world.platform.rooms.rollouts.promotions.step() is None
    assert (
        "info: Promoted after 200 votes, 180 of them thumbs up: it is being merged into its base."
        in await world.log()
    )


@pytest.mark.parametrize("repo", ["acme/tiny", "acme/base"])
async def test_a_private_adapter_is_not_promoted_and_told_once(
    world: PromotingWorld, repo: str
) -> None:
    world.hub.make_private(repo)
    assert await promoted(world, {ID: GOOD, **OTHERS}) is None
    world.restart()
    world.clock.advance(AGAIN_S)
    assert await world.platform.rooms.rollouts.promotions.step() is None
    [said] = [line for line in await world.log() if "guanaco promote" in line]
    assert repo in said
    assert (await world.submission()).rollout is None


async def test_a_promotion_that_its_developer_undid_is_not_begun_again(
    world: PromotingWorld,
) -> None:
    assert await promoted(world, {ID: GOOD, **OTHERS}) == ID
    await world.submissions.cancel(world.developer, ID)
    world.clock.advance(AGAIN_S)
    assert await world.platform.rooms.rollouts.promotions.step() is None


async def test_a_promotion_that_failed_is_begun_again_later(world: PromotingWorld) -> None:
    assert await promoted(world, {ID: GOOD, **OTHERS}) == ID
    assert await world.journal.fail_run(NEXT, HubUnreachable("It is away."))
    assert await world.platform.rooms.rollouts.promotions.step() is None
    world.clock.advance(AGAIN_S)
    assert await world.platform.rooms.rollouts.promotions.step() == ID
