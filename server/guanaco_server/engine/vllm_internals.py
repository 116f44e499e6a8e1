"""The only module that imports vLLM. It was written for vLLM 0.32, and uses names that are not vLLM's public API.

    loading     the base class of loaders, and vLLM's own choice of the experts and layers that a rank loads
    arguments   the parser of ``vllm serve``
    serving     ``run_server``; on the CPU the same with a fork where vLLM would spawn processes
    adapters    vLLM's own list of adapters, without its routes
    swapping    ``reload_weights`` in the worker, the tokenizer beside it, and what must be forgotten after it

tests/integration/test_vllm_internals.py fails when vLLM's version is another, or when one of these names is gone.
Importing this module imports torch, so serve.py does it after it has set the environment.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import os
import resource
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import nn
from vllm.config import ModelConfig, get_current_vllm_config
from vllm.config.load import LoadConfig
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.model_executor.kernels.linear.scaled_mm.pytorch import (
    ChannelWiseTorchFP8ScaledMMLinearKernel,
)
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import parse_expert_id, should_skip_weight
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.models.utils import is_pp_missing_parameter
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from guanaco_server.confinement.profiles import forbid_processes
from guanaco_server.engine import lifeline
from guanaco_server.engine.artifacts.errors import AdapterUnusable, DamagedArtifactError
from guanaco_server.engine.artifacts.source import ArtifactSource, ModelFolder
from guanaco_server.engine.lora_products import AdapterRows, expand, rows_by_adapter, shrink

VLLM_VERSION = "0.32"
THREADS_VARIABLE = "GUANACO_ENGINE_THREADS"
CLASSIFIER = "TransformersForSequenceClassification"
IMPORTED_LATE = (  # by functions of vLLM, while a server starts: 0.4 s of processor time
    "vllm.entrypoints.openai.chat_completion.api_router",
    "vllm.entrypoints.openai.responses.api_router",
    "vllm.entrypoints.generate.structured_decisions.api_router",
    "vllm.entrypoints.serve.profile.api_router",
    "vllm.entrypoints.anthropic.api_router",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.scheduler",
    "guanaco_server.engine.loader",
    "uvicorn.protocols.websockets.auto",
    "uvicorn.protocols.http.auto",
)
RELOAD = "guanaco_reload"  # of loader.py's SwappingWorker
FORGET_TRIES, FORGET_PAUSE_S = 200, 0.02
ROUTES_LOGGER = "vllm.entrypoints.launchers.launcher"  # 36 lines at each start

__all__ = [
    "THREADS_VARIABLE",
    "VLLM_VERSION",
    "BaseModelLoader",
    "EngineAdapters",
    "EngineWeights",
    "InProcessExecutor",
    "LoadConfig",
    "ModelConfig",
    "add_adapters_by_row",
    "enable_amx",
    "has_sleep_levels",
    "import_all",
    "is_expert",
    "is_in_another_stage",
    "is_of_another_rank",
    "local_expert_ids",
    "parse_arguments",
    "register_model_loader",
    "reload_weights",
    "serve",
    "serve_forked",
    "tensor_parallel_rank",
]


class InProcessExecutor(UniProcExecutor):
    """Runs the model inside the engine process, instead of in one more process below it.

    It saves a third of the start-up time and 0.6 GB on the CPU, where vLLM always adds that process. The process is
    forked from the API server, whose torch is held to one thread (see serve.py).
    """

    def _init_executor(self) -> None:
        lifeline.hold()  # threads do not survive a fork
        torch.set_num_threads(int(os.environ[THREADS_VARIABLE]))
        _multiply_fp8_without_onednn()
        add_adapters_by_row()
        super()._init_executor()

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> Any:
        """The last step of the start, and the last that runs a program (lscpu)."""
        result = super().initialize_from_config(kv_cache_configs)
        forbid_processes()
        return result


class EngineWeights:
    """A running engine's weights, for ``control.py``; ``engine`` is vLLM's client of it."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    async def read_tokenizer(self, found: ModelFolder) -> SwappedTokenizer:
        return await asyncio.to_thread(_read_tokenizer, self._engine, found.path)

    async def load(
        self, source: ArtifactSource, found: ModelFolder, tokenizer: SwappedTokenizer | None
    ) -> dict[str, float]:
        order: dict[str, Any] = {"artifact": source.uri, "urls": dict(source.urls)}
        order |= {"folder": str(found.path), "is_cached": found.is_cached}
        (parts,) = await self._engine.collective_rpc(RELOAD, kwargs=order)
        began = time.perf_counter()
        await self._forget()
        if tokenizer is not None:
            tokenizer.put_into(self._engine)
        await self.generate()
        return {**parts, "token_s": time.perf_counter() - began}

    @property
    def can_sleep(self) -> bool:
        return bool(self._engine.model_config.enable_sleep_mode)

    async def sleep(self, level: int) -> None:
        await self._engine.sleep(level=level)

    async def wake(self) -> None:
        if not await self._engine.wake_up():
            raise RuntimeError("It is not wholly awake.")
        await self._forget()

    async def _forget(self) -> None:
        """A request whose client has gone may hold its blocks for a step more; until then vLLM forgets none."""
        for _ in range(FORGET_TRIES):
            if await self._engine.reset_prefix_cache():
                return
            await asyncio.sleep(FORGET_PAUSE_S)
        raise RuntimeError("The prefix cache of the model before cannot be emptied.")

    async def generate(self) -> None:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        params = SamplingParams(temperature=0, max_tokens=1, logprobs=0)
        prompt, name = TokensPrompt(prompt_token_ids=[0]), f"guanaco-swap-{uuid4().hex}"
        scores = []
        async for output in self._engine.generate(prompt, params, name):
            scores += [score for each in output.outputs[0].logprobs for score in each.values()]
        if not scores or not all(math.isfinite(score.logprob) for score in scores):
            raise RuntimeError("It generates no token.")
        await self._forget()


