"""The swap of a big model beside reading the same bytes alone with our verified reader, in turns, on one machine.

From a folder twice: with the pages of its file in memory, and dropped from it before each swap and each reading.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from benchmarks.swap.figures import show, spread, talk
from guanaco_server.artifacts.stores.local import LocalStore
from guanaco_server.artifacts.stores.s3 import S3Store
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.demo.hub_server import LocalHub
from guanaco_server.demo.tiny_repo import make_tiny_repo
from guanaco_server.deployments.engines.specs import is_remote
from guanaco_server.formats.control import SWAP_PATH
from guanaco_server.formats.manifest import TENSORS_NAME, Manifest
from tests.fixtures.checkpoints import Stored, safetensors
from tests.fixtures.s3 import moto, rclone
from tests.fixtures.serializer_jobs import IMPORTS, job_for, make_artifact, source_of
from tests.fixtures.swapping import TOKEN, Servers, servers

KEYS = ("0a" * 32, "0b" * 32)
HIDDEN, INTERMEDIATE, HEADS, VOCABULARY = 1_536, 4_096, 24, 512
NORMS = ("input", "post_attention")
GIB = 1024**3
MANTISSA, SMALL = 0x80FF, 0x3C00  # of a bfloat16: sign and mantissa, and an exponent of about 2**-7
S3_SERVERS = {"moto": moto, "rclone": rclone}
READER = Path(__file__).with_name("read_alone.py")


@dataclass(frozen=True)
class Pair:
    """One swap with its parts as the server tells them, and reading alone right after it."""

    swap_s: float
    parts: Mapping[str, float]
    read_s: float
    read_cpu_s: float


async def bench_times(
    folder: Path, python: Path, gib: float, rounds: int, s3: str
) -> dict[str, Any]:
    with LocalHub(folder / "hub") as hub, ExitStack() as stack:
        repos = [f"acme/big{number}" for number in range(len(KEYS))]
        for number, repo in enumerate(repos):
            size = make_big_repo(folder / "hub" / repo, gib, seed=number)
        talk(f"a model of {size / GIB:.2f} GiB")
        server = stack.enter_context(S3_SERVERS[s3]())
        stores: dict[str, ArtifactStore] = {
            "folder": LocalStore(folder / "artifacts"),
            f"S3 ({s3})": S3Store(server.bucket()),
        }
        found: dict[str, Any] = {"bytes": size}
        for name, store in stores.items():
            for key, repo in zip(KEYS, repos, strict=True):
                await make_artifact(store, job_for(hub, key=key, model=source_of(hub, repo)))
            talk(f"swaps from {name}")
            place = folder / f"machine-{len(found)}"
            async with servers(place, python, store) as each:
                bench = Bench(each, store, place, await each.start("m-big", KEYS[0]))
                found[name] = told(name, await bench.in_turns(rounds))
                if not is_remote(store.uri(KEYS[0])):
                    dropped = f"{name}, pages dropped"
                    talk(f"swaps from {dropped}")
                    found[dropped] = told(dropped, await bench.in_turns(rounds, is_cold=True))
    return found


@dataclass
class Bench:
    """A server of one of the two models, which is swapped to and fro."""

    servers: Servers
    store: ArtifactStore
    folder: Path
    endpoint: str

    async def in_turns(self, rounds: int, *, is_cold: bool = False) -> list[Pair]:
        """Swap there and back; each time read what was swapped, alone. The first round warms what caches there are, and does not count."""
        pairs = []
        for number in range(1, rounds + 2):
            pairs.append(await self._pair(KEYS[number % 2], is_cold))
            talk(f"  swap {pairs[-1].swap_s:.2f} s, read {pairs[-1].read_s:.2f} s")
        if len(pairs) % 2:
            await self._swap(KEYS[0])
        return pairs[1:]

    async def _pair(self, key: str, is_cold: bool) -> Pair:
        url, manifest = await self._tensors(key), await self.store.find(key)
        assert manifest is not None
        if is_cold:
            drop_pages(Path(url))
        swap_s, parts = await self._swap(key)
        if is_cold:
            drop_pages(Path(url))
        read_s, read_cpu_s = await asyncio.to_thread(self._read_alone, manifest, url)
        return Pair(swap_s, parts, read_s, read_cpu_s)

    async def _swap(self, key: str) -> tuple[float, dict[str, float]]:
        """Order it as the platform does, and keep what the server says of its parts, which the platform does not read."""
        uri = self.store.uri(key)
        urls = dict(await self.store.access(key)) if is_remote(uri) else {}
        order = {"artifact": uri, "urls": urls, "drain_s": 60.0}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        began = time.perf_counter()
        async with httpx.AsyncClient(timeout=600) as client:
            answer = await client.post(f"{self.endpoint}{SWAP_PATH}", json=order, headers=headers)
        took_s = time.perf_counter() - began
        assert answer.status_code == HTTPStatus.OK, answer.text
        return took_s, answer.json()["parts"]

    async def _tensors(self, key: str) -> str:
        uri = self.store.uri(key)
        urls = await self.store.access(key) if is_remote(uri) else {}
        return urls.get(TENSORS_NAME) or str(Path(urlsplit(uri).path) / TENSORS_NAME)

    def _read_alone(self, manifest: Manifest, url: str) -> tuple[float, float]:
        """Read and verify all tensors in a process of its own; the seconds of that alone, and of processor time."""
        described = self.folder / "manifest.json"
        described.write_text(manifest.model_dump_json())
        said = subprocess.run(
            [self.servers.python, READER, described, url],
            env={**os.environ, **IMPORTS, **self.servers.secrets},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        took_s, cpu_s = said.split()
        return float(took_s), float(cpu_s)


def drop_pages(path: Path) -> None:
    """Have the kernel forget what it keeps of the file in memory; what a process has mapped stays."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def told(name: str, pairs: list[Pair]) -> dict[str, Any]:
    rows = {
        "swap, s": [pair.swap_s for pair in pairs],
        "reading alone, s": [pair.read_s for pair in pairs],
        "ratio": [pair.swap_s / pair.read_s for pair in pairs],
        "reading alone, CPU s": [pair.read_cpu_s for pair in pairs],
    }
    parts = {part: [pair.parts[part] for pair in pairs] for part in pairs[0].parts}
    show(name, rows | {f"swap: {part}": values for part, values in parts.items()})
    return {what: spread(values) for what, values in (rows | parts).items()}


