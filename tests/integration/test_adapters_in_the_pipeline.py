"""A base and its adapters share a model server, and an adapter that it does not load is merged; hub, jobs, cluster and engine are in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from guanaco.accounts import Role
from guanaco.errors import HubUnreachable
from guanaco.submissions import Outcome, Stage, WeightDtype
from guanaco_server.artifacts.service import artifact_key
from guanaco_server.clusters.cluster import JobSpec
from guanaco_server.clusters.memory import JobScript
from guanaco_server.database.database import Database
from guanaco_server.demo.tiny_repo import make_tiny_repo
from guanaco_server.deployments.engines.specs import deployment_name
from guanaco_server.deployments.model_servers.model_server import AdapterRefused
from guanaco_server.formats.manifest import AdapterPart, Manifest
from guanaco_server.serializer.task import TICKET_VARIABLE
from guanaco_server.settings import Settings
from guanaco_server.submissions.pipeline import server_start
from guanaco_server.submissions.pipeline.records import PipelineRun
from guanaco_server.submissions.rollouts.loop import LEARN_S, SHIFT_S
from guanaco_server.submissions.rollouts.unasked import AGAIN_S, LOST
from tests.fixtures.lora_repos import make_lora_repo
from tests.fixtures.world import TEST_SETTINGS, World

ONE, TWO = "acme/one", "acme/two"
TOKEN = "hf_ofada0123456789"
REFUSAL = AdapterRefused("LoRA rank 16 is greater than max_lora_rank 8.")
WHY = "vLLM did not load the adapter (LoRA rank 16 is greater than max_lora_rank 8); its weights are merged into the base instead."
TO_SERIALIZE = (Stage.RESOLVE, Stage.CHECK, Stage.SERIALIZE)


class AdapterWorld(World):
    """Two adapters of one base on the hub, and serializer jobs that write what they are asked for."""

    changes = {"stress_requests": 2, "stress_duration_s": 0.05, "stress_rate": 200}

    async def begin(self, folder: Path) -> None:
        make_tiny_repo(folder / "acme" / "tiny")
        for seed, repo in enumerate((ONE, TWO), 1):
            make_lora_repo(folder / repo, folder / "acme" / "tiny", seed=seed)
        for repo in ("acme/tiny", ONE, TWO):
            files = {path.name: path.read_bytes() for path in (folder / repo).iterdir()}
            self.hub.add_repo(repo, files)
        self.small = {
            path.name: path.read_bytes() for path in (folder / "acme" / "tiny").glob("*.json")
        }
        await self.name_artifacts()
        self.api = await self.http(Role.DEVELOPER, "ada")
        self.cluster.job = JobScript(works=self._serialize)

    async def name_artifacts(self) -> None:
        base = await self.hub.resolve("acme/tiny", None)
        self.base = artifact_key(base, None, WeightDtype.AUTO)
        self.added, self.merged = dict[str, str](), dict[str, str]()
        for repo in (ONE, TWO):
            own = await self.hub.resolve(repo, None)
            self.added[repo] = artifact_key(own, base, WeightDtype.AUTO, self.base)
            self.merged[repo] = artifact_key(own, base, WeightDtype.AUTO)

    async def submit(self, repo: str, **headers: str) -> PipelineRun:
        answer = await self.api.post("/submissions", json={"repo": repo}, headers=headers)
        return PipelineRun(answer.json()["id"], 1)

    async def run(self, run: PipelineRun, *stages: Stage) -> Outcome | None:
        """The last stage's outcome."""
        outcome = None
        for stage in stages:
            outcome = await self.platform.rooms.pipeline.runner.run(run, stage)
        return outcome

    async def kept_token(self, run: PipelineRun) -> bool:
        return await self.journal.hub_token(run) is not None

    async def forget_adapters(self, fault: AdapterRefused) -> None:
        """Model servers start again, and take none of their adapters."""
        self.model_server.adapters.clear()
        self.model_server.adapter_fault = fault
        for _ in range(2):
            await self.reconciler.reconcile()

    async def unasked(self) -> list[str]:
        return await self.platform.rooms.rollouts.unasked.step()

    async def finish_rollout(self) -> None:
        """Let the new version take over, and stop the old one."""
        for seconds in (SHIFT_S, LEARN_S):
            self.clock.advance(seconds)
            await self.platform.rooms.rollouts.takeovers.step()
            await self.reconciler.reconcile()

    def change_settings(self, **changes: Any) -> None:
        """Start the platform again with other settings."""
        self.settings = Settings(**{**TEST_SETTINGS, **self.changes, **changes})
        self.restart()

    async def _serialize(self, spec: JobSpec) -> None:
        key = spec.secrets[TICKET_VARIABLE].rpartition("/")[2]
        part = AdapterPart(base_key=self.base, scales={})
        manifest = Manifest(
            key=key,
            repo=ONE,
            commit="c" * 40,
            adapter=part if key in self.added.values() else None,
            files=(),
            tensors_bytes=0,
            tensors=(),
            tool_versions={},
            created_at=self.clock.now(),
        )
        self.store.stage(key, manifest, self.small)


