"""What the local cluster writes down about a model server, so that a platform that restarts finds it again."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from guanaco_server.clusters.cluster import DeploymentSpec, Resources
from guanaco_server.clusters.local_processes import Leader

RECORD_NAME = "replica.json"
INSTANCE_NAME = ".instance"


@dataclass(frozen=True)
class ReplicaRecord:
    """The spec is that of one replica, and has no secrets here; they are given anew with each start."""

    spec: DeploymentSpec
    leader: Leader
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write(self, folder: Path) -> None:
        """In one step: a reader sees the old record or the new one."""
        given = asdict(self)
        del given["spec"]["secrets"]
        _write_in_one_step(folder / RECORD_NAME, json.dumps(given, indent=2))

    @staticmethod
    def read(folder: Path) -> ReplicaRecord | None:
        """None where there is no record, or one that this version cannot read."""
        try:
            given = json.loads((folder / RECORD_NAME).read_text())
            spec = given["spec"]
            return ReplicaRecord(
                DeploymentSpec(
                    spec["name"],
                    tuple(spec["command"]),
                    dict(spec["environment"]),
                    resources=Resources(**spec["resources"]),
                    replicas=int(spec["replicas"]),
                    artifact_bytes=int(spec["artifact_bytes"]),
                    submission_id=str(spec["submission_id"]),
                ),
                Leader(int(given["leader"]["pid"]), float(given["leader"]["create_time"])),
                int(given["port"]),
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def read_instance(folder: Path) -> str:
    """The folder's own id, made at the first call: the processes of one data folder are not another's."""
    path = folder / INSTANCE_NAME
    if not path.exists():
        _write_in_one_step(path, secrets.token_hex(8))
    return path.read_text()


def _write_in_one_step(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.touch(mode=0o600)
    unfinished.write_text(text)
    unfinished.rename(path)
