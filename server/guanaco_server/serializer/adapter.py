"""A LoRA adapter's matrices, read by range when the tensor that they change streams by."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from guanaco_server.formats.safetensors_header import TensorInfo
from guanaco_server.serializer.failures import JobFailed
from guanaco_server.serializer.floats import has_nan, to_float32
from guanaco_server.serializer.lora import LoraMatrices, LoraPair
from guanaco_server.serializer.plan import WeightFile
from guanaco_server.serializer.repo_files import RepoFiles
from guanaco_server.serializer.ticket import Adapter

KEPT = 8  # more than there are workers; a pair takes a few megabytes


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
    """By the name of the model's tensor."""
    infos = {info.name: info for info in file.infos}
    return {
        merge.tensor: LoraPair(infos[merge.a], infos[merge.b], file.data_offset, merge.scale)
        for merge in adapter.merges
    }