class KubernetesWorld(AdapterWorld):
    """The same with the settings of a platform on Kubernetes that serves adapters unmerged."""

    changes = {**AdapterWorld.changes, "cluster": "kubernetes", "lora_serving": "adapter"}


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> AdapterWorld:
    world = AdapterWorld(database)
    await world.begin(tmp_path)
    return world


async def test_the_first_adapter_joins_the_server_of_its_base(world: AdapterWorld) -> None:
    base, adapter = await world.submit("acme/tiny"), await world.submit(ONE)
    for run in (base, adapter):
        assert await world.run(run, *TO_SERIALIZE, Stage.DEPLOY) is Outcome.DONE
    assert world.cluster.starts == [deployment_name(base.submission_id)]
    models = [world.deployments.model_name(run.submission_id) for run in (base, adapter)]
    assert models == [f"{base.submission_id}#{world.base}", f"{world.added[ONE]}#{world.base}"]


@pytest.mark.parametrize("repos", [("acme/tiny", ONE), (ONE, "acme/tiny")], ids=str)
async def test_elsewhere_a_base_joins_adapters_that_were_there_first(
    database: Database, tmp_path: Path, repos: tuple[str, str]
) -> None:
    world = KubernetesWorld(database)
    await world.begin(tmp_path)
    for repo in repos:
        run = await world.submit(repo)
        assert await world.run(run, *TO_SERIALIZE, Stage.DEPLOY) is Outcome.DONE
    assert len(world.cluster.starts) == (1 if repos[0] == ONE else 2)


async def test_an_adapter_that_vllm_refuses_is_merged_and_says_why(world: AdapterWorld) -> None:
    run = await world.submit(ONE)
    await world.run(run, *TO_SERIALIZE)
    world.model_server.adapter_fault = REFUSAL
    assert await world.run(run, Stage.DEPLOY) is Outcome.DONE
    row = await world.deployments.find(run.submission_id)
    assert row is not None
    assert (row.artifact_key, row.base_key) == (world.merged[ONE], None)
    (server,) = world.cluster.deployments.values()
    assert "--enable-lora" not in server.spec.command
    assert world.store.uri(row.artifact_key) in server.spec.command
    path = f"/submissions/{run.submission_id}"
    assert (await world.api.get(path)).json()["merged_because"] == WHY
    assert WHY in (await world.api.get(f"{path}/events?follow=false")).text
    assert await world.run(run, Stage.STRESS) is Outcome.DONE
    assert (await world.api.get(f"{path}/stress")).json()["merged_because"] == WHY


async def test_a_refusal_leaves_the_other_adapters_of_the_base_alone(world: AdapterWorld) -> None:
    first, second = await world.submit(ONE), await world.submit(TWO)
    assert await world.run(first, *TO_SERIALIZE, Stage.DEPLOY) is Outcome.DONE
    await world.run(second, *TO_SERIALIZE)
    world.model_server.adapter_fault = REFUSAL
    assert await world.run(second, Stage.DEPLOY) is Outcome.DONE
    names = [deployment_name(run.submission_id) for run in (first, second)]
    assert world.cluster.starts == names
    assert list(world.cluster.deployments) == names
    served = await world.deployments.find(first.submission_id)
    assert served is not None
    assert served.is_adapter


async def test_the_token_of_a_private_adapter_is_kept_until_loaded(
    world: AdapterWorld,
) -> None:
    world.hub.make_private(ONE, TOKEN)
    run = await world.submit(ONE, **{"X-Hub-Token": TOKEN})
    await world.run(run, *TO_SERIALIZE)
    assert await world.kept_token(run)
    world.model_server.adapter_fault = REFUSAL
    assert await world.run(run, Stage.DEPLOY) is Outcome.DONE
    assert world.cluster.jobs[-1].secrets["HF_TOKEN"] == TOKEN
    assert not await world.kept_token(run)


async def test_a_refused_adapter_waits_for_room_without_a_place(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_start, "ROOM_PATIENCE_S", 0.0)
    world = AdapterWorld(database, max_model_servers=1)
    await world.begin(tmp_path)
    base, adapter = await world.submit("acme/tiny"), await world.submit(ONE)
    for run in (base, adapter):
        await world.run(run, *TO_SERIALIZE)
    assert await world.run(base, Stage.DEPLOY) is None
    await world.reconciler.reconcile()
    assert await world.run(base, Stage.DEPLOY) is Outcome.DONE
    world.model_server.adapter_fault = REFUSAL
    assert await world.run(adapter, Stage.DEPLOY) is None  # its workflow ends until there is room
    waiting = (await world.api.get(f"/submissions/{adapter.submission_id}")).json()
    assert waiting["merged_because"] == WHY
    (why,) = (stage["waits_for"] for stage in waiting["stages"] if stage["stage"] == "deploy")
    assert why
    await world.api.post(f"/submissions/{base.submission_id}/cancel")
    for _ in range(2):
        await world.reconciler.reconcile()
    assert await world.run(adapter, Stage.DEPLOY) is Outcome.DONE
    row = await world.deployments.find(adapter.submission_id)
    assert row is not None
    assert (row.artifact_key, row.base_key) == (world.merged[ONE], None)


