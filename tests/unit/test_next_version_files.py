"""Files that platform, serializer and model server exchange, when one of them is of another version."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from guanaco_server.artifacts.stores.s3_uploads import OpenUpload
from guanaco_server.clusters.cluster import DeploymentSpec, Resources
from guanaco_server.clusters.local.processes import GroupLeader
from guanaco_server.clusters.local.servers import RECORD_NAME, ReplicaRecord
from guanaco_server.engine.artifacts.source import parse_manifest
from guanaco_server.serializer.job import read_task
from guanaco_server.serializer.reporting import JobFailed
from guanaco_server.serializer.targets import ResumeLog
from guanaco_server.serializer.tensors.plan import chosen_cast

EXTRA = {"of_the_next_version": {"mood": "calm"}}
SOURCE = {
    "repo": "acme/tiny",
    "commit": "c" * 40,
    "weight_files": ["a.safetensors"],
    "small_files": [],
}


def test_a_manifest_of_the_next_version_is_read() -> None:
    tensor = {
        "name": "w", "dtype": "F4", "shape": [2], "offset": 0, "size_bytes": 8, "sha256": ["0" * 64],
        "crc32": [1], **EXTRA,
    }  # fmt: skip
    content: dict[str, Any] = {
        "key": "a" * 64, "repo": "acme/tiny", "commit": "c" * 40, "dtype": "int4",
        "files": [{"path": "config.json", "size_bytes": 2, "sha256": "0" * 64, **EXTRA}],
        "tensors_bytes": 8, "tensors": [tensor], "tool_versions": {},
        "created_at": datetime(2026, 1, 1, tzinfo=UTC).isoformat(), **EXTRA,
    }  # fmt: skip
    manifest = parse_manifest(json.dumps(content).encode())
    assert (manifest.dtype, manifest.tensors[0].dtype) == ("int4", "F4")


@pytest.mark.parametrize("more", [EXTRA, {}], ids=["newer platform", "older platform"])
def test_a_task_of_another_version_is_read(tmp_path: Path, more: dict[str, Any]) -> None:
    """A platform that is older leaves out what has a default."""
    content = {
        "key": "a" * 64, "hub_endpoint": "http://hub", "memory_bytes": 1, "model": SOURCE | more,
        "upload": {"folder": str(tmp_path), **more}, **more,
    }  # fmt: skip
    path = tmp_path / "task.json"
    path.write_text(json.dumps(content))
    task = read_task(path.as_uri())
    assert (task.model.repo, task.dtype, task.upload.folder) == ("acme/tiny", "auto", str(tmp_path))


def test_serializer_reports_an_unknown_dtype() -> None:
    for is_quantized in (True, False):
        with pytest.raises(JobFailed, match="does not know the dtype int4") as caught:
            chosen_cast("int4", [], is_quantized)
        assert caught.value.code == "serializer_died"


def test_job_resumes_from_the_log_of_the_next_version() -> None:
    earlier = {
        "plan": "p", "upload": "u", "pieces": {"w:0": {"sha256": "0" * 64, "crc32": 1, **EXTRA}},
        "parts": {"1": "etag"}, **EXTRA,
    }  # fmt: skip
    log = ResumeLog("p", "u", json.dumps(earlier).encode(), lambda _data: None)
    assert (list(log.pieces), log.parts) == (["w:0"], {1: "etag"})


def test_an_open_upload_of_the_next_version_is_read() -> None:
    content = json.dumps({"upload_id": "1", "part_bytes": 5, **EXTRA})
    assert OpenUpload.model_validate_json(content).upload_id == "1"


def test_model_server_of_the_next_version_is_found_again(tmp_path: Path) -> None:
    spec = DeploymentSpec("tiny", ("engine",), {}, resources=Resources(gpu_count=1))
    record = ReplicaRecord(spec, GroupLeader(1, 2.0), 8_000)
    record.write(tmp_path)
    content = json.loads((tmp_path / RECORD_NAME).read_text())
    content["spec"]["resources"] |= EXTRA
    content["spec"] |= EXTRA
    (tmp_path / RECORD_NAME).write_text(json.dumps(content | EXTRA))
    assert ReplicaRecord.read(tmp_path) == record
