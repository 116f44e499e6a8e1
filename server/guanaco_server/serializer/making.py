"""Makes an artifact from a repo: read, plan, stream, write the manifest.

    headers → plan → small files → tensors, streamed (tensors/streaming.py) → manifest

The manifest is written last: where it is, the artifact is complete. Config and tokenizer files are stored as the repo
has them, except for what the weights' cast makes untrue.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from guanaco import __version__
from guanaco_server.formats.manifest import (
    MANIFEST_NAME,
    AdapterPart,
    Manifest,
    StoredFile,
    TensorRecord,
)
from guanaco_server.serializer.repo_files import (
    HubFiles,
    LocalFiles,
    RangesRefused,
    RepoFiles,
    download,
    read_header,
)
from guanaco_server.serializer.reporting import JobFailed, say
from guanaco_server.serializer.targets import ResumeLog, Target
from guanaco_server.serializer.task import Adapter, SerializerJob, Source
from guanaco_server.serializer.templates.chat_template import TEMPLATE_NAME, check_chat_templates
from guanaco_server.serializer.tensors.lora import AdapterMatrices, LoraPair, lora_pairs
from guanaco_server.serializer.tensors.plan import CASTS, StreamPlan, chosen_cast, make_plan
from guanaco_server.serializer.tensors.streaming import StreamingPass
from guanaco_server.serializer.tokenizers.tokenizer_files import (
    CONFIG_NAME as TOKENIZER_CONFIG_NAME,
)
from guanaco_server.serializer.tokenizers.tokenizer_files import TOKENIZER_NAME, convert

LIBRARIES = ("numpy", "huggingface_hub")


CONFIG_NAME = "config.json"
DTYPE_KEYS = ("dtype", "torch_dtype")  # transformers 5 writes the first, earlier ones the second


def make_artifact(
    job: SerializerJob,
    target: Target,
    workers: int,
    scratch: Path,
    before_weights: Callable[[], None] = lambda: None,
) -> Manifest:
    """Reads by range, or by way of the scratch folder from a Hub that sends whole files only.

    ``before_weights`` is called once the small files are through their checks, which are processes of their own.
    """
    checked: dict[str, bytes] = {}

    def check_once(small: dict[str, bytes]) -> dict[str, bytes]:
        if not checked:
            checked.update(prepared(small, scratch / "small"))
            before_weights()
        return dict(checked)

    try:
        return _make(job, target, workers, lambda source: _ranged(job, source), check_once)
    except RangesRefused:
        say("This Hub sends whole files only: they go to the disk first, and on from there.")
    return _make(job, target, workers, lambda source: _downloaded(job, source, scratch), check_once)


def _make(
    job: SerializerJob,
    target: Target,
    workers: int,
    open_repo: Callable[[Source], RepoFiles],
    check: Callable[[dict[str, bytes]], dict[str, bytes]],
) -> Manifest:
    model = open_repo(job.model)
    adapter = open_repo(job.adapter) if job.adapter else None
    small = fetch(model, job.model.small_files)
    if job.adapter and adapter:
        small |= fetch(adapter, job.adapter.small_files)
    small = check(small)
    plan, matrices = _plan(job, model, adapter, small)
    resume_log = ResumeLog(
        plan.digest(), target.identity, target.read_journal(), target.save_journal
    )
    sink = target.open_tensors(plan.layout.total_bytes, resume_log)
    source = adapter if adapter and job.base_key else model
    streaming = StreamingPass(plan, source, matrices, sink, resume_log, workers)
    streaming.run()
    for name, content in small.items():
        target.put_file(name, content)
    manifest = _manifest(job, plan, streaming, small)
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
) -> tuple[StreamPlan, AdapterMatrices | None]:
    """Make the plan, and change config.json to agree with it."""
    if job.adapter and adapter and job.base_key:
        return _plan_of_adapter(job.adapter, adapter), None
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


def _plan_of_adapter(job: Adapter, adapter: RepoFiles) -> StreamPlan:
    """Plan the adapter's own tensors as they are. Each pair is read once before, because a NaN would spoil every reply."""
    header = read_header(adapter, job.weight_files[0])
    matrices = AdapterMatrices(adapter, header.path)
    for pair in lora_pairs(job, header).values():
        matrices.load(pair)
    plan = make_plan([header], None, {})
    say(
        f"Streaming the {len(plan.tensors)} tensors of the adapter {job.repo} at {job.commit[:8]}, "
        f"{plan.layout.total_bytes / 1e6:,.1f} MB; nothing is merged."
    )
    return plan


def _adapter_part(job: SerializerJob) -> AdapterPart | None:
    if job.adapter is None or job.base_key is None:
        return None
    scales = {merge.tensor.removesuffix(".weight"): merge.scale for merge in job.adapter.merges}
    return AdapterPart(base_key=job.base_key, scales=scales)


def _manifest(
    job: SerializerJob, plan: StreamPlan, streaming: StreamingPass, small: Mapping[str, bytes]
) -> Manifest:
    source = job.adapter or job.model
    base = job.model if job.adapter else None
    return Manifest(
        key=job.key,
        repo=source.repo,
        commit=source.commit,
        base_repo=base.repo if base else None,
        base_commit=base.commit if base else None,
        dtype=job.dtype,
        adapter=_adapter_part(job),
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
                sha256=tuple(facts.sha256 for facts in streaming.facts(index)),
                crc32=tuple(facts.crc32 for facts in streaming.facts(index)),
            )
            for index, tensor in enumerate(plan.tensors)
        ),
        tool_versions={
            "guanaco": __version__,
            **{library: metadata.version(library) for library in LIBRARIES},
        },
        created_at=datetime.now(UTC),
    )


def fetch(files: RepoFiles, paths: tuple[str, ...]) -> dict[str, bytes]:
    """Read the files; the result is by name, without folders."""
    return {PurePosixPath(path).name: files.read(path) for path in paths}


def prepared(small: dict[str, bytes], folder: Path) -> dict[str, bytes]:
    """Add a tokenizer.json if there is only a sentencepiece model. Raise JobFailed for a template that must not be served.

    Both are tried out in child processes, on copies in the folder.
    """
    folder.mkdir(exist_ok=True)
    for name, content in small.items():
        (folder / name).write_bytes(content)
    if TOKENIZER_NAME not in small:
        say("Converting the sentencepiece tokenizer.")
        convert(folder)
    if TEMPLATE_NAME in small or b"chat_template" in small.get(TOKENIZER_CONFIG_NAME, b""):
        check_chat_templates(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def is_quantized(config: dict[str, Any]) -> bool:
    return "quantization_config" in config or "compression_config" in config


def parse_config(content: bytes) -> dict[str, Any]:
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise JobFailed("corrupt_weights", f"{CONFIG_NAME} is not a JSON object.")
    return config


def with_dtype(content: bytes, cast_to: str | None) -> bytes:
    """config.json that names the dtype which the weights now have; unchanged where they were not cast."""
    if cast_to is None:
        return content
    name = next(name for name, dtype in CASTS.items() if dtype == cast_to)
    config = parse_config(content)
    keys = [key for key in DTYPE_KEYS if key in config] or [DTYPE_KEYS[-1]]
    return json.dumps(config | dict.fromkeys(keys, name), indent=2).encode()