async def test_a_served_adapter_that_a_restarted_server_refuses_is_merged(
    world: AdapterWorld,
) -> None:
    run = await world.submit(ONE)
    assert await world.run(run, *Stage) is Outcome.DONE
    await world.forget_adapters(REFUSAL)
    assert await world.unasked() == [run.submission_id]
    assert await world.unasked() == []
    read = (await world.api.get(f"/submissions/{run.submission_id}")).json()
    assert read["rollout"]["because"] == WHY
    assert read["unserved"]["problem"] == str(REFUSAL)
    again = PipelineRun(run.submission_id, 2)
    assert await world.run(again, *Stage) is Outcome.DONE
    await world.finish_rollout()
    read = (await world.api.get(f"/submissions/{run.submission_id}")).json()
    assert (read["merged_because"], read["unserved"]) == (WHY, None)
    assert world.deployments.model_name(run.submission_id).endswith(world.merged[ONE])
    assert await world.unasked() == []


async def test_a_merge_that_failed_is_begun_again_later(world: AdapterWorld) -> None:
    run = await world.submit(ONE)
    await world.run(run, *Stage)
    await world.forget_adapters(REFUSAL)
    assert await world.unasked() == [run.submission_id]
    failure = HubUnreachable("It is away.")
    assert await world.journal.fail_run(PipelineRun(run.submission_id, 2), failure)
    assert await world.unasked() == []
    world.clock.advance(AGAIN_S)
    assert await world.unasked() == [run.submission_id]


async def test_a_lost_artifact_is_made_again_unasked(world: AdapterWorld) -> None:
    run = await world.submit(ONE)
    assert await world.run(run, *Stage) is Outcome.DONE
    for key in (world.base, world.added[ONE]):
        await world.store.delete(key)
    await world.forget_adapters(REFUSAL)
    path = f"/submissions/{run.submission_id}"
    read = (await world.api.get(path)).json()
    assert read["unserved"]["trouble"] == "artifact_missing"
    assert await world.unasked() == [run.submission_id]
    assert await world.unasked() == []
    read = (await world.api.get(path)).json()
    assert read["rollout"]["because"] == LOST
    world.model_server.adapter_fault = None
    again = PipelineRun(run.submission_id, 2)
    assert await world.run(again, *TO_SERIALIZE) is Outcome.DONE
    await world.reconciler.reconcile()
    read = (await world.api.get(path)).json()
    assert (read["unserved"], read["merged_because"]) == (None, None)
    assert await world.run(again, Stage.DEPLOY, Stage.STRESS, Stage.PUBLISH) is Outcome.DONE
    await world.finish_rollout()
    read = (await world.api.get(path)).json()
    assert (read["rollout"]["phase"], read["unserved"]) == ("done", None)
    assert await world.unasked() == []


async def test_bringing_back_a_refused_adapter_fails_with_a_sentence(
    world: AdapterWorld,
) -> None:
    run = await world.submit(ONE)
    await world.run(run, *Stage)
    path = f"/submissions/{run.submission_id}"
    await world.api.post(f"{path}/redeploy", json={"promote": True})
    await world.run(PipelineRun(run.submission_id, 2), *Stage)
    await world.finish_rollout()
    await world.api.post(f"{path}/rollback")
    world.model_server.adapter_fault = REFUSAL
    assert await world.run(PipelineRun(run.submission_id, 3), Stage.DEPLOY) is Outcome.FAILED
    failure = (await world.api.get(path)).json()["rollout"]["failure"]
    assert str(REFUSAL) in failure["detail"]


async def test_a_base_with_its_own_server_moves_to_its_adapters(
    database: Database, tmp_path: Path
) -> None:
    world = AdapterWorld(database, lora_serving="merged")
    await world.begin(tmp_path)
    base = await world.submit("acme/tiny")
    assert await world.run(base, *Stage) is Outcome.DONE
    world.change_settings(lora_serving="adapter")
    await world.reconciler.reconcile()
    assert await world.unasked() == []  # no adapter yet
    adapter = await world.submit(ONE)
    assert await world.run(adapter, *Stage) is Outcome.DONE
    assert await world.unasked() == [base.submission_id]
    moved = PipelineRun(base.submission_id, 2)
    assert await world.run(moved, Stage.DEPLOY, Stage.PUBLISH) is Outcome.DONE
    await world.finish_rollout()
    models = [world.deployments.model_name(run.submission_id) for run in (base, adapter)]
    assert models == [f"{adapter.submission_id}#{world.base}", f"{world.added[ONE]}#{world.base}"]
    assert list(world.cluster.deployments) == [deployment_name(adapter.submission_id)]
    assert await world.unasked() == []
    answer = await world.api.post(f"/submissions/{base.submission_id}/rollback")
    assert answer.status_code == 409  # a move replaced no version
