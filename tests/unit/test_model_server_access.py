from __future__ import annotations

import pytest

from guanaco_server.confinement.profiles import ports_of
from guanaco_server.engine.serve import traces_to


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        (["--otlp-traces-endpoint=http://collector:4317"], 4317),
        (["--otlp-traces-endpoint", "grpc://collector:4319", "--seed=1"], 4319),
        (["--otlp-traces-endpoint=collector:4317"], 4317),
        (["--otlp-traces-endpoint=https://collector"], 443),
    ],
)
def test_a_model_server_may_send_its_traces(arguments: list[str], port: int) -> None:
    assert ports_of(*traces_to(["--seed=0", *arguments])) == (port,)


def test_no_port_is_opened_without_traces() -> None:
    for arguments in ([], ["--port", "4317"], ["--otlp-traces-endpoint"]):
        assert ports_of(*traces_to(arguments)) == ()