@dataclass(frozen=True)
class SwappedTokenizer:
    """An artifact's tokenizer as vLLM makes it at its start, and the generation config, of which it takes the tokens that end a reply."""

    tokenizer: Any
    generation_config: dict[str, Any]

    def put_into(self, engine: Any) -> None:
        """Let the engine's client encode and decode with it; no reply may be open.

        The engine's own process has the first tokenizer for structured outputs, which the platform never asks for.
        """
        engine.renderer.tokenizer = self.tokenizer
        engine.output_processor.tokenizer = self.tokenizer
        engine.input_processor.generation_config_fields = self.generation_config


def _read_tokenizer(engine: Any, folder: Path) -> SwappedTokenizer:
    from vllm.renderers.hf import HfRenderer
    from vllm.tokenizers.hf import maybe_make_thread_pool
    from vllm.tokenizers.registry import get_tokenizer
    from vllm.v1.engine.detokenizer import uses_fast_detokenizer

    model = copy.copy(engine.model_config)
    model.model = model.tokenizer = str(folder)
    try:
        tokenizer = get_tokenizer(
            str(folder),
            runner_type=model.runner_type,
            tokenizer_mode=model.tokenizer_mode,
            revision=model.tokenizer_revision,
            trust_remote_code=False,
        )
        generation_config = model.try_get_generation_config()
    except Exception as error:
        raise DamagedArtifactError(
            f"vLLM cannot read the artifact's tokenizer: {type(error).__name__}."
        ) from error
    if type(engine.renderer) is not HfRenderer or not uses_fast_detokenizer(tokenizer):
        raise DamagedArtifactError("The artifact's tokenizer is of a kind that is not swapped.")
    tokenizer = maybe_make_thread_pool(tokenizer, model.renderer_num_workers + 1)
    return SwappedTokenizer(tokenizer, generation_config)


class EngineAdapters:
    """A running server's adapters, for ``adapters.py``; ``state`` is that of vLLM's app."""

    def __init__(self, state: Any) -> None:
        self._models = state.openai_serving_models

    async def load(self, name: str, folder: Path) -> None:
        from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest

        order = LoadLoRAAdapterRequest(lora_name=name, lora_path=str(folder))
        _require_done(await self._models.load_lora_adapter(order))

    async def unload(self, name: str) -> None:
        from vllm.entrypoints.serve.lora.protocol import UnloadLoRAAdapterRequest

        order = UnloadLoRAAdapterRequest(lora_name=name)
        _require_done(await self._models.unload_lora_adapter(order))


