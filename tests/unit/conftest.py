"""Unit tests talk to nobody."""

from __future__ import annotations

import socket
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to anything but a Unix socket fails, and says why."""

    def refusing(connect: Any) -> Any:
        def guarded(self: socket.socket, address: Any) -> Any:
            if self.family != socket.AF_UNIX:
                raise RuntimeError(
                    f"A unit test connects to {address}: give it a memory adapter, or move it to tests/integration."
                )
            return connect(self, address)

        return guarded

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refusing(getattr(socket.socket, name)))
