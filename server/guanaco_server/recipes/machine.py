"""Computes what one replica takes of each of its machines beside GPUs: CPUs, memory, shared memory and disk.

    processes      an API server, an engine core, and a worker for each GPU
    CPUs           a core for each of them: vLLM's own advice, 2 + GPUs ("Optimization and Tuning", CPU resources)
    shared memory  2 GiB, and 1 GiB more for each GPU of several, through which their workers talk
    memory         4 GiB for the API server and the engine core, 5 GiB for each worker (torch, the driver's libraries, pinned
                   buffers; of tensors that are read ahead at most 1 GiB each), and the shared memory, which counts as memory
    disk           the stored artifact, which the node's cache keeps, 5 % and 1 GiB more, and 8 GiB of /tmp for what compilers keep

Weights are streamed to the GPUs and take no memory of the machine.
"""

from __future__ import annotations

from guanaco.recipes import MachineNeeds

GIB = 1024**3
ENGINE_BYTES = 4 * GIB
WORKER_BYTES = 5 * GIB
SHARED_BYTES = 2 * GIB
TMP_BYTES = 8 * GIB
CACHE_SLACK_BYTES = GIB
CACHE_FACTOR = 1.05  # small files, and headers of tensors


def machine_needs(
    gpus: int, stored_bytes: float, cpus: int | None = None, memory_bytes: int | None = None
) -> MachineNeeds:
    """Compute it for ``gpus`` of one machine. ``stored_bytes`` is the artifact's size; an admin may know ``cpus`` and ``memory_bytes`` better."""
    shared = SHARED_BYTES + (gpus * GIB if gpus > 1 else 0)
    memory = memory_bytes or ENGINE_BYTES + gpus * WORKER_BYTES + shared
    return MachineNeeds(
        cpus=cpus or 2 + gpus,
        memory_bytes=memory,
        shared_memory_bytes=min(shared, memory),
        cache_bytes=int(stored_bytes * CACHE_FACTOR) + CACHE_SLACK_BYTES,
        tmp_bytes=TMP_BYTES,
    )
