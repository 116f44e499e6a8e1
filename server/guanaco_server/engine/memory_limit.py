"""The memory limit of a model server that runs without a container's: a config that lies must not take the machine's memory."""

from __future__ import annotations

import os
import resource

MEMORY_VARIABLE = "GUANACO_ENGINE_MEMORY"


def limit_memory() -> None:
    """Limit the private memory of this process, and of each that it starts, to what the environment says.

    For the CPU only: on a GPU the driver reserves more addresses than there is memory.
    """
    if given := os.environ.get(MEMORY_VARIABLE):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = int(given) if hard == resource.RLIM_INFINITY else min(int(given), hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))
