"""Real vLLM over an artifact written by hand, through our loader, from a remote store and the node's cache."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from guanaco_server.clusters.local.fork_server import ForkServerProcess
from guanaco_server.clusters.local.servers import LOG_NAME
from guanaco_server.demo.tiny_repo import make_tiny_repo
from guanaco_server.engine.artifacts.source import URLS_VARIABLE
from guanaco_server.formats.manifest import TENSORS_NAME, Manifest
from guanaco_server.formats.safetensors_header import read_header
from tests.fixtures.artifacts import KEY, HttpStore, Tensor, flip_byte, write_artifact
from tests.fixtures.engine_interpreter import EngineInterpreter
from tests.fixtures.forked import forked_server
from tests.fixtures.plain_http import plain_http
from tests.fixtures.ports import free_port
from tests.fixtures.up import eventually

READY_S = 400
URI = f"s3://bucket/{KEY}"
LIMITS = ("--max-model-len", "512", "--kv-cache-memory-bytes", "67108864")

WITH_TENSORIZER = """
import hashlib, zlib, sys, torch
from pathlib import Path
from tensorizer import TensorDeserializer, TensorSerializer
from guanaco_server.engine.loader import DTYPES, as_tensor
from guanaco_server.engine.artifacts.local_tensors import read_local
from guanaco_server.formats.manifest import Manifest, TensorRecord
path = Path(sys.argv[1])
spelled = {dtype: name for name, dtype in DTYPES.items() if dtype.itemsize in (2, 4) and dtype.is_floating_point}
written = {f"t{i}": torch.randn(3 * i, 5).to(dtype) for i, dtype in enumerate(spelled)}
serializer = TensorSerializer(str(path))
serializer.write_state_dict(written)
serializer.close()
records = []
with TensorDeserializer(str(path), lazy_load=True) as file:
    for entry in file._metadata.values():
        tensor = written[str(entry.name)]
        start, size = entry.data_offset, entry.data_length
        data = path.read_bytes()[start : start + size]
        digest = hashlib.sha256(data).hexdigest()
        records.append(TensorRecord(name=str(entry.name), dtype=spelled[tensor.dtype], shape=tuple(tensor.shape),
                                    offset=start, size_bytes=size, sha256=(digest,) if size else (),
                                    crc32=(zlib.crc32(data),) if size else ()))
manifest = Manifest(key="ab" * 32, repo="a/b", commit="c", files=(), tensors_bytes=path.stat().st_size,
                    tensors=tuple(records), tool_versions={}, created_at="2026-01-01T00:00:00Z")
read = {record.name: as_tensor(record, view) for record, view in read_local(path, manifest)}
assert read.keys() == written.keys() and len(read) == 3
for name, tensor in read.items():
    assert tensor.dtype == written[name].dtype and tensor.shape == written[name].shape
    assert torch.equal(tensor.view(torch.uint8), written[name].view(torch.uint8)), name
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HttpStore]:
    """Provide the tiny model's artifact."""
    make_tiny_repo(tmp_path / "repo")
    weights = tmp_path / "repo" / "model.safetensors"
    infos, start = read_header(weights)
    data = weights.read_bytes()[start:]
    tensors = [Tensor(i.name, i.dtype, i.shape, data[i.start : i.end]) for i in infos]
    small = {path.name: path.read_bytes() for path in (tmp_path / "repo").glob("*.json")}
    write_artifact(tmp_path / "store" / KEY, tensors, small)
    with HttpStore(tmp_path / "store") as store:
        yield store


def urls_of(store: HttpStore) -> dict[str, str]:
    paths = Manifest.model_validate_json((store.root / KEY / "manifest.json").read_bytes()).paths
    return {path: f"{store.uri()}/{path}?signature=secret" for path in paths}


@contextmanager
def server(
    python: Path, store: HttpStore, folder: Path, *further: str
) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    """The process, the URL it will answer at, and its log."""
    port = free_port()
    urls = urls_of(store)
    log = folder / "server.log"
    command = f"-m guanaco_server.engine.serve --artifact {URI} --name tiny --port {port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(python), *command.split(), *LIMITS, *further],
            env={**os.environ, "PYTHONPATH": ":".join(sys.path), URLS_VARIABLE: json.dumps(urls)},
            stdout=output,
            stderr=output,
        )
    try:
        yield process, f"http://127.0.0.1:{port}", log
    finally:
        process.terminate()
        process.wait(120)


def says(process: subprocess.Popen[bytes], url: str, log: Path) -> str:
    def look() -> httpx.Response | None:
        assert process.poll() is None, log.read_text()[-3_000:]
        try:
            return plain_http.get(f"{url}/health")
        except httpx.HTTPError:
            return None

    eventually(look, "model server", READY_S)
    asked = {"model": "tiny", "prompt": "Hello", "max_tokens": 8, "temperature": 0}
    answer = plain_http.post(f"{url}/v1/completions", json=asked, timeout=60)
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.timeout(900)
def test_two_vllm_ranks_load_remotely_and_fill_the_cache_once(
    engine_python: Path, store: HttpStore, tmp_path: Path
) -> None:
    """One rank is in tests/e2e/test_submit_to_first_feedback.py, which serves from an S3 server."""
    cache = ("--cache-dir", str(tmp_path / "cache"), "--cache-bytes", "100000000")
    share = ("--tensor-parallel-size", "2")
    with server(engine_python, store, tmp_path, *cache, *share) as running:
        assert len(says(*running).split()) > 2
        assert "secret" not in running[2].read_text()
    copy = tmp_path / "cache" / KEY / TENSORS_NAME
    assert copy.read_bytes() == (store.root / KEY / TENSORS_NAME).read_bytes()
    fetched = [ask for ask in store.asked if ask.path == TENSORS_NAME]
    assert sum(ask.end - ask.start for ask in fetched) == copy.stat().st_size


@pytest.mark.timeout(900)
async def test_vllm_refuses_a_damaged_stream(
    fork_server: ForkServerProcess, store: HttpStore, tmp_path: Path
) -> None:
    flip_byte(store.root / KEY / TENSORS_NAME, 100_000)
    folder, given = tmp_path / "server", f"--artifact {URI} --name tiny --port {free_port()}"
    environment = {URLS_VARIABLE: json.dumps(urls_of(store))}
    async with forked_server(
        fork_server, folder, *given.split(), *LIMITS, environment=environment
    ) as forked:
        await asyncio.to_thread(eventually, lambda: not forked.is_running(), "end", READY_S)
        assert forked.exit_code == 1
        assert "is damaged" in (folder / LOG_NAME).read_text()


def test_what_tensorizer_writes_is_read_bit_for_bit(
    engine_interpreter: EngineInterpreter, tmp_path: Path
) -> None:
    engine_interpreter.run(WITH_TENSORIZER, str(tmp_path / TENSORS_NAME))
