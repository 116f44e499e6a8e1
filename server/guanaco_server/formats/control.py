"""Names of the protocol between the platform and a model server's control layer (``engine/control.py``)."""

from __future__ import annotations

ARTIFACT_HEADER = "X-Guanaco-Artifact"
TOKEN_VARIABLE = "GUANACO_CONTROL_TOKEN"  # noqa: S105 - the name of a variable
SWAP_PATH = "/guanaco/swap"
SLEEP_PATH = "/guanaco/sleep"
ASLEEP = "sleeping"  # in place of an artifact's key in that header
WAKE_PATH = "/guanaco/wake"
ADAPTERS_HEADER = "X-Guanaco-Adapters"
ADAPTERS_PATH = "/guanaco/adapters"
