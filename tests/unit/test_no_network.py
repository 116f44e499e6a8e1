from __future__ import annotations

import socket

import pytest


def test_a_unit_test_cannot_connect_to_a_port() -> None:
    with socket.socket() as client, pytest.raises(RuntimeError, match="memory adapter"):
        client.connect(("127.0.0.1", 9))
