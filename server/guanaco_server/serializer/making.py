"""From a repo to an artifact: read, work out the plan, stream, write the manifest.

    headers → plan → small files → tensors, streamed (pump.py) → manifest

The manifest is written last: where it is, the artifact is whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from guanaco_server.formats.manifest import MANIFEST_NAME, Manifest, StoredFile, TensorRecord
from guanaco_server.serializer.adapter import AdapterMatrices, lora_pairs
from guanaco_server.serializer.download import download
from guanaco_server.serializer.headers import read_header
from guanaco_server.serializer.hub_files import HubFiles, RangesRefused
from guanaco_server.serializer.journal import Journal
from guanaco_server.serializer.local_files import LocalFiles
from guanaco_server.serializer.lora import LoraPair
from guanaco_server.serializer.plan import Plan, chosen_cast, make_plan
from guanaco_server.serializer.progress import say
from guanaco_server.serializer.pump import Pump
from guanaco_server.serializer.repo_files import RepoFiles
from guanaco_server.serializer.small_files import (
    CONFIG_NAME,
    fetch,
    is_quantized,
    parse_config,
    prepared,
    with_dtype,
)
from guanaco_server.serializer.targets import Target
from guanaco_server.serializer.ticket import SerializerJob, Source

TOOLS = ("guanaco", "numpy", "huggingface_hub")


def make_artifact(job: SerializerJob, target: Target, workers: int, scratch: Path) -> Manifest:
    """Reads by range, or by way of the scratch folder from a Hub that sends whole files only."""
    try:
        return _make(job, target, workers, lambda source: _ranged(job, source), scratch)
    except RangesRefused:
        say("This Hub sends whole files only: they go to the disk first, and on from there.")
    return _make(job, target, workers, lambda source: _downloaded(job, source, scratch), scratch)


def _make(
    job: SerializerJob,
    target: Target,
    workers: int,
    open_repo: Callable[[Source], RepoFiles],
    scratch: Path,
) -> Manifest:
    model = open_repo(job.model)
    adapter = open_repo(job.adapter) if job.adapter else None
    small = fetch(model, job.model.small_files)
    if job.adapter and adapter:
        small |= fetch(adapter, job.adapter.small_files)
    small = prepared(small, scratch / "small")
    plan, matrices = _plan(job, model, adapter, small)
    journal = Journal(plan.digest(), target.identity, target.read_journal(), target.save_journal)
    sink = target.open_tensors(plan.layout.total_bytes, journal)
    pump = Pump(plan, model, matrices, sink, journal, workers)
    pump.run()
    for name, content in small.items():
        target.put_file(name, content)
    manifest = _manifest(job, plan, pump, small)
    target.put_file(MANIFEST_NAME, manifest.model_dump_json(indent=1).encode())
    return manifest


def _ranged(job: SerializerJob, source: Source) -> RepoFiles:
    return HubFiles(job.hub_endpoint, source.repo, source.commit)


def _downloaded(job: SerializerJob, source: Source, scratch: Path) -> RepoFiles:
    paths = (*source.weight_files, *source.small_files)
    folder = scratch / source.commit
    endpoint = job.hub_endpoint
    return LocalFiles(download(source.repo, source.commit, paths, endpoint=endpoint, folder=folder))


def _plan(
    job: SerializerJob, model: RepoFiles, adapter: RepoFiles | None, small: dict[str, bytes]
) -> tuple[Plan, AdapterMatrices | None]:
    """The plan, and config.json made true to it."""
    weights = [read_header(model, path) for path in job.model.weight_files]
    quantized = is_quantized(parse_config(small[CONFIG_NAME]))
    cast_to = chosen_cast(job.dtype, weights, quantized)
    small[CONFIG_NAME] = with_dtype(small[CONFIG_NAME], cast_to)
    loras: dict[str, LoraPair] = {}
    matrices = None
    if job.adapter and adapter:
        header = read_header(adapter, job.adapter.weight_files[0])
        matrices = AdapterMatrices(adapter, header.path)
        loras = lora_pairs(job.adapter, header)
    plan = make_plan(weights, cast_to, loras)
    changed = f", cast to {cast_to}" if cast_to else ""
    changed += f", {len(loras)} of them merged with the adapter's" if loras else ""
    say(
        f"Streaming {len(plan.tensors)} tensors of {job.model.repo} at {job.model.commit[:8]}, "
        f"{plan.layout.total_bytes / 1e6:,.1f} MB{changed}."
    )
    return plan, matrices


def _manifest(job: SerializerJob, plan: Plan, pump: Pump, small: Mapping[str, bytes]) -> Manifest:
    source = job.adapter or job.model
    base = job.model if job.adapter else None
    return Manifest(
        key=job.key,
        repo=source.repo,
        commit=source.commit,
        base_repo=base.repo if base else None,
        base_commit=base.commit if base else None,
        dtype=job.dtype,
        files=tuple(
            StoredFile(
                path=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest()
            )
            for name, content in sorted(small.items())
        ),
        tensors_bytes=plan.layout.total_bytes,
        tensors=tuple(
            TensorRecord(
                name=tensor.name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                offset=plan.layout.tensors[index].data_offset,
                size_bytes=tensor.size_bytes,
                sha256=tuple(facts.sha256 for facts in pump.facts(index)),
                crc32=tuple(facts.crc32 for facts in pump.facts(index)),
            )
            for index, tensor in enumerate(plan.tensors)
        ),
        tool_versions={tool: metadata.version(tool) for tool in TOOLS},
        created_at=datetime.now(UTC),
    )
