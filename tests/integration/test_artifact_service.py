"""Tests which artifacts are made, which are used again, and what is left when making one fails."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from guanaco.errors import CorruptWeights, EngineMissing, HubUnreachable, SubmissionFailure
from guanaco.submissions import Level, WeightDtype
from guanaco_server.artifacts.checking.adapters import CheckedAdapter, LoraModule
from guanaco_server.artifacts.checking.checks import CheckedModel
from guanaco_server.artifacts.collector import ArtifactCollector, GracePeriods
from guanaco_server.artifacts.hub.hub import RepoSnapshot
from guanaco_server.artifacts.service import (
    ArtifactService,
    SerializerOptions,
    artifact_key,
    serializer_job,
)
from guanaco_server.artifacts.stores.memory import MemoryStore
from guanaco_server.clusters.cluster import JobSpec
from guanaco_server.clusters.memory import JobScript, MemoryCluster
from guanaco_server.database.database import Database
from guanaco_server.formats.manifest import Manifest
from guanaco_server.observability.metrics import Metrics
from guanaco_server.runtime.clock import FixedClock
from guanaco_server.serializer.task import TICKET_VARIABLE, Merge

SNAPSHOT = RepoSnapshot("acme/tiny", "c" * 40, ())
MODEL = CheckedModel("LlamaForCausalLM", 10, 20, 512, ("model.safetensors",), (), 1)
OPTIONS = SerializerOptions(("serialize",), "http://hub.invalid", 2**30, 60.0)
AUTO = WeightDtype.AUTO


class Yard:
    """The service over memory, with a serializer job that does as it is told."""

    def __init__(self, database: Database) -> None:
        self.store = MemoryStore()
        self.cluster = MemoryCluster()
        clock = FixedClock()
        collector = ArtifactCollector(
            database, clock, self.store, self._needed, GracePeriods(600, 600, 600)
        )
        self.service = ArtifactService(
            self.store, collector, self.cluster, OPTIONS, lambda _name: nullcontext(), Metrics()
        )
        self.said: list[str] = []
        self._now = clock.now()

    def will(self, *lines: dict[str, Any], exit_code: int = 0) -> None:
        works: Callable[[JobSpec], Awaitable[None]] | None = None if exit_code else self._work
        self.cluster.job = JobScript([json.dumps(line) for line in lines], exit_code, works)

    async def ensure(
        self, owner: str = "tiny_v1", dtype: WeightDtype = AUTO, hub_token: SecretStr | None = None
    ) -> Manifest:
        return await self.service.ensure(owner, SNAPSHOT, MODEL, dtype, hub_token, self._log)

    async def _work(self, spec: JobSpec) -> None:
        key = spec.secrets[TICKET_VARIABLE].rpartition("/")[2]
        manifest = Manifest(
            key=key,
            repo=SNAPSHOT.repo,
            commit=SNAPSHOT.commit,
            files=(),
            tensors_bytes=0,
            tensors=(),
            tool_versions={},
            created_at=self._now,
        )
        self.store.stage(key, manifest, {})

    async def _log(self, message: str, level: Level) -> None:
        self.said.append(message)

    async def _needed(self, _ended_before: object) -> set[str]:
        return set()


@pytest.fixture
def yard(database: Database) -> Yard:
    return Yard(database)


@pytest.mark.both_databases
async def test_an_artifact_is_made_once_and_used_again(yard: Yard) -> None:
    yard.will({"message": "Streaming."})
    first = await yard.ensure()
    assert await yard.ensure("other_v1") == first
    assert len(yard.cluster.jobs) == 1
    assert yard.said == [
        "Streaming.",
        "This commit is serialized already: its artifact is used again.",
    ]


async def test_another_dtype_is_another_artifact(yard: Yard) -> None:
    yard.will()
    keys = {(await yard.ensure(dtype=dtype)).key for dtype in WeightDtype}
    assert len(keys) == len(WeightDtype)


async def test_the_job_gets_its_secrets_apart(yard: Yard) -> None:
    yard.will()
    manifest = await yard.ensure(hub_token=SecretStr("hf_x"))
    (spec,) = yard.cluster.jobs
    assert spec.secrets == {"HF_TOKEN": "hf_x", TICKET_VARIABLE: f"memory://staging/{manifest.key}"}
    assert "hf_x" not in repr(spec)
    assert spec.environment == {}


async def test_a_job_without_a_developers_token_gets_none(yard: Yard) -> None:
    yard.will()
    await yard.ensure()
    (spec,) = yard.cluster.jobs
    assert spec.secrets.keys() == {TICKET_VARIABLE}


@pytest.mark.parametrize(
    ("code", "error", "is_kept"),
    [("hub_unreachable", HubUnreachable, True), ("corrupt_weights", CorruptWeights, False)],
)
async def test_written_data_is_kept_for_a_retry_that_can_help(
    yard: Yard, code: str, error: type[SubmissionFailure], is_kept: bool
) -> None:
    yard.will({"error": code, "message": "No."}, exit_code=1)
    with pytest.raises(error, match="No"):
        await yard.ensure()
    key = artifact_key(SNAPSHOT, None, AUTO)
    assert await yard.store.discard_stale(0) == ([key] if is_kept else [])


async def test_what_was_written_for_a_cancelled_submission_is_dropped(yard: Yard) -> None:
    yard.will({"error": "hub_unreachable", "message": "No."}, exit_code=1)
    with pytest.raises(HubUnreachable):
        await yard.ensure("tiny_v1")
    await yard.service.drop_begun("other_v1")
    await yard.service.drop_begun("tiny_v1")
    await yard.service.drop_begun("tiny_v1")
    assert await yard.store.discard_stale(0) == []


def test_an_adapters_job_merges_into_its_pinned_base() -> None:
    base = RepoSnapshot("acme/base", "b" * 40, ())
    module = LoraModule("x", "x.lora_A", "x.lora_B", 0.5, 2)
    adapter = CheckedAdapter("adapter_model.safetensors", (), (module,), 64)
    model = CheckedModel(
        "LlamaForCausalLM", 10, 20, 512, ("m.safetensors",), (), 1, adapter=adapter, base=base
    )
    job = serializer_job(SNAPSHOT, model, AUTO, "http://hub.invalid", 2**30)
    assert (job.model.repo, job.model.commit) == ("acme/base", "b" * 40)
    assert job.adapter is not None
    assert (job.adapter.repo, job.adapter.weight_files) == (
        "acme/tiny",
        ("adapter_model.safetensors",),
    )
    assert job.adapter.merges == (Merge(tensor="x.weight", a="x.lora_A", b="x.lora_B", scale=0.5),)
    other_base = RepoSnapshot("acme/base", "d" * 40, ())
    assert job.key == artifact_key(SNAPSHOT, base, AUTO) != artifact_key(SNAPSHOT, other_base, AUTO)


async def test_odd_lines_of_a_job_are_only_shown(yard: Yard) -> None:
    yard.will()
    odd = ["[" * 60_000, '{"level": "no such level", "message": "x"}', '{"message": 1}', "7"]
    yard.cluster.job = replace(yard.cluster.job, lines=odd)
    await yard.ensure()
    assert yard.said == [odd[0], "x", *odd[2:]]


async def test_an_engine_that_may_not_be_run_is_said_so(yard: Yard) -> None:
    async def refuse(spec: JobSpec) -> None:
        raise PermissionError(13, "Permission denied", spec.command[0])

    yard.cluster.job = replace(yard.cluster.job, works=refuse)
    with pytest.raises(EngineMissing, match="user may not run"):
        await yard.ensure()
