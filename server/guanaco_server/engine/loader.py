"""vLLM load format ``guanaco``: a checkpoint's tensors, read by tensorizer from the artifact store.

``vllm.general_plugins`` calls ``register`` in each of vLLM's processes. Use it with
``--load-format guanaco --model-loader-extra-config '{"tensors_uri": "file:///…/model.tensors"}'``;
the model folder then needs only the config and tokenizer files.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import torch
from tensorizer import TensorDeserializer
from tensorizer.serialization import HashMismatchError
from torch import nn
from vllm.config import ModelConfig
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

LOAD_FORMAT = "guanaco"
URI_KEY = "tensors_uri"
GROUP_TENSORS = 16  # held beside the model at once; about two layers, 0.8 GB of a 7B model
READERS = 4

logger = logging.getLogger("vllm.guanaco")


class DamagedArtifactError(RuntimeError):
    """The artifact's bytes are not those that were written."""


class ArtifactLoader(BaseModelLoader):
    """Fills a model from the artifact, or fails; it never looks for weights anywhere else."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        extra = load_config.model_loader_extra_config
        uri = extra.get(URI_KEY) if isinstance(extra, dict) else None
        if not isinstance(uri, str):
            raise ValueError(
                f"--load-format {LOAD_FORMAT} needs {URI_KEY} in --model-loader-extra-config."
            )
        self._uri = uri

    def download_model(self, model_config: ModelConfig) -> None:
        """Nothing to fetch beforehand: the tensors are streamed."""

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        started = time.perf_counter()
        device = next(model.parameters()).device
        loaded = model.load_weights(read_tensors(self._uri, device))
        # vLLM's own loader asks the same of unquantized models whose class reports what it loaded.
        if loaded is not None and model_config.quantization is None:
            missing = {name for name, _ in model.named_parameters()} - loaded
            if missing:
                raise DamagedArtifactError(
                    f"{self._uri} has no weights for {', '.join(sorted(missing))}."
                )
        logger.info("Loaded %s in %.2f s", self._uri, time.perf_counter() - started)


@functools.cache
def register() -> None:
    """Make the load format known to this process."""
    register_model_loader(LOAD_FORMAT)(ArtifactLoader)


def read_tensors(uri: str, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor of the artifact, its hash verified, with at most GROUP_TENSORS in memory."""
    try:
        with _open(uri, device, None) as index:
            names = list(index.keys())
        for group in _groups(names):
            with _open(uri, device, frozenset(group)) as tensors:
                for _, _, name, tensor in tensors.read_tensors():
                    yield name, tensor
    except HashMismatchError as error:
        raise DamagedArtifactError(f"{uri} is damaged: {str(error).rstrip('.')}.") from error
    except (OSError, ValueError) as error:
        raise DamagedArtifactError(f"{uri} cannot be read: {str(error).rstrip('.')}.") from error


def _open(uri: str, device: torch.device, names: frozenset[str] | None) -> TensorDeserializer:
    return TensorDeserializer(
        _source(uri),
        device=device,
        filter_func=names.__contains__ if names is not None else None,
        lazy_load=True,  # or it would read everything at once, and keep it
        verify_hash=True,
        num_readers=READERS,
    )


def _source(uri: str) -> str:
    """tensorizer knows s3 and http URIs, and files by their path."""
    parts = urlsplit(uri)
    return str(Path(unquote(parts.path))) if parts.scheme == "file" else uri


def _groups(names: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(names)
    while group := list(itertools.islice(iterator, GROUP_TENSORS)):
        yield group
