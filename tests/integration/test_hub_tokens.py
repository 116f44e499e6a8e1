"""Private repos, opened by their developer's own token: encrypted, for one submission, and gone when it has done its work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco.submissions import Outcome, Stage, Status, Submission
from guanaco_server.clusters.cluster import JobSpec
from guanaco_server.clusters.memory import JobScript
from guanaco_server.database.database import Database
from guanaco_server.demo.tiny_repo import make_tiny_repo
from guanaco_server.formats.manifest import Manifest
from guanaco_server.serializer.task import TICKET_VARIABLE
from guanaco_server.submissions.pipeline.records import PipelineRun
from tests.fixtures.world import World

REPO = "acme/secret"
TOKEN = "hf_ofada0123456789"
HEADER = {"X-Hub-Token": TOKEN}


class SecretWorld(World):
    """A developer with a private repo, and the first three stages of the pipeline."""

    changes = {"hub_token": "hf_oftheplatform0"}

    async def begin(self, folder: Path) -> None:
        make_tiny_repo(folder)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.hub.add_repo(REPO, files)
        self.hub.make_private(REPO, TOKEN)
        self.api = await self.http(Role.DEVELOPER, "ada")
        self.cluster.job = JobScript([], 0, self._serialize)

    async def submit(self, **headers: str) -> PipelineRun:
        answer = await self.api.post("/submissions", json={"repo": REPO}, headers=headers)
        assert answer.status_code == 202
        return PipelineRun(answer.json()["id"], 1)

    async def run(self, run: PipelineRun, *stages: Stage) -> Outcome | None:
        """The last stage's outcome."""
        outcome = None
        for stage in stages:
            outcome = await self.platform.rooms.pipeline.runner.run(run, stage)
        return outcome

    async def submission(self, run: PipelineRun) -> Submission:
        answer = await self.api.get(f"/submissions/{run.submission_id}")
        return Submission.model_validate(answer.json())

    async def kept(self) -> list[str]:
        async with self.database.read() as session:
            return list(await session.scalars(text("SELECT sealed FROM hub_tokens")))

    async def everything_stored(self) -> str:
        """Every row of every table that a submission leaves."""
        tables = ("submissions", "submission_events", "stage_runs", "hub_tokens", "audit")
        async with self.database.read() as session:
            rows = [
                (await session.execute(text(f"SELECT * FROM {table}"))).all() for table in tables
            ]
        return json.dumps(rows, default=str)

    async def _serialize(self, spec: JobSpec) -> None:
        key = spec.secrets[TICKET_VARIABLE].rpartition("/")[2]
        manifest = Manifest(
            key=key,
            repo=REPO,
            commit="c" * 40,
            files=(),
            tensors_bytes=0,
            tensors=(),
            tool_versions={},
            created_at=self.clock.now(),
        )
        self.store.stage(key, manifest, {})


TO_SERIALIZE = (Stage.RESOLVE, Stage.CHECK, Stage.SERIALIZE)


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> SecretWorld:
    world = SecretWorld(database)
    await world.begin(tmp_path / "repo")
    return world


async def test_a_private_repo_is_refused_without_its_developers_token(world: SecretWorld) -> None:
    run = await world.submit()
    assert await world.run(run, Stage.RESOLVE) is Outcome.FAILED
    failure = (await world.submission(run)).failure
    assert failure is not None
    assert failure.code == "repo_not_found"
    assert "or it is private" in failure.detail
    assert "--hub-token" in (failure.hint or "")


async def test_token_opens_the_repo_and_is_deleted_after_serializing(
    world: SecretWorld, caplog: pytest.LogCaptureFixture
) -> None:
    run = await world.submit(**HEADER)
    assert await world.run(run, Stage.RESOLVE, Stage.CHECK) is Outcome.DONE
    (sealed,) = await world.kept()
    assert TOKEN not in await world.everything_stored()
    assert TOKEN.encode().hex() not in sealed
    assert await world.run(run, Stage.SERIALIZE) is Outcome.DONE
    (job,) = world.cluster.jobs
    assert job.secrets["HF_TOKEN"] == TOKEN
    assert await world.kept() == []
    assert TOKEN not in caplog.text
    assert TOKEN not in await world.everything_stored()


@pytest.mark.both_databases
async def test_another_process_of_the_platform_reads_the_token(world: SecretWorld) -> None:
    run = await world.submit(**HEADER)
    world.restart()
    assert await world.run(run, *TO_SERIALIZE) is Outcome.DONE