def _require_done(answer: Any) -> None:
    """vLLM answers with a text, or with an error that it would send."""
    if not isinstance(answer, str):
        raise AdapterUnusable(f"vLLM cannot use the adapter: {answer.error.message}")


def reload_weights(worker: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, float]:
    """Put these tensors into the places of those that the worker's model has; return the seconds of each part.

    ``read_s`` is the wait for verified bytes, ``place_s`` everything else.
    """
    spent = {"read_s": 0.0}
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    runner, waited = worker.model_runner, _timed_waits(tensors, spent)
    is_in_place = worker.model_config.quantization is None and keeps_layout(runner.get_model())
    if is_in_place:
        _load_in_place(runner, waited)
    else:
        runner.reload_weights(weights_iterator=waited)
    took_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "read_s": spent["read_s"],
        "place_s": took_s - spent["read_s"],
        "user_s": after.ru_utime - before.ru_utime,
        "system_s": after.ru_stime - before.ru_stime,
        "page_faults": after.ru_minflt - before.ru_minflt,
        "in_place": float(is_in_place),
    }


def keeps_layout(model: nn.Module) -> bool:
    """Return whether the running model's parameters are laid out as its weight loaders fill them, with nothing derived from them.

    It is so where vLLM multiplies with torch itself, because oneDNN has no kernel of the type for this CPU. Then a tensor
    is copied once, where vLLM's reload fills a buffer and copies that. Elsewhere a packed copy hangs on ``cpu_linear``.
    """
    return all(_keeps_layout(layer) for layer in model.modules())


def _keeps_layout(layer: nn.Module) -> bool:
    recorded, _ = layerwise.get_layerwise_info(layer).restore_metadata
    live = dict(layer.named_parameters(recurse=False))
    if any(name not in live or not _is_alike(live[name], one) for name, one in recorded.items()):
        return False
    method = getattr(layer, "quant_method", None)
    if method is None:
        return True
    multiply = getattr(layer, "cpu_linear", None)  # its closure holds what was packed
    return (
        isinstance(method, UnquantizedLinearMethod | UnquantizedEmbeddingMethod)
        and multiply is not None
        and getattr(multiply, "__closure__", None) is None
    )


def _is_alike(live: torch.Tensor, recorded: torch.Tensor) -> bool:
    return (live.shape, live.stride(), live.dtype) == (
        recorded.shape,
        recorded.stride(),
        recorded.dtype,
    )


