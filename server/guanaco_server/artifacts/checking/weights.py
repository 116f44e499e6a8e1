"""Finds the files with a repo's weights and what is in them, from the safetensors headers, without the weights."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from guanaco.errors import CorruptWeights, MissingFile, PickleWeights
from guanaco_server.artifacts.checking.repo_json import read_json
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.formats.safetensors_header import (
    LENGTH_BYTES,
    TensorInfo,
    parse_header,
    parse_length,
)

FIRST_READ_BYTES = 65_536  # holds the header of most shards, so that one request is enough
SHARDS_AT_ONCE = 4
MAX_HEADER_BYTES = 10_000_000  # some 80,000 tensors; malicious JSON of it parses in 1 s and 300 MB
MAX_HEADERS_BYTES = 32_000_000  # of all shards together; DeepSeek-V3's 91,991 tensors have 13 MB
MAX_SHARDS = 1_000  # the largest models have some 200
INDEX_NAME = "model.safetensors.index.json"
WEIGHTS_NAME = "model.safetensors"
FileTensors = tuple[tuple[str, tuple[TensorInfo, ...]], ...]  # by file, in the order of the files
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf", ".h5", ".msgpack", ".onnx")


@dataclass(frozen=True)
class WeightFiles:
    """Safetensors files of one repo. ``weight_map`` has the file of each tensor, where an index says so."""

    paths: tuple[str, ...]
    weight_map: dict[str, str] = field(default_factory=dict)


async def find_weight_files(hub: Hub, snapshot: RepoSnapshot) -> WeightFiles:
    """Return the index's shards, else model.safetensors, else the only safetensors file."""
    if snapshot.file(INDEX_NAME):
        return await _indexed_files(hub, snapshot)
    if snapshot.file(WEIGHTS_NAME):
        return WeightFiles((WEIGHTS_NAME,))
    paths = [file.path for file in snapshot.files]
    found = [path for path in paths if path.endswith(".safetensors") and "/" not in path]
    if len(found) == 1:
        return WeightFiles((found[0],))
    if found:
        raise MissingFile(
            f"The repo has {len(found)} safetensors files and no {INDEX_NAME}.",
            hint="Save it again with `model.save_pretrained(...)`, which writes the index.",
        )
    if others := [path for path in paths if path.endswith(OTHER_WEIGHTS)]:
        raise PickleWeights(
            f"The repo's weights are not safetensors ({others[0]}), and other formats are never opened.",
            hint="Convert them: load the model with transformers, `save_pretrained(...)`, then push.",
        )
    raise MissingFile(
        "The repo has no weights: model.safetensors is missing.", hint="Push the model's weights."
    )


async def read_tensors(hub: Hub, snapshot: RepoSnapshot, weights: WeightFiles) -> FileTensors:
    """Return the tensors of each file; at most two small requests for each."""
    headers = _Headers(hub, snapshot)
    turns = asyncio.Semaphore(SHARDS_AT_ONCE)

    async def read(path: str) -> tuple[TensorInfo, ...]:
        async with turns:
            return await headers.read(path)

    infos = await asyncio.gather(*(read(path) for path in weights.paths))
    _check_places(dict(zip(weights.paths, infos, strict=True)), weights.weight_map)
    return tuple(zip(weights.paths, infos, strict=True))


async def _indexed_files(hub: Hub, snapshot: RepoSnapshot) -> WeightFiles:
    index = await read_json(hub, snapshot, INDEX_NAME, MAX_HEADER_BYTES)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptWeights(f"{INDEX_NAME} has no weight_map.")
    if not all(isinstance(name, str) for name in weight_map.values()):
        raise CorruptWeights(f"{INDEX_NAME} has a weight_map that does not name files.")
    shards = sorted(set(weight_map.values()))
    if len(shards) > MAX_SHARDS:
        raise CorruptWeights(
            f"{INDEX_NAME} names {len(shards):,} files; {MAX_SHARDS:,} are allowed."
        )
    for shard in shards:
        if not shard.endswith(".safetensors"):
            raise PickleWeights(
                f"{INDEX_NAME} names {shard[:80]!r}, which is not a safetensors file.",
                hint="Save the model again with `save_pretrained(...)`, then push.",
            )
        if snapshot.file(shard) is None:
            raise MissingFile(
                f"{INDEX_NAME} names {shard[:80]!r}, which the repo does not have.",
                hint="Push the missing file.",
            )
    return WeightFiles(tuple(shards), weight_map)


class _Headers:
    """Reads one repo's headers, and no more of them than fits into memory."""

    def __init__(self, hub: Hub, snapshot: RepoSnapshot) -> None:
        self._hub = hub
        self._snapshot = snapshot
        self._left_bytes = MAX_HEADERS_BYTES

    async def read(self, path: str) -> tuple[TensorInfo, ...]:
        file = self._snapshot.file(path)
        size = file.size_bytes if file else 0
        head = await self._hub.read(self._snapshot, path, 0, min(size, FIRST_READ_BYTES))
        try:
            end = LENGTH_BYTES + self._reserve(parse_length(head, size))
            if len(head) < end:
                head += await self._hub.read(self._snapshot, path, len(head), end - len(head))
            return parse_header(head[LENGTH_BYTES:end], size - end)
        except ValueError as error:
            raise CorruptWeights(
                f"{path} is corrupt or truncated: {error}.", hint="Push the file again."
            ) from None

    def _reserve(self, length: int) -> int:
        self._left_bytes -= length
        if length > MAX_HEADER_BYTES or self._left_bytes < 0:
            raise ValueError(
                f"its header has {length:,} bytes; {MAX_HEADER_BYTES:,} are allowed a file, "
                f"and {MAX_HEADERS_BYTES:,} a repo"
            )
        return length


def _check_places(shards: dict[str, tuple[TensorInfo, ...]], weight_map: dict[str, str]) -> None:
    places: dict[str, str] = {}
    for path, infos in shards.items():
        for info in infos:
            if (other := places.setdefault(info.name, path)) != path:
                raise CorruptWeights(
                    f"The tensor {info.name[:80]!r} is in both {other} and {path}.",
                    hint="Save the model again with `save_pretrained(...)`, then push.",
                )
    for tensor, path in weight_map.items():
        if places.get(tensor) != path:
            raise CorruptWeights(
                f"{INDEX_NAME} says that {tensor[:80]!r} is in {path}, and it is not.",
                hint="Push the index and the shards of the same save.",
            )