async def test_the_token_of_one_submission_opens_no_other(world: SecretWorld) -> None:
    await world.submit(**HEADER)
    other = await world.submit()
    assert await world.run(other, Stage.RESOLVE) is Outcome.FAILED
    assert len(await world.kept()) == 1


async def test_a_stored_token_is_of_no_use_in_another_row(world: SecretWorld) -> None:
    first, other = await world.submit(**HEADER), await world.submit()
    async with world.database.write() as session:
        await session.execute(
            text("UPDATE hub_tokens SET submission_id = :other"), {"other": other.submission_id}
        )
    assert await world.run(other, Stage.RESOLVE) is Outcome.FAILED
    assert await world.run(first, Stage.RESOLVE) is Outcome.FAILED


async def test_a_submission_that_fails_or_is_cancelled_keeps_no_token(world: SecretWorld) -> None:
    cancelled = await world.submit(**HEADER)
    await world.api.post(f"/submissions/{cancelled.submission_id}/cancel")
    assert await world.kept() == []
    failing = await world.submit(**{"X-Hub-Token": "hf_ofastranger"})
    assert await world.run(failing, Stage.RESOLVE) is Outcome.FAILED
    assert await world.kept() == []


async def test_a_redeploy_needs_the_token_anew(world: SecretWorld) -> None:
    run = await world.submit(**HEADER)
    assert await world.run(run, *TO_SERIALIZE) is Outcome.DONE
    path = f"/submissions/{run.submission_id}"
    for number, headers, outcome in ((2, {}, Outcome.FAILED), (3, HEADER, Outcome.DONE)):
        await world.api.post(f"{path}/cancel")
        assert (await world.api.post(f"{path}/redeploy", headers=headers)).status_code == 202
        again = PipelineRun(run.submission_id, number)
        assert await world.run(again, Stage.RESOLVE) is outcome
        failure = (await world.submission(again)).failure
        assert (failure and failure.code) == (
            "hub_token_gone" if outcome is Outcome.FAILED else None
        )
        assert failure is None or "given again" in failure.detail


@pytest.mark.both_databases
async def test_a_run_that_was_replaced_leaves_the_next_ones_token(world: SecretWorld) -> None:
    run = await world.submit(**HEADER)
    assert await world.run(run, Stage.RESOLVE, Stage.CHECK) is Outcome.DONE
    await world.journal.begin_stage(run, Stage.SERIALIZE)
    path = f"/submissions/{run.submission_id}"
    await world.api.post(f"{path}/cancel")
    await world.api.post(f"{path}/redeploy", headers=HEADER)
    await world.journal.end_stage(run, Stage.SERIALIZE, {})
    assert len(await world.kept()) == 1
    assert await world.run(PipelineRun(run.submission_id, 2), *TO_SERIALIZE) is Outcome.DONE


async def test_the_base_of_an_adapter_is_refused_likewise(world: SecretWorld) -> None:
    config: dict[str, Any] = {"peft_type": "LORA", "base_model_name_or_path": REPO, "r": 8}
    world.hub.add_repo("acme/adapter", {"adapter_config.json": json.dumps(config).encode()})
    answer = await world.api.post("/submissions", json={"repo": "acme/adapter"})
    run = PipelineRun(answer.json()["id"], 1)
    assert await world.run(run, Stage.RESOLVE, Stage.CHECK) is Outcome.FAILED
    failure = (await world.submission(run)).failure
    assert failure is not None
    assert REPO in failure.detail
    assert failure.code == "repo_not_found"


NO_TOKENS: list[str] = ["", "a b\u00e9", "x" * 513]


async def test_what_is_no_token_is_refused_without_being_repeated(
    world: SecretWorld, subtests: pytest.Subtests
) -> None:
    for token in NO_TOKENS:
        with subtests.test(token=token):
            answer = await world.api.post(
                "/submissions", json={"repo": REPO}, headers={"X-Hub-Token": token.encode()}
            )
            assert answer.status_code == 422
            assert not token or token not in answer.text
            assert (await world.api.get("/submissions")).json() == []


async def test_a_published_submission_has_no_token(world: SecretWorld) -> None:
    run = await world.submit(**HEADER)
    async with world.database.write() as session:
        await session.execute(text("UPDATE submissions SET status = 'deployed'"))
    assert (await world.submission(run)).status is Status.DEPLOYED
    await world.submit(**HEADER)
    assert len(await world.kept()) == 1, "one that an older version has moved on is not kept"
