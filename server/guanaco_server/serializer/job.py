"""The serializer job: a model of the Hub becomes an artifact, in one streaming pass.

    GUANACO_TICKET=URL python -m guanaco_server.serializer.job

    ticket → headers → plan → small files → tensors, streamed (pump.py) → manifest

The manifest is written last: where it is, the artifact is whole. HF_TOKEN holds the Hub token, if any.
stdout has one JSON object a line (progress.py); exit status 1 after a last line that says why.
"""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # each of its threads takes memory; ours are enough

import urllib3

from guanaco_server.engine import lifeline
from guanaco_server.formats.manifest import MANIFEST_NAME, Manifest, StoredFile, TensorRecord
from guanaco_server.serializer.adapter import AdapterMatrices, lora_pairs
from guanaco_server.serializer.download import download, prepare
from guanaco_server.serializer.failures import JobFailed, diagnose
from guanaco_server.serializer.folder_target import FolderTarget
from guanaco_server.serializer.headers import read_header
from guanaco_server.serializer.hub_files import HubFiles, RangesRefused
from guanaco_server.serializer.journal import Journal
from guanaco_server.serializer.local_files import LocalFiles
from guanaco_server.serializer.lora import LoraPair
from guanaco_server.serializer.plan import Plan, chosen_cast, make_plan
from guanaco_server.serializer.progress import say, say_failed
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
from guanaco_server.serializer.ticket import TICKET_VARIABLE, Source, Ticket
from guanaco_server.serializer.upload_target import UploadTarget

TOOLS = ("guanaco", "numpy", "huggingface_hub")
BASE_BYTES = 256 * 1024**2  # what the process takes beside its parts
WORKERS = 6
PARTS_A_WORKER = 3  # the one it fills, one shared with a neighbour, one whose header waits


def main() -> int:
    lifeline.hold()
    try:
        ticket = read_ticket(os.environ[TICKET_VARIABLE])
        with tempfile.TemporaryDirectory() as scratch:
            serialize(ticket, Path(scratch))
    except Exception as error:  # noqa: BLE001 - the job's outermost frame: whatever happened must be told
        traceback.print_exc()
        failure = diagnose(error)
        say_failed(failure.code, failure.message)
        return 1
    return 0


def read_ticket(url: str) -> Ticket:
    """From a file or an HTTP URL, which is not shown: it is a secret."""
    if urlsplit(url).scheme == "file":
        return Ticket.model_validate_json(Path(unquote(urlsplit(url).path)).read_bytes())
    answer = urllib3.request("GET", url)
    if answer.status != 200:
        raise JobFailed(
            "store_unreachable", f"The ticket could not be read: status {answer.status}."
        )
    return Ticket.model_validate_json(answer.data)


def serialize(ticket: Ticket, scratch: Path) -> None:
    """Reads by range, or by way of the disk from a Hub that sends whole files only."""
    prepare(scratch)
    _limit_memory(ticket.memory_bytes)
    try:
        _serialize(ticket, lambda source: _ranged(ticket, source), scratch)
    except RangesRefused:
        say("This Hub sends whole files only: they go to the disk first, and on from there.")
        _serialize(ticket, lambda source: _downloaded(ticket, source, scratch), scratch)


def _serialize(ticket: Ticket, open_repo: Callable[[Source], RepoFiles], scratch: Path) -> None:
    model = open_repo(ticket.model)
    adapter = open_repo(ticket.adapter) if ticket.adapter else None
    target = _target(ticket)
    small = fetch(model, ticket.model.small_files)
    if ticket.adapter and adapter:
        small |= fetch(adapter, ticket.adapter.small_files)
    small = prepared(small, scratch / "small")
    plan, matrices = _plan(ticket, model, adapter, small)
    journal = Journal(plan.digest(), target.identity, target.read_journal(), target.save_journal)
    sink = target.open_tensors(plan.layout.total_bytes, journal)
    pump = Pump(plan, model, matrices, sink, journal, _workers(ticket))
    pump.run()
    for name, content in small.items():
        target.put_file(name, content)
    manifest = _manifest(ticket, plan, pump, small)
    target.put_file(MANIFEST_NAME, manifest.model_dump_json(indent=1).encode())
    say(
        f"Artifact of {manifest.tensor_count} tensors and {manifest.size_bytes / 1e6:,.1f} MB is complete."
    )


def _target(ticket: Ticket) -> Target:
    folder = ticket.upload.folder
    return UploadTarget(ticket.upload) if folder is None else FolderTarget(Path(folder))


def _ranged(ticket: Ticket, source: Source) -> RepoFiles:
    return HubFiles(ticket.hub_endpoint, source.repo, source.commit)


def _downloaded(ticket: Ticket, source: Source, scratch: Path) -> RepoFiles:
    paths = (*source.weight_files, *source.small_files)
    folder = scratch / source.commit
    endpoint = ticket.hub_endpoint
    return LocalFiles(download(source.repo, source.commit, paths, endpoint=endpoint, folder=folder))


def _plan(
    ticket: Ticket, model: RepoFiles, adapter: RepoFiles | None, small: dict[str, bytes]
) -> tuple[Plan, AdapterMatrices | None]:
    """The plan, and config.json made true to it."""
    weights = [read_header(model, path) for path in ticket.model.weight_files]
    quantized = is_quantized(parse_config(small[CONFIG_NAME]))
    cast_to = chosen_cast(ticket.dtype, weights, quantized)
    small[CONFIG_NAME] = with_dtype(small[CONFIG_NAME], cast_to)
    loras: dict[str, LoraPair] = {}
    matrices = None
    if ticket.adapter and adapter:
        header = read_header(adapter, ticket.adapter.weight_files[0])
        matrices = AdapterMatrices(adapter, header.path)
        loras = lora_pairs(ticket.adapter, header)
    plan = make_plan(weights, cast_to, loras)
    changed = f", cast to {cast_to}" if cast_to else ""
    changed += f", {len(loras)} of them merged with the adapter's" if loras else ""
    say(
        f"Streaming {len(plan.tensors)} tensors of {ticket.model.repo} at {ticket.model.commit[:8]}, "
        f"{plan.layout.total_bytes / 1e6:,.1f} MB{changed}."
    )
    return plan, matrices


def _workers(ticket: Ticket) -> int:
    """As many as the memory has parts for."""
    part_bytes = ticket.upload.part_bytes or 1
    return max(1, min(WORKERS, (ticket.memory_bytes - BASE_BYTES) // (PARTS_A_WORKER * part_bytes)))


def _manifest(ticket: Ticket, plan: Plan, pump: Pump, small: Mapping[str, bytes]) -> Manifest:
    source = ticket.adapter or ticket.model
    base = ticket.model if ticket.adapter else None
    return Manifest(
        key=ticket.key,
        repo=source.repo,
        commit=source.commit,
        base_repo=base.repo if base else None,
        base_commit=base.commit if base else None,
        dtype=ticket.dtype,
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
                sha256=pump.digests(index),
            )
            for index, tensor in enumerate(plan.tensors)
        ),
        tool_versions={tool: metadata.version(tool) for tool in TOOLS},
        created_at=datetime.now(UTC),
    )


def _limit_memory(memory_bytes: int) -> None:
    """Once everything is imported, so that a limit too small is an error that can be told."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, hard))


if __name__ == "__main__":
    sys.exit(main())
