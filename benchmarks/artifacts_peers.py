"""Runs one task of a peer that benchmarks/artifacts.py compares with, in the engine's environment; prints its seconds as JSON.

    python artifacts_peers.py download ENDPOINT REPO COMMIT FOLDER FILE…
    python artifacts_peers.py serialize TARGET FILE…
    python artifacts_peers.py load safetensors|artifact|artifact-crc TARGET FILE…

Imports are not timed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from tensorizer import TensorSerializer
from tensorizer.serialization import TensorType

from guanaco_server.engine.artifacts.local_tensors import read_local
from guanaco_server.engine.artifacts.remote_tensors import read_remote
from guanaco_server.formats.manifest import MANIFEST_NAME, TENSORS_NAME, Manifest

Tensors = Iterator[torch.Tensor]


def download(endpoint: str, repo: str, commit: str, folder: str, *files: str) -> None:
    """Download as huggingface_hub does."""
    from huggingface_hub import hf_hub_download

    for file in files:
        hf_hub_download(
            repo, file, revision=commit, endpoint=endpoint, local_dir=folder, token=False
        )


def serialize(target: str, *files: str) -> None:
    """Write as tensorizer does, one tensor after another, for the model need not fit into memory."""
    serializer = TensorSerializer(target)
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                serializer.write_tensor(0, name, TensorType.PARAM, opened.get_tensor(name))
    serializer.close()


def load(reader: str, *sources: str) -> None:
    """Each tensor, copied into memory that is there already, as vLLM copies into its parameters."""
    destination = torch.zeros(64 * 1024**2, dtype=torch.bfloat16)
    for tensor in READERS[reader](*sources):
        flat = tensor.reshape(-1)
        destination[: flat.numel()].copy_(flat)


def from_safetensors(*files: str) -> Tensors:
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield opened.get_tensor(name)


def from_artifact(folder: str) -> Tensors:
    manifest = Manifest.model_validate_json(Path(folder, MANIFEST_NAME).read_bytes())
    for _, view in read_local(Path(folder, TENSORS_NAME), manifest):
        yield torch.frombuffer(view, dtype=torch.bfloat16)


def from_url(url: str, manifest_path: str) -> Tensors:
    manifest = Manifest.model_validate_json(Path(manifest_path).read_bytes())
    for _, view in read_remote(url, manifest):
        yield torch.frombuffer(view, dtype=torch.bfloat16)


def from_plain_ranges(url: str, manifest_path: str) -> Tensors:
    """The same bytes by as many connections as ours, kept in memory and not verified."""
    import http.client
    from concurrent.futures import ThreadPoolExecutor
    from urllib.parse import urlsplit

    size = Manifest.model_validate_json(Path(manifest_path).read_bytes()).tensors_bytes
    step, parts = 32 * 1024**2, urlsplit(url)

    def fetch(start: int) -> torch.Tensor:
        end = min(start + step, size)
        connection = http.client.HTTPConnection(parts.netloc)
        headers = {"Range": f"bytes={start}-{end - 1}"}
        connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
        answer, data, at = connection.getresponse(), bytearray(end - start), 0
        while at < len(data):
            at += answer.readinto(memoryview(data)[at:])
        connection.close()
        return torch.frombuffer(data[: len(data) // 2 * 2], dtype=torch.bfloat16)

    with ThreadPoolExecutor(4) as pool:
        yield from pool.map(fetch, range(0, size, step))


READERS: dict[str, Callable[..., Tensors]] = {
    "safetensors": from_safetensors,
    "artifact": from_artifact,
    "url": from_url,
    "plain-ranges": from_plain_ranges,
}

TASKS: dict[str, Callable[..., None]] = {"download": download, "serialize": serialize, "load": load}

if __name__ == "__main__":
    task = TASKS[sys.argv[1]]
    started = time.perf_counter()
    task(*sys.argv[2:])
    print(json.dumps({"seconds": time.perf_counter() - started}))