def make_big_repo(folder: Path, gib: float, seed: int) -> int:
    """Write a Llama of about this size with random bfloat16 weights, and return the bytes of its tensors."""
    make_tiny_repo(folder)
    config = json.loads((folder / "config.json").read_text())
    block = 4 * HIDDEN**2 + 3 * HIDDEN * INTERMEDIATE + 2 * HIDDEN
    layers = max(1, round((gib * GIB / 2 - 2 * VOCABULARY * HIDDEN) / block))
    config |= {
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(seed)
    tensors = {name: _noise(rng, shape) for name, shape in _shapes(layers)}
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    return sum(len(tensor.data) for tensor in tensors.values())


def _noise(rng: np.random.Generator, shape: tuple[int, ...]) -> Stored:
    drawn = np.frombuffer(rng.bytes(2 * math.prod(shape)), np.uint16)
    return Stored("BF16", shape, (drawn & MANTISSA | SMALL).tobytes())


def _shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        yield from ((f"{prefix}.{norm}_layernorm.weight", (HIDDEN,)) for norm in NORMS)
        yield from ((f"{prefix}.self_attn.{name}_proj.weight", (HIDDEN, HIDDEN)) for name in "qkvo")
        yield from (
            (f"{prefix}.mlp.{name}_proj.weight", (INTERMEDIATE, HIDDEN)) for name in ("gate", "up")
        )
        yield f"{prefix}.mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)
