"""The product's model server without the refusals of formats/shape.py, to see what a swap would leave that they prevent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guanaco_server.engine import control, serve


def refuse_nothing(config: Mapping[str, Any], quantization: str | None) -> str | None:
    return None


if __name__ == "__main__":
    vars(control)["swap_refusal"] = refuse_nothing
    serve.main()