@torch.no_grad()
def _load_in_place(runner: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    model = runner.get_model()
    loaded = model.load_weights(tensors)
    if missing := set(_checkpoint_names(model)) - set(loaded or ()):
        raise ValueError(f"The artifact has no weights for {', '.join(sorted(missing))}.")
    runner.reset_lora_state()
    runner.reset_encoder_cache()
    runner.reset_mm_cache()


def _checkpoint_names(model: nn.Module) -> Iterator[str]:
    """Yield the names of a model's parameters without the layers that vLLM puts around those to which adapters are added."""
    for name, _ in model.named_parameters():
        yield name.replace(".base_layer.", ".")


def _timed_waits(
    tensors: Iterable[tuple[str, torch.Tensor]], spent: dict[str, float]
) -> Iterator[tuple[str, torch.Tensor]]:
    began = time.perf_counter()
    for item in tensors:
        spent["read_s"] += time.perf_counter() - began
        yield item
        began = time.perf_counter()
    spent["read_s"] += time.perf_counter() - began


class _ExpertFilter:
    """Stands for vLLM's default loader, whose filter writes its result into this one attribute."""

    local_expert_ids: set[int] | None = None


def _multiply_fp8_without_onednn() -> None:
    """Let torch multiply fp8 itself: oneDNN takes 15 s instead of 20 ms on a CPU without fp8 instructions.

    Both give the same numbers. vLLM itself looks for these instructions where it has a kernel of its own.
    """
    slow = ChannelWiseTorchFP8ScaledMMLinearKernel.apply_scaled_mm

    def apply_scaled_mm(
        self: ChannelWiseTorchFP8ScaledMMLinearKernel, **operands: Any
    ) -> torch.Tensor:
        torch.backends.mkldnn.enabled = False
        try:
            return slow(self, **operands)
        finally:
            torch.backends.mkldnn.enabled = True

    ChannelWiseTorchFP8ScaledMMLinearKernel.apply_scaled_mm = apply_scaled_mm


class AdapterProducts(PunicaWrapperCPU):
    """Adds adapters to a batch on the CPU, each to its own rows alone (lora_products.py says what vLLM's own does)."""

    adapters: tuple[AdapterRows, ...] = ()

    def update_metadata(self, *given: Any, **named: Any) -> None:
        super().update_metadata(*given, **named)
        self.adapters = rows_by_adapter(self.token_lora_indices)

    def add_lora_linear(self, *given: Any, **named: Any) -> None:
        if self.adapters:
            super().add_lora_linear(*given, **named)

    def _shrink_prefill(
        self, y: torch.Tensor, x: torch.Tensor, w_t_all: torch.Tensor, scale: float
    ) -> None:
        shrink(y, x, w_t_all, scale, self.adapters)

    def _expand_prefill(
        self, y: torch.Tensor, x: torch.Tensor, w_t_all: torch.Tensor, add_inputs: bool
    ) -> None:
        expand(y, x, w_t_all, self.adapters, adds=add_inputs)

    def _expand_slice_prefill(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        w_t_all: torch.Tensor,
        y_offset: int,
        y_slice_size: int,
        add_inputs: bool,
    ) -> None:
        expand(y, x, w_t_all, self.adapters, first=y_offset, count=y_slice_size, adds=add_inputs)

    # vLLM asks for these two kinds of work separately, where they differ.
    _shrink_decode = _shrink_prefill
    _expand_decode = _expand_prefill
    _expand_slice_decode = _expand_slice_prefill


def add_adapters_by_row() -> None:
    """Have vLLM add adapters with our products, in this process, and pass by its layers for them where a batch has none."""
    from vllm.lora.layers.column_parallel_linear import ColumnParallelLinearWithLoRA
    from vllm.lora.layers.row_parallel_linear import RowParallelLinearWithLoRA
    from vllm.platforms.cpu import CpuPlatform

    place = f"{AdapterProducts.__module__}.{AdapterProducts.__qualname__}"
    CpuPlatform.get_punica_wrapper = classmethod(lambda _platform: place)
    for layer in (ColumnParallelLinearWithLoRA, RowParallelLinearWithLoRA):
        layer.forward = _passed_by(layer.forward)


def _passed_by(usual: Callable[[Any, torch.Tensor], Any]) -> Callable[[Any, torch.Tensor], Any]:
    """Return the forward of a layer for adapters that goes straight on to the wrapped layer while no adapter is in the batch.

    vLLM's own does the same sum, but looks up eight attributes of the wrapped layer, each by a function in Python.
    """

    def forward(layer: Any, x: torch.Tensor) -> Any:
        if layer.punica_wrapper.adapters:
            return usual(layer, x)
        return layer._modules["base_layer"].forward(x)

    return forward


def enable_amx() -> None:
    """Ask the kernel for AMX, in each process that computes.

    vLLM's attention uses AMX wherever the CPU has it, but does not ask: such a process dies of an illegal instruction.
    """
    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()


def local_expert_ids(model_config: ModelConfig) -> set[int] | None:
    """Return the experts that this rank loads; None where it loads all (see --enable-ep-weight-filter)."""
    holder = _ExpertFilter()
    DefaultModelLoader._init_ep_weight_filter(holder, model_config)
    return holder.local_expert_ids


def is_of_another_rank(name: str, experts: set[int] | None) -> bool:
    """Return whether the tensor is an expert that only other ranks load."""
    return bool(should_skip_weight(name, experts))


def is_expert(name: str) -> bool:
    return parse_expert_id(name) is not None


def is_in_another_stage(name: str, model: nn.Module) -> bool:
    """Return whether the tensor belongs to a layer of another pipeline stage.

    The model names its missing layers as vLLM does, not as the checkpoint does.
    """
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    mapped = mapper.map_name(name) if mapper is not None else name
    return mapped is not None and bool(is_pp_missing_parameter(mapped, model))


def tensor_parallel_rank() -> tuple[int, int]:
    """Return rank and number of ranks that map the same file; ranks on other machines have a file of their own."""
    if get_current_vllm_config().parallel_config.nnodes > 1:
        return 0, 1
    return get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()


def has_sleep_levels() -> bool:
    """Return whether vLLM can give the accelerator's memory away and take it again."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_sleep_mode_available())


def import_all(*, is_cpu: bool = True) -> None:
    """Import now what every server imports before it serves. On the CPU no thread may be left by it."""
    import uvloop  # noqa: F401
    import vllm.engine.arg_utils
    import vllm.entrypoints.launchers.api_server.entry
    import vllm.entrypoints.launchers.cli_args
    import vllm.entrypoints.serve.utils.api_utils
    import vllm.v1.engine.async_llm
    import vllm.v1.engine.core

    if is_cpu:
        import vllm.v1.worker.cpu_model_runner
        import vllm.v1.worker.cpu_worker  # noqa: F401

    for name in IMPORTED_LATE:
        with suppress(
            ImportError
        ):  # another version has it elsewhere, and a server imports it itself
            import_module(name)
    with suppress(ImportError):
        titles = import_module("setproctitle")  # vLLM's dependency
        titles.getproctitle()  # at its first call it looks for the command line as it was given


def parse_arguments(arguments: list[str]) -> Namespace:
    """Parse what ``vllm serve`` takes; argparse ends the process with a message where it is wrong."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parsed: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    return parsed


def serve(args: Namespace) -> None:
    """Serve as ``vllm serve`` does. On any node but the first, work for that one and answer nobody."""
    import uvloop
    from vllm.entrypoints.launchers.api_server.entry import run_server
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup

    _validate(args)
    cli_env_setup()
    if args.node_rank > 0:
        from vllm.entrypoints.cli.serve import run_headless

        args.headless, args.api_server_count = True, 0
        run_headless(args)
        return
    uvloop.run(run_server(args))


def serve_forked(args: Namespace, model_dir: Path) -> None:
    """Serve with the engine forked from this process, after everything that it needs was imported."""
    import uvloop

    _validate(args)
    _import_before_fork(model_dir)
    uvloop.run(_run_forked(args))


def _validate(args: Namespace) -> None:
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args

    validate_parsed_serve_args(args)


def _import_before_fork(model_dir: Path) -> None:
    """Import what the engine process needs, and each class that vLLM would inspect in a process of its own.

    That takes 10 s the first time, and with a home of its own each server's is the first.
    """
    import vllm.v1.engine.core
    import vllm.v1.worker.cpu_worker  # noqa: F401
    from vllm.model_executor.models import ModelRegistry

    config = json.loads((model_dir / "config.json").read_text())
    for architecture in config.get("architectures", []):
        for inspected in (_class_of(architecture), *_fallbacks(architecture)):
            if known := ModelRegistry.models.get(inspected):
                ModelRegistry.register_model(inspected, known.load_model_cls())


def _class_of(architecture: str) -> str:
    """Return the class that vLLM makes it of: for most classifiers the one that generates text."""
    from vllm.model_executor.models import ModelRegistry

    if architecture in ModelRegistry.models:
        return architecture
    return architecture.replace("ForSequenceClassification", "ForCausalLM")


def _fallbacks(architecture: str) -> tuple[str, ...]:
    """The class that vLLM considers for a classifier, besides the one that it chooses."""
    return (CLASSIFIER,) if architecture.endswith("ForSequenceClassification") else ()


async def _run_forked(args: Namespace) -> None:
    """vLLM's ``run_server``, with a fork where its CPU platform insists on a spawn."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.entry import build_and_serve, setup_server
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    address, listener = setup_server(args, reuse_port=False)
    # An engine that outlives this process would keep the port open, and who connects would wait for ever.
    os.register_at_fork(after_in_child=listener.close)
    context = UsageContext.OPENAI_API_SERVER
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(usage_context=context)
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    engine = AsyncLLM.from_vllm_config(vllm_config=config, usage_context=context)
    forbid_processes()
    # This comes last, because making the engine sets up logging again.
    logging.getLogger(ROUTES_LOGGER).setLevel(logging.WARNING)
    try:
        shutdown = await build_and_serve(engine, address, listener, args)
    finally:
        engine.shutdown(timeout=config.shutdown_timeout)
    await shutdown
    listener.close()
