"""From a submission to the process that serves it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from guanaco_server.deployments.clusters.cluster import DeploymentSpec
from guanaco_server.formats.manifest import TENSORS_NAME

NAME_CHARS = 48


@dataclass(frozen=True)
class EngineOptions:
    """How this platform starts model servers."""

    command: tuple[str, ...]
    args: tuple[str, ...]


def deployment_name(submission_id: str) -> str:
    """A DNS label of at most 63 characters, different for different submissions."""
    slug = re.sub(r"[^a-z0-9]+", "-", submission_id.lower())[:NAME_CHARS].strip("-")
    return f"m-{slug}-{hashlib.sha256(submission_id.encode()).hexdigest()[:8]}"


def model_server_spec(
    submission_id: str, run: int, artifact_uri: str, max_model_tokens: int, engine: EngineOptions
) -> DeploymentSpec:
    """Another run has another spec, so that a redeploy gets a fresh server."""
    return DeploymentSpec(
        name=deployment_name(submission_id),
        command=(
            *engine.command,
            *("--model-dir", str(Path(unquote(urlsplit(artifact_uri).path)))),
            *("--tensors", f"{artifact_uri}/{TENSORS_NAME}"),
            *("--name", submission_id),
            *("--host", "127.0.0.1"),
            *("--port", "{port}"),
            *("--max-model-len", str(max_model_tokens)),
            *engine.args,
        ),
        environment={"GUANACO_RUN": str(run)},
    )
