"""The first process of a pool's pod, by itself: what it starts, and how it ends."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from guanaco_server.formats.pool import ORDER_PATH, STARTED_PATH, UNREADY_PROBES, PodOrder
from tests.fixtures.plain_http import plain_http, says_yes
from tests.fixtures.pools import IMPORTS
from tests.fixtures.ports import free_port

pytestmark = pytest.mark.slow

TOKEN = {"Authorization": "Bearer t0ken"}
ORDER = PodOrder("m-tiny", "ab", ("--name", "tiny", "--host", "{host}", "--port", "{port}"))


class Running:
    def __init__(self, folder: Path, warm: str) -> None:
        self.port, control = free_port(), free_port()
        self.control = f"http://127.0.0.1:{control}"
        self.log = folder / "log"
        command = (
            *(sys.executable, "-m", "guanaco_server.engine.pool.keeper"),
            *("--orders", str(folder), "--cache-dir", str(folder), "--host", "127.0.0.1"),
            *("--port", str(self.port), "--control-port", str(control), "--warm-module", warm),
        )
        environment = {"PYTHONPATH": IMPORTS, "GUANACO_POOL_TOKEN": "t0ken"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def give(self, order: PodOrder) -> int:
        answer = plain_http.post(
            f"{self.control}{ORDER_PATH}", content=order.to_json(), headers=TOKEN
        )
        return answer.status_code

    def state(self) -> str:
        return str(plain_http.get(f"{self.control}{STARTED_PATH}").json()["state"])

    def wait_until(self, path: str) -> None:
        _until(lambda: says_yes(f"{self.control}{path}"))


def _until(holds: Callable[[], bool]) -> None:
    """Wait; the suite's limit ends what never comes."""
    while not holds():
        time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(warm: str = "scripted_warm") -> Running:
        started.append(Running(tmp_path, f"tests.fixtures.{warm}"))
        return started[-1]

    yield begin
    for one in started:
        one.process.terminate()
        one.process.wait(20)


def test_it_waits_then_fails_so_many_probes_then_is_ready(start: Callable[..., Running]) -> None:
    keeper = start()
    keeper.wait_until("/ready")
    assert keeper.give(ORDER) == 200
    _until(lambda: keeper.state() == "serving")
    answers = [says_yes(f"{keeper.control}/ready") for _ in range(UNREADY_PROBES + 1)]
    assert answers == [False] * UNREADY_PROBES + [True]
    assert says_yes(f"{keeper.control}/alive")


def test_an_order_is_taken_again_for_the_same_server_only(start: Callable[..., Running]) -> None:
    keeper = start()
    keeper.wait_until("/started")
    assert keeper.give(ORDER) == 200
    assert keeper.give(replace(ORDER, secrets={"A": "new"})) == 200
    assert keeper.give(replace(ORDER, spec="another")) == 409
    assert keeper.give(replace(ORDER, name="m-other")) == 409


def test_it_ends_with_its_server_and_restarts_the_same_one(
    start: Callable[..., Running],
) -> None:
    keeper = start()
    keeper.wait_until("/started")
    dying = replace(ORDER, arguments=(*ORDER.arguments, "--die-after", "1"))
    assert keeper.give(dying) == 200
    assert keeper.process.wait(30) == 3
    again = start()
    _until(lambda: says_yes(f"http://127.0.0.1:{again.port}/health"))
    assert again.give(ORDER) == 200, "it has this order"


def test_a_server_that_does_not_answer_in_time_ends_it(start: Callable[..., Running]) -> None:
    keeper = start()
    keeper.wait_until("/started")
    slow = replace(ORDER, arguments=(*ORDER.arguments, "--start-delay", "60"), start_s=0.5)
    assert keeper.give(slow) == 200
    assert keeper.process.wait(30) == 128 + signal.SIGKILL
    assert "did not answer in time" in keeper.log.read_text()


@pytest.mark.parametrize("warm", ["unavailable_warm", "scripted_warm"])
def test_server_that_cannot_be_forked_is_started_by_its_command(
    start: Callable[..., Running], warm: str
) -> None:
    keeper = start(warm)
    keeper.wait_until("/ready")
    ranks = ("--tensor-parallel-size", "2") if warm == "scripted_warm" else ()
    assert keeper.give(replace(ORDER, arguments=("--help", *ranks))) == 200
    assert keeper.process.wait(30) == 0
    assert "usage: guanaco-serve" in keeper.log.read_text()


def test_sigterm_ends_one_that_waits_and_one_that_serves(start: Callable[..., Running]) -> None:
    waiting, serving = start(), None
    waiting.wait_until("/ready")
    waiting.process.terminate()
    assert waiting.process.wait(10) in (0, 128 + signal.SIGTERM)
    serving = start()
    serving.wait_until("/ready")
    assert serving.give(ORDER) == 200
    _until(lambda: says_yes(f"http://127.0.0.1:{serving.port}/health"))
    serving.process.terminate()
    assert serving.process.wait(10) in (0, 128 + signal.SIGTERM)
    with pytest.raises(httpx.HTTPError):
        plain_http.get(f"http://127.0.0.1:{serving.port}/health")


def test_an_order_of_no_length_or_too_long_is_refused(start: Callable[..., Running]) -> None:
    keeper = start()
    keeper.wait_until("/started")
    for length in ("x", "-1", str(2**21), ""):
        connection = http.client.HTTPConnection(keeper.control.removeprefix("http://"), timeout=10)
        connection.putrequest("POST", ORDER_PATH)
        for name, value in {**TOKEN, **({"Content-Length": length} if length else {})}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 400, length
        assert b"An order has up to" in answer.read()
        connection.close()
