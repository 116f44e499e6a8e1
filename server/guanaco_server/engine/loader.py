"""vLLM load format ``guanaco``: a checkpoint's tensors, verified, from the artifact store or this node's cache.

``vllm.general_plugins`` calls ``register`` in each of vLLM's processes; serve.py chooses the format, and says in
``--model-loader-extra-config`` where the artifact is. A tensor is a view of the mapped file, or of the buffer that
it was received in; vLLM's weight loaders copy from it to the device, each rank the slice that is its own.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from guanaco_server.engine.artifacts.errors import DamagedArtifactError
from guanaco_server.engine.artifacts.local_tensors import EVERYTHING, Selection, read_local
from guanaco_server.engine.artifacts.node_cache import read_copy, read_through_cache
from guanaco_server.engine.artifacts.remote_tensors import read_remote
from guanaco_server.engine.artifacts.source import ArtifactSource, ModelFolder, read_manifest
from guanaco_server.engine.vllm_internals import (
    BaseModelLoader,
    LoadConfig,
    ModelConfig,
    enable_amx,
    is_expert,
    is_in_another_stage,
    is_of_another_rank,
    local_expert_ids,
    register_model_loader,
    reload_weights,
    tensor_parallel_rank,
)
from guanaco_server.formats.manifest import TENSORS_NAME, Manifest, TensorRecord

LOAD_FORMAT = "guanaco"
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
}

logger = logging.getLogger("vllm.guanaco")


def extra_config(artifact_uri: str, found: ModelFolder) -> dict[str, Any]:
    """Return the configuration of the loader; it holds no secret."""
    return {"artifact": artifact_uri, "folder": str(found.path), "is_cached": found.is_cached}


class ArtifactLoader(BaseModelLoader):
    """Fills a model from the artifact, or fails; it never looks for weights anywhere else."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        extra = load_config.model_loader_extra_config
        if not isinstance(extra, dict) or not {"artifact", "folder"} <= extra.keys():
            raise ValueError(
                f"--load-format {LOAD_FORMAT} needs artifact and folder in --model-loader-extra-config."
            )
        self._artifact = ArtifactTensors(
            ArtifactSource.from_environment(extra["artifact"]),
            ModelFolder(Path(extra["folder"]), bool(extra.get("is_cached"))),
        )

    def download_model(self, model_config: ModelConfig) -> None:
        """Do nothing: the tensors are streamed."""

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        started = time.perf_counter()
        uri = self._artifact.source.uri
        loaded = model.load_weights(self._artifact.read(_selection(model, model_config)))
        # vLLM's own loader asks the same of unquantized models whose class reports what it loaded.
        if loaded is not None and model_config.quantization is None:
            missing = {name for name, _ in model.named_parameters()} - loaded
            if missing:
                raise DamagedArtifactError(
                    f"{uri} has no weights for {', '.join(sorted(missing))}."
                )
        logger.info("Loaded %s in %.2f s", uri, time.perf_counter() - started)


class SwappingWorker:
    """An extension of vLLM's worker, which can take the weights of another artifact of the same shape."""

    def guanaco_reload(
        self, artifact: str, urls: dict[str, str], folder: str, is_cached: bool
    ) -> dict[str, float]:
        """Return the seconds of each part. Raises an error where the tensors cannot be had; the model is then of no use any more."""
        source = ArtifactSource(artifact, urls)
        tensors = ArtifactTensors(source, ModelFolder(Path(folder), is_cached))
        return reload_weights(self, tensors.read(EVERYTHING))


def _selection(model: nn.Module, model_config: ModelConfig) -> Selection:
    """Leave out the layers of other pipeline stages and, if asked (--enable-ep-weight-filter), the experts of other ranks."""
    experts = local_expert_ids(model_config)
    rank, ranks = tensor_parallel_rank()
    return Selection(
        is_wanted=lambda name: (
            not is_of_another_rank(name, experts) and not is_in_another_stage(name, model)
        ),
        rank=rank,
        ranks=ranks,
        is_ours_alone=lambda name: experts is not None and is_expert(name),
    )


@dataclass(frozen=True)
class ArtifactTensors:
    """The verified tensors of an artifact, wherever it is."""

    source: ArtifactSource
    folder: ModelFolder

    def read(self, selection: Selection) -> Iterator[tuple[str, torch.Tensor]]:
        for record, view in self._views(read_manifest(self.folder.path), selection):
            yield record.name, as_tensor(record, view)

    def _views(
        self, manifest: Manifest, selection: Selection
    ) -> Iterator[tuple[TensorRecord, memoryview]]:
        tensors = self.folder.path / TENSORS_NAME
        if self.source.folder is not None:
            return read_local(tensors, manifest, selection)
        url = self.source.url(TENSORS_NAME)
        if not self.folder.is_cached:
            if selection.ranks > 1:
                logger.info(
                    "Each rank reads whole tensors: without a node cache there is no file to share, and vLLM's weight loaders slice whole tensors."
                )
            return read_remote(url, manifest, selection)
        if tensors.exists():
            return read_copy(tensors, manifest, selection)
        return read_through_cache(url, manifest, self.folder.path, selection)


@functools.cache
def register() -> None:
    """Make the load format known to this process, and its CPU's instructions usable."""
    enable_amx()
    register_model_loader(LOAD_FORMAT)(ArtifactLoader)


def as_tensor(record: TensorRecord, view: memoryview) -> torch.Tensor:
    """Return a tensor over the bytes, which it keeps alive."""
    dtype = DTYPES.get(record.dtype)
    if dtype is None:
        raise DamagedArtifactError(
            f"Tensor {record.name} has dtype {record.dtype}, which torch does not have."
        )
    if len(view) != math.prod(record.shape) * dtype.itemsize:
        raise DamagedArtifactError(f"Tensor {record.name} has not as many bytes as its shape.")
    if not view:
        return torch.empty(record.shape, dtype=dtype, device="cpu")
    return torch.frombuffer(view, dtype=dtype).reshape(record.shape)
