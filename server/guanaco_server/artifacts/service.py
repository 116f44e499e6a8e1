"""Artifacts: one for each commit and way of serializing, made once and shared by its submissions."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from pydantic import SecretStr

from guanaco.errors import (
    BadChatTemplate,
    CorruptConfig,
    CorruptWeights,
    DiskFull,
    EngineMissing,
    HubUnreachable,
    SerializerDied,
    StoreUnreachable,
    SubmissionFailure,
    UnsupportedTokenizer,
)
from guanaco.submissions import Level, WeightDtype
from guanaco_server.artifacts.checking.adapters import CheckedAdapter
from guanaco_server.artifacts.checking.checks import CheckedModel
from guanaco_server.artifacts.collector import ArtifactCollector
from guanaco_server.artifacts.hub.hub import RepoSnapshot
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.clusters.cluster import Cluster, JobResult, JobSpec
from guanaco_server.formats.manifest import Manifest
from guanaco_server.observability.metrics import Metrics
from guanaco_server.serializer.task import TICKET_VARIABLE, Adapter, Merge, SerializerJob, Source

Log = Callable[[str, Level], Awaitable[None]]
Exclusive = Callable[[str], AbstractAsyncContextManager[None]]

FORMAT = "tensorizer-3"  # part of every key: a change in how we serialize makes new artifacts
ROOM_FACTOR = 1.05  # headers and small files
TENSOR_OVERHEAD_BYTES = 16_384  # more than a tensor's header and index entry can take


@dataclass(frozen=True)
class SerializerOptions:
    """The options with which this platform runs serializer jobs."""

    command: tuple[str, ...]
    hub_endpoint: str
    memory_bytes: int
    timeout_s: float


class ArtifactService:
    """``exclusive`` keeps other processes from making what this one makes."""

    def __init__(
        self,
        store: ArtifactStore,
        collector: ArtifactCollector,
        cluster: Cluster,
        options: SerializerOptions,
        exclusive: Exclusive,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._collector = collector
        self._cluster = cluster
        self._options = options
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._begun: dict[str, str] = {}  # what is unfinished, by who waits for it
        self._exclusive = exclusive
        self._metrics = metrics

    async def ensure(
        self,
        owner: str,
        snapshot: RepoSnapshot,
        model: CheckedModel,
        dtype: WeightDtype,
        hub_token: SecretStr | None,
        log: Log,
        base_key: str | None = None,
    ) -> Manifest:
        """Return the artifact of a checked commit; serialize it unless it is there already. ``owner`` waits for it.

        With a ``base_key`` it is an adapter's alone, for servers of that artifact. ``hub_token`` is the developer's own, if the repo needs one. The job gets no other.
        """
        options = self._options
        job = serializer_job(
            snapshot, model, dtype, options.hub_endpoint, options.memory_bytes, base_key
        )
        async with self._locks[job.key], self._exclusive(f"serialize-{job.key}"):
            await self._collector.keep(job.key)
            if found := await self._store.find(job.key):
                await log(
                    "This commit is serialized already: its artifact is used again.", Level.INFO
                )
                return found
            await self._require_room(model)
            self._begun[owner] = job.key
            try:
                await self._serialize(job, model, hub_token, log)
                manifest = await self._store.publish(job.key)
            except OSError as error:
                raise DiskFull(f"The artifact could not be written: {error.strerror}.") from error
            except SubmissionFailure as failure:
                if not failure.is_retryable:  # else what was written is where the next try goes on
                    await self._drop(owner)
                raise
            await self._drop(owner)
            self._metrics.note_serialized(manifest.tensors_bytes)
            return manifest

    async def keep_within(self, room_bytes: int, unneeded: Mapping[str, int]) -> None:
        """Delete those of these artifacts that are beyond the room. ``unneeded`` are sizes by key, the first of which stay."""
        await self._collector.keep_within(room_bytes, unneeded)

    async def drop_begun(self, owner: str) -> None:
        """Drop what was written for an owner that was cancelled."""
        if key := self._begun.get(owner):
            async with self._locks[key]:
                await self._drop(owner)

    async def _drop(self, owner: str) -> None:
        await self._store.discard(self._begun[owner])
        del self._begun[owner]

    async def _require_room(self, model: CheckedModel) -> None:
        free = await self._store.free_bytes()
        needed = int(model.weight_bytes * ROOM_FACTOR)
        if free is not None and free < needed:
            raise DiskFull(
                f"Serializing needs {needed:,} bytes of disk and {free:,} are free.",
                hint="The operator has to make room; then `guanaco redeploy`.",
            )

    async def _serialize(
        self, job: SerializerJob, model: CheckedModel, hub_token: SecretStr | None, log: Log
    ) -> None:
        max_bytes = model.weight_bytes + model.tensor_count * TENSOR_OVERHEAD_BYTES + 1_000_000
        ticket_url = await self._store.begin(job, max_bytes)
        reader = _JobReader(log)
        spec = JobSpec(
            name=f"s-{job.key[:32]}",
            command=self._options.command,
            secrets={
                **_token(hub_token),
                **self._store.environment(),
                TICKET_VARIABLE: ticket_url,
            },
            timeout_s=self._options.timeout_s,
        )
        try:
            result = await self._cluster.run_job(spec, reader.read)
        except TimeoutError:
            raise SerializerDied(
                f"Serializing took longer than {self._options.timeout_s:,.0f} s and was stopped."
            ) from None
        except FileNotFoundError:
            raise EngineMissing(
                f"The engine environment is missing: there is no {self._options.command[0]}.",
                hint="The operator runs `guanaco doctor`.",
            ) from None
        except PermissionError as error:
            if error.filename != self._options.command[0]:
                raise
            raise EngineMissing(
                f"The platform's user may not run the engine environment's {error.filename}.",
                hint="The operator makes it with `make engine` as that user, or lets that user read it.",
            ) from None
        if result.exit_code != 0:
            raise reader.failure(result)


def _token(hub_token: SecretStr | None) -> dict[str, str]:
    return {"HF_TOKEN": hub_token.get_secret_value()} if hub_token else {}


FAILURES: dict[str, type[SubmissionFailure]] = {
    kind.code: kind
    for kind in (
        BadChatTemplate,
        CorruptConfig,
        CorruptWeights,
        DiskFull,
        HubUnreachable,
        SerializerDied,
        StoreUnreachable,
        UnsupportedTokenizer,
    )
}


class _JobReader:
    """Reads a serializer's output: a JSON object a line is progress or its last words, anything else is debug."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._last_words: dict[str, str] | None = None

    async def read(self, line: str) -> None:
        fields = _read_line(line)
        if "error" in fields:
            self._last_words = fields
        elif "message" in fields:
            await self._log(fields["message"], Level.INFO)
        else:
            await self._log(line, Level.DEBUG)

    def failure(self, result: JobResult) -> SubmissionFailure:
        words = self._last_words
        if words is None and result.problem is not None:
            return SerializerDied(f"The serializer was stopped. {result.problem}")
        if words is None:
            return SerializerDied(
                f"The serializer ended with exit status {result.exit_code} and no explanation.",
                hint="It may have run out of memory; see serializer_memory_bytes.",
            )
        return FAILURES.get(words["error"], SerializerDied)(
            words.get("message", "It says no more.")
        )


