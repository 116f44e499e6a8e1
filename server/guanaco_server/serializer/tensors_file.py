"""From safetensors files to one tensorizer file, a tensor at a time: memory holds the largest tensor, never the model."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from tensorizer import TensorSerializer
from tensorizer.serialization import TensorType

from guanaco_server.serializer.failures import JobFailed
from guanaco_server.serializer.progress import Counter, say
from guanaco_server.formats.safetensors_header import TensorInfo, read_header

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


def write_tensors(weights: Sequence[Path], target: Path) -> int:
    """How many tensors were written. Each safetensors file is removed once it has been read."""
    headers = {path: _header(path) for path in weights}
    every = [info for infos, _ in headers.values() for info in infos]
    _require_unique_names(every)
    total = sum(info.end - info.start for info in every)
    say(f"Writing {len(every)} tensors, {total / 1e6:,.1f} MB, with tensorizer.")
    counter, done = Counter("Writing", total), 0
    serializer = TensorSerializer(str(target))
    for path, (infos, data_offset) in headers.items():
        for info, tensor in _tensors(path, infos, data_offset):
            serializer.write_tensor(0, info.name, TensorType.PARAM, tensor)
            done += info.end - info.start
            counter.at(done)
        path.unlink()
    serializer.close()
    return len(every)


def _header(path: Path) -> tuple[tuple[TensorInfo, ...], int]:
    try:
        return read_header(path)
    except ValueError as error:
        raise _corrupt(path, str(error)) from error


def _require_unique_names(infos: Iterable[TensorInfo]) -> None:
    repeated = [name for name, count in Tally(info.name for info in infos).items() if count > 1]
    if repeated:
        raise JobFailed("corrupt_weights", f"The tensor {repeated[0]} is in more than one file.")


def _tensors(
    path: Path, infos: Iterable[TensorInfo], data_offset: int
) -> Iterator[tuple[TensorInfo, torch.Tensor]]:
    with path.open("rb") as file:
        for info in infos:
            dtype = DTYPES.get(info.dtype)
            if dtype is None:
                raise _corrupt(path, f"{info.name} has the unknown type {info.dtype}")
            data = bytearray(info.end - info.start)
            file.seek(data_offset + info.start)
            if file.readinto(data) != len(data):
                raise _corrupt(path, f"it ends inside {info.name}")
            flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            yield info, flat.reshape(info.shape)


def _corrupt(path: Path, why: str) -> JobFailed:
    return JobFailed(
        "corrupt_weights", f"{path.name} is not a valid safetensors file: {why.rstrip('.')}."
    )
