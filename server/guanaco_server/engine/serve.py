"""A model server: vLLM's OpenAI API over one artifact.

    python -m guanaco_server.engine.serve --artifact URI --name NAME --port P [vLLM arguments]

On the CPU vLLM starts three processes one after another, each importing vLLM for 8 s. Here the two below
the API server become one, and it is forked after the imports. With the tiny model, on two cores, from
start to the first 200 of /health:

    vLLM as it comes                        30.4 s (42.8 s when it sees an architecture for the first time)
    in-process executor, forked engine      12.9 s (14.3 s)
    … and a KV cache of 64 MiB, not 1 GiB   10.3 s

Imports take 7.8 of the 12.9 s, and zeroing the KV cache takes 1.3 to 2.6. Memory falls from 3.0 to 2.2 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from guanaco_server.confinement.environment import hide_secrets
from guanaco_server.confinement.landlock import Access
from guanaco_server.confinement.packages import linked_packages
from guanaco_server.confinement.profiles import (
    DEVICES,
    DNS_PORT,
    OWN_FOLDERS_VARIABLE,
    SYSTEM_PROGRAMS,
    accelerators,
    confine_program,
    ports_of,
)
from guanaco_server.confinement.sockets import DEVICE_EVENTS, RDMA, ROUTE, Sockets
from guanaco_server.engine import lifeline
from guanaco_server.engine.adapters import LORA_MODULES, HeldAdapters
from guanaco_server.engine.artifacts.errors import ArtifactError
from guanaco_server.engine.artifacts.node_cache import NodeCache
from guanaco_server.engine.artifacts.source import ArtifactSource, ModelFolder, model_folder
from guanaco_server.engine.control import ControlLayer, ServedArtifact
from guanaco_server.engine.memory_limit import limit_memory
from guanaco_server.formats.control import TOKEN_VARIABLE
from guanaco_server.formats.ranks import has_ranks

HOME_FOLDERS = (".cache", ".config", ".triton")  # vLLM's, torch's and the compilers'
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - vLLM's processes share memory there
TRACES = "--otlp-traces-endpoint"  # vLLM's own
FREE_PORT = 0  # any that the kernel chooses: torch opens one for its ranks, of which there is one
WORKER_EXTENSION = "guanaco_server.engine.loader.SwappingWorker"
KV_CACHE_BYTES = 1024**3
BLOCK_TOKENS = 32  # CPU attention takes multiples of 32; small blocks give more prefix cache hits
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "guanaco_tensors",
    "VLLM_MAX_STOP_STRINGS": "16",  # as many as a submission may have; vLLM takes 4 by itself
    "LOGNAME": "guanaco",  # torch asks for the user's name, and a user of its own has none
}
CPU_ENVIRONMENT = {
    # vLLM would bind the threads of each server on this machine to the same first cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # A process whose OpenMP threads have run must not fork; the engine takes its own count afterwards.
    "OMP_NUM_THREADS": "1",
    # Log-probabilities (best_of) would be compiled at the first request: 13.7 s, and a C++ compiler needed.
    "TORCH_COMPILE_DISABLE": "1",
}
CPU_ARGUMENTS = (
    "--enforce-eager",
    *("--block-size", str(BLOCK_TOKENS)),
    *("--kv-cache-memory-bytes", str(KV_CACHE_BYTES)),
)


def main(argv: list[str] | None = None) -> None:
    hide_secrets()
    options, further = _parser().parse_known_args(argv)
    os.environ.update(ENVIRONMENT)
    source = ArtifactSource.from_environment(options.artifact)
    access = access_of(options, further, source)
    shared = (options.cache_dir,) if options.cache_dir else ()
    confine_program(access, sockets_of(further), owned_by(further), shared)
    limit_memory(is_kernels=is_cpu_build())
    lifeline.hold()
    try:
        cache = _cache(options)
        with _findable_packages(), ExitStack() as held:
            found = held.enter_context(model_folder(source, cache))
            _serve(options, source, cache, found, held, further)
    except ArtifactError as error:
        sys.exit(str(error))


def access_of(options: argparse.Namespace, further: list[str], source: ArtifactSource) -> Access:
    """Return the artifact, the node's cache, this server's own folders and port; the devices, and the ports of the store and of vLLM's traces.

    Ranks that share a model talk to each other on ports that they choose, and so does vLLM's engine on a GPU: there
    every port stays.
    """
    is_alone = _is_alone(further)
    traces = traces_to(further)
    watched, artifact = lifeline.named(), source.folder
    if artifact is not None and TOKEN_VARIABLE in os.environ:
        artifact = artifact.parent  # it may be given another one of the store
    caches = [Path("~").expanduser() / name for name in HOME_FOLDERS]
    if options.cache_dir:
        caches.append(options.cache_dir)
    for folder in caches:  # a folder that is not there yet cannot be allowed
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
    return Access(
        reads=tuple(path for path in (watched, artifact) if path),
        writes=(*(Path(tempfile.gettempdir()), SHARED_MEMORY, *caches),),
        executes=SYSTEM_PROGRAMS,
        devices=(*DEVICES, *accelerators()),
        connects=(
            *ports_of(options.artifact, *source.urls.values(), *traces),
            *((DNS_PORT,) if traces else ()),
        )
        if is_alone
        else None,
        listens=(options.port, FREE_PORT) if is_alone else None,
    )


def sockets_of(further: Sequence[str]) -> Sockets:
    """Return what vLLM makes beside TCP sockets: its processes talk through Unix sockets, and torch asks for the machine's addresses.

    gRPC, which sends traces, looks names up by itself. Several GPUs find each other by ways that differ with the machine.
    """
    if _is_alone(further):
        has_traces = bool(traces_to(further))
        return Sockets(udp=has_traces, unix=True, netlink=(ROUTE,), listens=True)
    return Sockets(udp=True, unix=True, netlink=(ROUTE, DEVICE_EVENTS, RDMA), listens=True)


def owned_by(further: Sequence[str]) -> tuple[Path, ...]:
    """Return the folders that the platform made for this server alone.

    Several ranks, and servers on a GPU, start programs and share compilers' caches as root where root starts them.
    """
    named = os.environ.get(OWN_FOLDERS_VARIABLE)
    return tuple(map(Path, named.split(os.pathsep))) if named and _is_alone(further) else ()


def _is_alone(further: Sequence[str]) -> bool:
    return is_cpu_build() and not has_ranks(further)


def traces_to(further: Sequence[str]) -> list[str]:
    """Return the address to which vLLM's arguments have it send its traces; gRPC's addresses may come without a scheme."""
    found = []
    for place, argument in enumerate(further):
        name, sign, value = argument.partition("=")
        if name == TRACES:
            found.append(value if sign else "".join(further[place + 1 : place + 2]))
    return [url if "://" in url else f"//{url}" for url in found]


@contextmanager
def _findable_packages() -> Iterator[None]:
    """Put links to our packages first on the path: a process that vLLM spawns may not list a checkout to find them."""
    with linked_packages() as links:
        sys.path.insert(0, links)
        yield


def _cache(options: argparse.Namespace) -> NodeCache | None:
    if options.cache_dir is None or options.cache_bytes == 0:
        return None
    return NodeCache.usable(options.cache_dir, options.cache_bytes)


def _serve(
    options: argparse.Namespace,
    source: ArtifactSource,
    cache: NodeCache | None,
    found: ModelFolder,
    held: ExitStack,
    further: list[str],
) -> None:
    is_cpu = is_cpu_build()
    if is_cpu:
        threads = os.environ.get("OMP_NUM_THREADS") or max(1, len(os.sched_getaffinity(0)) - 1)
        os.environ.update(CPU_ENVIRONMENT, GUANACO_ENGINE_THREADS=str(threads))
        further = [*CPU_ARGUMENTS, *further]
    # Imports torch, which reads the thread count once.
    from guanaco_server.engine import vllm_internals

    args = _arguments(options, found, further)
    if (token := os.environ.pop(TOKEN_VARIABLE, "")) and _is_one_process(args):
        args.middleware.append(f"{ControlLayer.__module__}.{ControlLayer.__qualname__}")
        args.worker_extension_cls = WORKER_EXTENSION
        args.enable_sleep_mode = vllm_internals.has_sleep_levels()

        def open_folder(other: ArtifactSource) -> AbstractContextManager[ModelFolder]:
            return model_folder(other, cache)

        adapters = None
        if args.enable_lora:
            args.lora_target_modules = args.lora_target_modules or sorted(LORA_MODULES)
            adapters = HeldAdapters(source.key, args.max_lora_rank, open_folder)
        args.guanaco_served = ServedArtifact(
            source, found, held, open_folder, args.quantization, token, adapters
        )
    if is_cpu and (ranks := _ranks(args)):
        os.environ["OMP_NUM_THREADS"] = str(max(1, int(threads) // ranks))
    elif is_cpu:
        executor = vllm_internals.InProcessExecutor
        args.distributed_executor_backend = f"{executor.__module__}.{executor.__qualname__}"
        vllm_internals.serve_forked(args, found.path)
        return
    vllm_internals.serve(args)


def _is_one_process(args: Any) -> bool:
    """Return whether one API server speaks to one worker, so that a swap has all of the model and all of the requests."""
    return not _ranks(args) and (args.api_server_count or 1) == 1 and args.nnodes == 1


def _ranks(args: Any) -> int:
    """Return how many processes share the model; 0 if only one has it, and the choice of its executor is ours."""
    ranks = args.tensor_parallel_size * args.pipeline_parallel_size * (args.data_parallel_size or 1)
    return int(ranks) if ranks > 1 or args.distributed_executor_backend else 0


def is_cpu_build() -> bool:
    """Return whether vLLM is the CPU build. It does not import torch, which reads the thread count once."""
    try:
        metadata.distribution("vllm-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="guanaco-serve", allow_abbrev=False)
    parser.add_argument(
        "--artifact", required=True, help="URI of the artifact; see artifacts/source.py"
    )
    parser.add_argument("--cache-dir", type=Path, help="folder of this node's artifact cache")
    parser.add_argument("--cache-bytes", type=int, default=0, help="its size limit; 0 is no cache")
    parser.add_argument("--name", required=True, help="the model's name in requests")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument(
        "--max-model-len", required=True, type=int, help="tokens of prompt and reply together"
    )
    return parser


def _arguments(options: argparse.Namespace, found: ModelFolder, further: list[str]) -> Any:
    from guanaco_server.engine.loader import LOAD_FORMAT, extra_config, register
    from guanaco_server.engine.vllm_internals import parse_arguments

    register()
    args = parse_arguments(
        [
            *("--model", str(found.path)),
            *("--served-model-name", options.name),
            *("--host", options.host),
            *("--port", str(options.port)),
            *("--max-model-len", str(options.max_model_len)),
            *("--load-format", LOAD_FORMAT),
            *("--model-loader-extra-config", json.dumps(extra_config(options.artifact, found))),
            *("--generation-config", "vllm"),  # the submission's parameters count, not the repo's
            "--enable-prefix-caching",
            "--enable-prompt-tokens-details",  # how many of them the prefix cache had
            "--disable-uvicorn-access-log",
            *further,
        ]
    )
    if args.trust_remote_code:
        sys.exit("Guanaco never runs a repo's own code: --trust-remote-code is refused.")
    # Never read the experts of other ranks.
    args.enable_ep_weight_filter = args.enable_expert_parallel
    return args


if __name__ == "__main__":
    main()
