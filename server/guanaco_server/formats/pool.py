"""Names of the protocol between the platform and a pod of a pool (``engine/pool/keeper.py``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

TOKEN_VARIABLE = "GUANACO_POOL_TOKEN"  # noqa: S105 - the name of a variable
ORDER_PATH = "/guanaco/order"
STATE_PATH = "/guanaco/pod"
STARTED_PATH, READY_PATH, ALIVE_PATH = "/started", "/ready", "/alive"
MAX_ORDER_BYTES = 1024**2
# A pod that took an order answers so many probes that it is not ready, whatever it could answer: its Ready condition
# then has a new time as soon as it serves, by which the platform tells this from the time in which it waited.
UNREADY_PROBES = 2


class PodState(StrEnum):
    IMPORTING = "importing"
    WAITING = "waiting"
    LOADING = "loading"
    SERVING = "serving"


@dataclass(frozen=True)
class PodOrder:
    """The model server that a pod is to be. ``spec`` is the hash of what it is; other ``secrets`` make no other order.

    ``arguments`` are those of ``guanaco_server.engine.serve``, in which the pod fills in ``{host}`` and ``{port}``. It ends if it does not answer within ``start_s``. ``replaces`` is the hash of what the server
    was: a swap gives it other weights, and this order is kept for a container that starts again.
    """

    name: str
    spec: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    start_s: float = 600.0
    replaces: str = ""

    def is_for(self, other: PodOrder) -> bool:
        """Tell whether both are for the same server."""
        return (self.name, self.spec) == (other.name, other.spec)

    def may_become(self, other: PodOrder) -> bool:
        """Tell whether the other is for the same server, or for what this one was swapped to."""
        return self.is_for(other) or (self.name, self.spec) == (other.name, other.replaces)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(data: bytes) -> PodOrder:
        """ValueError where it is no order."""
        try:
            given = json.loads(data)
            return PodOrder(
                name=_text(given["name"]),
                spec=_text(given["spec"]),
                arguments=tuple(map(_text, list(given["arguments"]))),
                environment=_texts(given["environment"]),
                secrets=_texts(given["secrets"]),
                start_s=float(given["start_s"]),
                replaces=_text(given.get("replaces", "")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"It is no order: {type(error).__name__}.") from None


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError(type(given).__name__)
    return given


def _texts(given: Mapping[str, object]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in given.items()}
