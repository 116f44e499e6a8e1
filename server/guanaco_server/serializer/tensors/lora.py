"""Merges a LoRA adapter into its base: W' = W + scale * B A (Hu et al. 2021, arXiv:2106.09685, section 4.1).

The product is computed in float32, in blocks of rows, while the base's rows are streamed. Only the adapter's two
matrices for the current tensor are in memory; they are read by range when that tensor begins.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guanaco_server.formats.safetensors_header import TensorInfo
from guanaco_server.serializer.repo_files import RepoFiles, WeightFile
from guanaco_server.serializer.reporting import JobFailed
from guanaco_server.serializer.task import Adapter
from guanaco_server.serializer.tensors.floats import has_nan, to_float32

KEPT = 8  # more than there are workers; a pair takes a few megabytes


@dataclass(frozen=True)
class LoraPair:
    """A [rank, columns] and B [rows, rank] in the adapter's weight file, whose data begin at ``data_offset``."""

    a: TensorInfo
    b: TensorInfo
    data_offset: int
    scale: float


@dataclass(frozen=True)
class LoraMatrices:
    a: NDArray[np.float32]
    b: NDArray[np.float32]
    scale: float

    def add_to(self, values: NDArray[np.float32], first: int) -> NDArray[np.float32]:
        """Return the merged weights of the elements from ``first`` on. A block may begin and end inside a row."""
        columns = self.a.shape[1]
        top, skip = divmod(first, columns)
        bottom = -(-(first + values.size) // columns)
        delta = (self.b[top:bottom] @ self.a).reshape(-1)[skip : skip + values.size]
        return values + np.float32(self.scale) * delta


class AdapterMatrices:
    """Thread-safe."""

    def __init__(self, files: RepoFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, LoraMatrices] = OrderedDict()

    def load(self, pair: LoraPair) -> LoraMatrices:
        with self._lock:
            if pair.a.name not in self._kept:
                a, b = (self._read(info, pair.data_offset) for info in (pair.a, pair.b))
                self._kept[pair.a.name] = LoraMatrices(a, b, pair.scale)
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(pair.a.name)
            return self._kept[pair.a.name]

    def _read(self, info: TensorInfo, data_offset: int) -> NDArray[np.float32]:
        data = self._files.read(self._path, data_offset + info.start, data_offset + info.end)
        if has_nan(memoryview(data), info.dtype):
            raise JobFailed("corrupt_weights", f"The adapter's {info.name[:80]!r} holds NaN.")
        return to_float32(memoryview(data), info.dtype).reshape(info.shape)


def lora_pairs(adapter: Adapter, file: WeightFile) -> dict[str, LoraPair]:
    """Return the pairs by the name of the model's tensor."""
    infos = {info.name: info for info in file.infos}
    return {
        merge.tensor: LoraPair(infos[merge.a], infos[merge.b], file.data_offset, merge.scale)
        for merge in adapter.merges
    }
