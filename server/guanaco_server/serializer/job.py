"""The serializer job: a Hub repo at one commit becomes an artifact in a staging folder.

    python -m guanaco_server.serializer.job '{"key": …, "repo": …, "commit": …, "weight_files": […],
        "small_files": […], "hub_endpoint": …, "staging_uri": "file://…", "memory_bytes": …}'

    download into staging/.scratch → model.tensors → drop the scratch → manifest.json

The manifest is written last: where it is, the artifact is whole. HF_TOKEN holds the Hub token, if any.
stdout has one JSON object a line (progress.py); exit status 1 after a last line that says why.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import sys
import traceback
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from guanaco_server.engine import lifeline
from guanaco_server.serializer.download import download, prepare
from guanaco_server.serializer.failures import diagnose
from guanaco_server.serializer.progress import say, say_failed

TENSORS_NAME = (
    "model.tensors"  # both as in artifacts/stores/store.py, which this process does not have
)
MANIFEST_NAME = "manifest.json"
SCRATCH_NAME = ".scratch"
TOOLS = ("torch", "tensorizer", "huggingface_hub")


@dataclass(frozen=True)
class Request:
    key: str
    repo: str
    commit: str
    weight_files: tuple[str, ...]
    small_files: tuple[str, ...]
    hub_endpoint: str
    staging_uri: str
    memory_bytes: int | None = None

    @staticmethod
    def parse(text: str) -> Request:
        """From JSON; ValueError for a path that would leave the folder."""
        given: dict[str, Any] = json.loads(text)
        request = Request(
            **{field.name: given[field.name] for field in fields(Request) if field.name in given}
        )
        for path in (*request.weight_files, *request.small_files):
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise ValueError(f"{path} is outside the repo.")
        return request

    @property
    def staging(self) -> Path:
        return Path(unquote(urlsplit(self.staging_uri).path))


def main() -> int:
    lifeline.hold()
    try:
        serialize(Request.parse(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - the job's outermost frame: whatever happened must be told
        traceback.print_exc()
        failure = diagnose(error)
        say_failed(failure.code, failure.message)
        return 1
    return 0


def serialize(request: Request) -> None:
    """Fill the staging folder, which must exist and be empty."""
    scratch = request.staging / SCRATCH_NAME
    prepare(scratch)
    from guanaco_server.serializer.tensors_file import write_tensors

    _limit_memory(request.memory_bytes)
    fetched = download(
        request.repo,
        request.commit,
        (*request.small_files, *request.weight_files),
        endpoint=request.hub_endpoint,
        folder=scratch / "files",
    )
    tensor_count = write_tensors(
        [fetched[path] for path in request.weight_files], request.staging / TENSORS_NAME
    )
    for path in request.small_files:
        fetched[path].rename(request.staging / PurePosixPath(path).name)
    shutil.rmtree(scratch)
    _write_manifest(request, tensor_count)


def _limit_memory(memory_bytes: int | None) -> None:
    """Once everything is imported, so that a limit too small is an error that can be told."""
    if memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, hard))


def _write_manifest(request: Request, tensor_count: int) -> None:
    say("Checksumming.")
    files = [_sealed(path) for path in sorted(request.staging.iterdir())]
    manifest = {
        "key": request.key,
        "repo": request.repo,
        "commit": request.commit,
        "tensor_count": tensor_count,
        "files": files,
        "tool_versions": {tool: metadata.version(tool) for tool in TOOLS},
        "created_at": datetime.now(UTC).isoformat(),
    }
    unfinished = request.staging / f".{MANIFEST_NAME}"
    unfinished.write_text(json.dumps(manifest, indent=2))
    _sync(unfinished)
    unfinished.rename(request.staging / MANIFEST_NAME)
    _sync(request.staging)
    size = sum(entry["size_bytes"] for entry in files)
    say(f"Artifact of {tensor_count} tensors and {size / 1e6:,.1f} MB is complete.")


def _sealed(path: Path) -> dict[str, Any]:
    """The manifest's entry of a file that is safely on disk."""
    _sync(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"path": path.name, "size_bytes": path.stat().st_size, "sha256": digest}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


if __name__ == "__main__":
    sys.exit(main())
