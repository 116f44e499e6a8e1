"""The model runs inside the engine process, instead of in one more process below it.

Saves a third of the start-up time and 0.6 GB on the CPU, where vLLM always adds that process.
"""

from __future__ import annotations

import os

import torch
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from guanaco_server.engine import lifeline

THREADS_VARIABLE = "GUANACO_ENGINE_THREADS"


class InProcessExecutor(UniProcExecutor):
    """Made in a process forked from the API server, whose torch is held to one thread (see serve.py)."""

    def _init_executor(self) -> None:
        lifeline.hold()  # threads do not survive a fork
        torch.set_num_threads(int(os.environ[THREADS_VARIABLE]))
        super()._init_executor()
