"""The serializer's single pass and the loader, beside what they replace: the figures of docs/benchmarks.md.

    make bench-artifacts ARGS='--rounds=3 --gib=2'

Everything is on this machine: a Hub (a file server), an S3 server (rclone, over a folder), random bfloat16
weights in four shards. Peers and ours take turns in each round. Prints tables, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import numpy as np
from botocore.config import Config

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from guanaco_server.artifacts.stores.s3 import S3Store  # noqa: E402
from guanaco_server.artifacts.stores.s3_client import S3Config  # noqa: E402
from guanaco_server.demo.hub_server import LocalHub, commit_of  # noqa: E402
from guanaco_server.formats.manifest import MANIFEST_NAME, TENSORS_NAME  # noqa: E402
from guanaco_server.serializer.task import (  # noqa: E402
    TICKET_VARIABLE,
    SerializerJob,
    Source,
)
from tests.fixtures.s3 import S3Server, rclone  # noqa: E402

ENGINE_PYTHON = ROOT / ".venv-engine" / "bin" / "python"
PEERS = Path(__file__).with_name("artifacts_peers.py")
SHARDS = 4
REPO = "bench/model"
GIB = 1024**3
MIB = 1024**2
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "server")}


@dataclass(frozen=True)
class Model:
    hub: LocalHub
    folder: Path

    @property
    def weights(self) -> list[Path]:
        return sorted(self.folder.glob("*.safetensors"))

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--only", choices=["pass", "memory", "loading"])
    options = parser.parse_args()
    figures: dict[str, Any] = {"rounds": options.rounds, "gib": options.gib}
    with tempfile.TemporaryDirectory() as scratch, rclone() as server:
        folder = Path(scratch)
        if options.only in (None, "pass"):
            figures |= bench_pass(folder, server, options.gib, options.rounds)
        if options.only in (None, "memory"):
            figures |= bench_memory(folder, server)
        if options.only in (None, "loading"):
            figures |= bench_loading(folder, server, options.gib, options.rounds)
    print(json.dumps(figures))


def bench_pass(folder: Path, server: S3Server, gib: float, rounds: int) -> dict[str, Any]:
    with made_model(folder, gib) as model:
        tasks: dict[str, Callable[[], float]] = {
            "plain download": lambda: download(model, folder),
            "tensorizer's writer": lambda: serialize(model, folder),
            "plain upload": lambda: upload(model, server),
            "single pass": lambda: single_pass(model, server)[0],
        }
        seconds = in_turns(tasks, rounds)
        size = model.size_bytes
    steps = [
        sum(three)
        for three in zip(
            seconds["plain download"],
            seconds["tensorizer's writer"],
            seconds["plain upload"],
            strict=True,
        )
    ]
    slower = [
        max(pair) for pair in zip(seconds["plain download"], seconds["plain upload"], strict=True)
    ]
    seconds = {"download, serialize, upload": steps, **seconds}
    show("The pass", seconds, size)
    return {
        "pass_to_three_steps": ratio(seconds["single pass"], steps),
        "pass_to_slower_of_download_and_upload": ratio(seconds["single pass"], slower),
        "pass_s": rounded(seconds),
    }


def bench_memory(folder: Path, server: S3Server) -> dict[str, Any]:
    peaks = {}
    for gib in (1, 2, 4):
        with made_model(folder, gib) as model:
            peaks[f"{gib} GiB"] = round(single_pass(model, server)[1] / MIB)
    talk("\nPeak memory of the pass, resident")
    for size, peak in peaks.items():
        talk(f"  {size:<28} {peak:8,} MiB")
    return {"pass_peak_mib": peaks}


def bench_loading(folder: Path, server: S3Server, gib: float, rounds: int) -> dict[str, Any]:
    with made_model(folder, gib) as model:
        artifact = local_artifact(model, folder / "artifact")
        url = uploaded(artifact, server)
        size = model.size_bytes
        shards = [str(path) for path in model.weights]
        manifest = str(artifact / MANIFEST_NAME)
        cold: dict[str, Callable[[], float]] = {
            "safetensors, cold": lambda: load("safetensors", *shards, cold=model.weights),
            "artifact, cold": lambda: load(
                "artifact", str(artifact), cold=[artifact / TENSORS_NAME]
            ),
            "safetensors, cached": lambda: load("safetensors", *shards),
            "artifact, cached": lambda: load("artifact", str(artifact)),
            "plain ranges, S3": lambda: load("plain-ranges", url, manifest),
            "artifact, S3": lambda: load("url", url, manifest),
        }
        seconds = in_turns(cold, rounds)
    show(
        "Loading, into memory that is there already; the artifact's hashes verified", seconds, size
    )
    return {
        "load_cold_to_safetensors": ratio(seconds["safetensors, cold"], seconds["artifact, cold"]),
        "load_cached_to_safetensors": ratio(
            seconds["safetensors, cached"], seconds["artifact, cached"]
        ),
        "load_s3_to_plain_ranges": ratio(seconds["plain ranges, S3"], seconds["artifact, S3"]),
        "load_s": rounded(seconds),
    }


@contextmanager
def made_model(folder: Path, gib: float) -> Iterator[Model]:
    """Random weights in shards, behind a Hub."""
    root = folder / "hub"
    repo = root / REPO
    talk(f"making a model of {gib:g} GiB")
    write_model(repo, gib)
    hub = LocalHub(root)
    commit_of(repo)  # its hashes, before anything is timed
    with hub:
        yield Model(hub, repo)
    for path in repo.iterdir():
        path.unlink()


def write_model(repo: Path, gib: float) -> None:
    """Matrices of 32 MiB and norms of 8 KiB, as in a model of 4,096 hidden units."""
    repo.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(0).standard_normal(4096 * 4096 + 64, dtype=np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    (repo / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (repo / "tokenizer.json").write_text("{}")
    weight_map: dict[str, str] = {}
    number = 0
    for shard in range(1, SHARDS + 1):
        file = f"model-{shard:05d}-of-{SHARDS:05d}.safetensors"
        shapes: dict[str, tuple[int, ...]] = {}
        for _ in range(round(gib * 32 / SHARDS)):
            number += 1
            shapes[f"layers.{number}.norm"] = (4096,)
            shapes[f"layers.{number}.weight"] = (4096, 4096)
        write_shard(repo / file, shapes, halves, shard)
        weight_map |= dict.fromkeys(shapes, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (repo / "model.safetensors.index.json").write_text(json.dumps(index))


def write_shard(path: Path, shapes: dict[str, tuple[int, ...]], values: Any, seed: int) -> None:
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for at, shape in enumerate(shapes.values()):
            first = (seed + at) % 64
            file.write(values[first : first + int(np.prod(shape))].tobytes())


def download(model: Model, folder: Path) -> float:
    target = folder / "downloaded"
    seconds = peer(
        "download",
        model.hub.url,
        REPO,
        commit_of(model.folder),
        str(target),
        *(path.name for path in model.weights),
    )
    remove(target)
    return seconds


def serialize(model: Model, folder: Path) -> float:
    target = folder / "peer.tensors"
    seconds = peer("serialize", str(target), *(str(path) for path in model.weights))
    target.unlink()
    return seconds


def upload(model: Model, server: S3Server) -> float:
    """The same bytes, as boto3 uploads files."""
    config = server.bucket()
    client = client_of(config)
    started = time.perf_counter()
    for path in model.weights:
        client.upload_file(str(path), config.bucket, path.name)
    seconds = time.perf_counter() - started
    for path in model.weights:
        client.delete_object(Bucket=config.bucket, Key=path.name)
    return seconds


def client_of(config: S3Config) -> Any:
    """boto3 as it comes."""
    return boto3.client(
        "s3",
        endpoint_url=config.endpoint,
        aws_access_key_id=config.access_key_id,
        aws_secret_access_key=config.secret_access_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"),
    )


def single_pass(model: Model, server: S3Server) -> tuple[float, int]:
    """Seconds and peak resident bytes of the job, its start included."""
    store = S3Store(server.bucket())
    job = job_of(model)
    url = asyncio.run(store.begin(job, model.size_bytes + 64 * MIB))
    result = run_job(url)
    asyncio.run(store.publish(job.key))
    asyncio.run(store.delete(job.key))
    return result


def job_of(model: Model) -> SerializerJob:
    source = Source(
        repo=REPO,
        commit=commit_of(model.folder),
        weight_files=tuple(path.name for path in model.weights),
        small_files=("config.json", "tokenizer.json"),
    )
    return SerializerJob(key="be" * 32, hub_endpoint=model.hub.url, memory_bytes=GIB, model=source)


def run_job(ticket_url: str) -> tuple[float, int]:
    started = time.perf_counter()
    job = subprocess.Popen(
        [ENGINE_PYTHON, "-m", "guanaco_server.serializer.job"],
        env={**ENVIRONMENT, TICKET_VARIABLE: ticket_url},
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(job.pid, 0)
    job.returncode = os.waitstatus_to_exitcode(status)
    if job.returncode != 0:
        raise SystemExit(f"the serializer ended with {job.returncode}")
    return time.perf_counter() - started, usage.ru_maxrss * 1024


def local_artifact(model: Model, folder: Path) -> Path:
    from guanaco_server.artifacts.stores.local import LocalStore

    store = LocalStore(folder)
    job = job_of(model)
    asyncio.run(store.delete(job.key))
    run_job(asyncio.run(store.begin(job, model.size_bytes)))
    asyncio.run(store.publish(job.key))
    return folder / job.key


def uploaded(artifact: Path, server: S3Server) -> str:
    """A presigned URL of the tensors file in a bucket."""
    config = server.bucket()
    client = client_of(config)
    client.upload_file(str(artifact / TENSORS_NAME), config.bucket, TENSORS_NAME)
    place = {"Bucket": config.bucket, "Key": TENSORS_NAME}
    url: str = client.generate_presigned_url("get_object", Params=place)
    return url


def load(reader: str, *sources: str, cold: list[Path] | None = None) -> float:
    for path in cold or []:
        forget(path)
    return peer("load", reader, *sources)


def forget(path: Path) -> None:
    """Drop the file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def peer(*arguments: str) -> float:
    done = subprocess.run(
        [ENGINE_PYTHON, PEERS, *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    seconds: float = json.loads(done.stdout.splitlines()[-1])["seconds"]
    return seconds


def in_turns(tasks: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(1, rounds + 1):
        for name, task in tasks.items():
            seconds[name].append(task())
            talk(f"  round {number}: {name} {seconds[name][-1]:.2f} s")
    return seconds


def show(title: str, seconds: dict[str, list[float]], size_bytes: int) -> None:
    talk(f"\n{title}")
    for name, values in seconds.items():
        middle = statistics.median(values)
        talk(
            f"  {name:<28} {middle:8.2f} s   {size_bytes / 1e9 / middle:6.2f} GB/s   "
            f"({min(values):.2f} to {max(values):.2f} s)"
        )


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the rounds' ratios."""
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 2)


def rounded(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [round(value, 2) for value in values] for name, values in seconds.items()}


def remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def talk(text: str) -> None:
    print(text, file=sys.stderr if text.startswith("  round") else sys.stdout, flush=True)


if __name__ == "__main__":
    main()
