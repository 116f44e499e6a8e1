"""Merging a LoRA adapter into its base: W' = W + scale * B A (Hu et al. 2021, arXiv:2106.09685, section 4.1).

Row blocks of the product are made as the base's rows stream by, in float32; only the adapter's two small
matrices of the tensor at hand are in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guanaco_server.formats.safetensors_header import TensorInfo


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
        """The merged weights of the elements from ``first`` on; a block may begin and end inside a row."""
        columns = self.a.shape[1]
        top, skip = divmod(first, columns)
        bottom = -(-(first + values.size) // columns)
        delta = (self.b[top:bottom] @ self.a).reshape(-1)[skip : skip + values.size]
        return values + np.float32(self.scale) * delta