def _read_line(line: str) -> dict[str, str]:
    """Parse a line of a job's output that is a JSON object of texts; return an empty one otherwise. The job has read a stranger's files."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(parsed, dict):
        return {}
    return {
        name: parsed[name] for name in ("error", "message") if isinstance(parsed.get(name), str)
    }


def serializer_job(
    snapshot: RepoSnapshot,
    model: CheckedModel,
    dtype: WeightDtype,
    hub_endpoint: str,
    memory_bytes: int,
    base_key: str | None = None,
) -> SerializerJob:
    """Describe the job that makes the artifact of a checked commit; with a ``base_key`` that of an adapter alone."""
    return SerializerJob(
        key=artifact_key(snapshot, model.base, dtype, base_key),
        hub_endpoint=hub_endpoint,
        memory_bytes=memory_bytes,
        model=_source(model.base or snapshot, model),
        adapter=_adapter_source(snapshot, model.adapter) if model.adapter else None,
        dtype=dtype,
        base_key=base_key,
    )


def artifact_key(
    snapshot: RepoSnapshot,
    base: RepoSnapshot | None,
    dtype: WeightDtype,
    base_key: str | None = None,
) -> str:
    """SHA-256 over what decides an artifact's content."""
    of_base = [base.repo, base.commit] if base else []
    alone = ["adapter", base_key] if base_key else []
    content = [FORMAT, snapshot.repo, snapshot.commit, *of_base, dtype.value, *alone]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _source(snapshot: RepoSnapshot, model: CheckedModel) -> Source:
    return Source(
        repo=snapshot.repo,
        commit=snapshot.commit,
        weight_files=model.weight_files,
        small_files=model.small_files,
    )


def _adapter_source(snapshot: RepoSnapshot, adapter: CheckedAdapter) -> Adapter:
    return Adapter(
        repo=snapshot.repo,
        commit=snapshot.commit,
        weight_files=(adapter.weight_file,),
        small_files=adapter.small_files,
        merges=tuple(
            Merge(
                tensor=f"{module.module}.weight",
                a=module.a,
                b=module.b,
                scale=module.scale,
            )
            for module in adapter.modules
        ),
    )
