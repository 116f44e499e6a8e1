"""The LoRA adapters that a model server holds beside its model: taken, named and forgotten at run time.

    order ──▶ the adapter's artifact: manifest, small files and tensors, each by its hash
          ──▶ a private folder, as PEFT writes one ──▶ vLLM, under the name of the artifact's key

A request names an adapter by that key, so an answer comes from these very bytes, or there is none. vLLM keeps the folder's
path and may read it again, so what was verified is what lies in a folder that only this server has. It stays for a while
after the adapter is forgotten: a reply that is under way, or waits, may still need it, and vLLM ends if it is gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from guanaco_server.engine.artifacts.errors import (
    AdapterUnusable,
    ArtifactError,
    DamagedArtifactError,
)
from guanaco_server.engine.artifacts.source import ArtifactSource, ModelFolder, read_manifest
from guanaco_server.formats.manifest import AdapterPart, Manifest

LORA_KEY = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")

KEPT_S = 900.0  # longer than any reply takes
LORA_MODULES = (
    frozenset(  # to which adapters are added; around others vLLM would reserve memory for nothing
        {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    )
)

logger = logging.getLogger("vllm.guanaco")


class AdapterEngine(Protocol):
    """The engine, as far as adapters need it."""

    async def load(self, name: str, folder: Path) -> None:
        """AdapterUnusable where it cannot be used."""
        ...

    async def unload(self, name: str) -> None: ...


class HeldAdapters:
    """``base_key`` is the artifact that the server holds; ``open_folder`` provides an artifact's small files, verified."""

    def __init__(
        self,
        base_key: str,
        max_rank: int,
        open_folder: Callable[[ArtifactSource], AbstractContextManager[ModelFolder]],
    ) -> None:
        self._base_key = base_key
        self._max_rank = max_rank
        self._open_folder = open_folder
        self._folders: dict[str, Path] = {}
        self._lock = asyncio.Lock()

    @property
    def keys(self) -> list[str]:
        return sorted(self._folders)

    async def load(self, source: ArtifactSource, engine: AdapterEngine) -> None:
        """Hold this adapter too. Doing so twice changes nothing."""
        async with self._lock:
            if source.key in self._folders:
                return
            started = time.perf_counter()
            folder = Path(tempfile.mkdtemp(prefix="guanaco-adapter-"))
            try:
                await asyncio.to_thread(self._copy_verified, source, folder)
                await engine.load(source.key, folder)
            except ArtifactError as error:
                shutil.rmtree(folder, ignore_errors=True)
                raise AdapterUnusable(str(error)) from None
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            self._folders[source.key] = folder
            logger.info("Took the adapter %s in %.3f s", source.key, time.perf_counter() - started)

    async def unload(self, key: str, engine: AdapterEngine) -> None:
        """Forget an adapter; nothing happens to one that is not here."""
        async with self._lock:
            await self._forget(key, engine)

    async def move_to(self, base_key: str, engine: AdapterEngine) -> None:
        """Forget all adapters, and take those of another base from now on."""
        async with self._lock:
            for key in self.keys:
                await self._forget(key, engine)
            self._base_key = base_key

    async def _forget(self, key: str, engine: AdapterEngine) -> None:
        if key in self._folders:
            await engine.unload(key)
            asyncio.get_running_loop().call_later(
                KEPT_S, shutil.rmtree, self._folders.pop(key), True
            )
            logger.info("Forgot the adapter %s", key)

    def _copy_verified(self, source: ArtifactSource, folder: Path) -> None:
        from safetensors.torch import save_file

        from guanaco_server.engine.artifacts.local_tensors import EVERYTHING
        from guanaco_server.engine.loader import ArtifactTensors

        with self._open_folder(source) as found:
            manifest = read_manifest(found.path)
            part = self._checked(source, manifest)
            tensors = ArtifactTensors(source, found).read(EVERYTHING)
            copied = {_plain(name): tensor.clone() for name, tensor in tensors}
        config = json.dumps(peft_config(manifest, part))
        (folder / "adapter_config.json").write_text(config)
        save_file(copied, folder / "adapter_model.safetensors")

    def _checked(self, source: ArtifactSource, manifest: Manifest) -> AdapterPart:
        part = manifest.adapter
        if manifest.key != source.key:
            raise DamagedArtifactError(f"{source.uri} has the manifest of another artifact.")
        if part is None:
            raise AdapterUnusable(f"{source.uri} is no adapter.")
        if part.base_key != self._base_key:
            raise AdapterUnusable(f"{source.uri} is an adapter on another base than what is here.")
        ranks = ranks_of(manifest)
        for name in ranks:
            if name.rpartition(".")[2] not in LORA_MODULES:
                raise AdapterUnusable(
                    f"{source.uri} changes {name[:120]!r}, to which nothing is added."
                )
        rank = max(ranks.values(), default=0)
        if rank > self._max_rank:
            raise AdapterUnusable(
                f"{source.uri} has the rank {rank}, and this server takes {self._max_rank}."
            )
        return part


def ranks_of(manifest: Manifest) -> dict[str, int]:
    """Return the rank by module. DamagedArtifactError for a tensor that is not of a LoRA."""
    ranks = {}
    for record in manifest.tensors:
        found = LORA_KEY.fullmatch(record.name)
        if found is None or len(record.shape) != 2:
            raise DamagedArtifactError(f"The tensor {record.name[:120]!r} is not of a LoRA.")
        if found[2] == "A":
            ranks[found[1]] = record.shape[0]
    return ranks


def peft_config(manifest: Manifest, part: AdapterPart) -> dict[str, Any]:
    """Return an adapter_config.json that gives each module the rank and the scale with which it would be merged."""
    ranks = ranks_of(manifest)
    if ranks.keys() != part.scales.keys():
        raise DamagedArtifactError("The adapter's manifest has not a scale for each module.")
    alphas = {module: part.scales[module] * rank for module, rank in ranks.items()}
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "r": max(ranks.values()),
        "lora_alpha": max(alphas.values()),
        "bias": "none",
        "target_modules": sorted({module.rpartition(".")[2] for module in ranks}),
    }
    if len(set(ranks.values())) > 1 or len(set(alphas.values())) > 1:
        config["rank_pattern"] = {re.escape(module): rank for module, rank in ranks.items()}
        config["alpha_pattern"] = {re.escape(module): alpha for module, alpha in alphas.items()}
    return config


def _plain(name: str) -> str:
    """Return a tensor's name without PEFT's name of the adapter, which vLLM does not know."""
    return re.sub(r"\.default\.weight$", ".weight", name)
