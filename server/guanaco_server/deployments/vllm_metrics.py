"""vLLM's /metrics, in Prometheus' text format: the two gauges that scaling needs."""

from __future__ import annotations

import math
import re

from guanaco_server.deployments.model_server import ModelServerFault, ServerLoad

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*")


def read_load(text: str) -> ServerLoad:
    """Summed over the engines of a data-parallel server. ModelServerFault where a gauge is missing or no number."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = SAMPLE.fullmatch(line)
        if match and match["name"] in (RUNNING, WAITING):
            found[match["name"]] = found.get(match["name"], 0.0) + _number(match["value"])
    if len(found) < 2:
        raise ModelServerFault("The model server's metrics have no numbers of its requests.")
    return ServerLoad(running=int(found[RUNNING]), waiting=int(found[WAITING]))


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ModelServerFault(f"The model server's metrics say {text[:20]!r} requests.")
    return value
