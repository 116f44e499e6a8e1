"""The first process of a pool's pod: it takes the order for a model server, keeps it, and answers the cluster's probes.

    python -m guanaco_server.engine.pool.keeper --orders FOLDER --host HOST --port PORT --control-port PORT

    importing ──▶ waiting ── an order ──▶ loading ──▶ serving
        ▲            └── (imports leave threads, or ranks share the model: the server is started by its command)
        └── the container starts again: an order that was taken before is followed at once

The server is a process of its own (warm.py); when it ends, this one ends with its status, and so does the container. The
order lies in FOLDER, which lives as long as the pod: a container that starts again loads the model that it was claimed
for, whoever is away, and a pod that has an order takes no other. The control routes need the pool's token; without it they
are not there (404). The server's confinement reads neither FOLDER nor this process.
"""

from __future__ import annotations

import argparse
import hmac
import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from guanaco_server.confinement.environment import hide_memory, hide_secrets
from guanaco_server.engine.artifacts.node_cache import KEY
from guanaco_server.formats.manifest import TENSORS_NAME
from guanaco_server.formats.pool import (
    ALIVE_PATH,
    MAX_ORDER_BYTES,
    ORDER_PATH,
    READY_PATH,
    STARTED_PATH,
    STATE_PATH,
    TOKEN_VARIABLE,
    UNREADY_PROBES,
    PodOrder,
    PodState,
)
from guanaco_server.formats.ranks import has_ranks

WARM = "guanaco_server.engine.pool.warm"
SERVES = "guanaco_server.engine.serve"
ORDER_NAME = "order.json"
POLL_S = 0.1
HEALTH_S = 2.5
REQUEST_S = 10.0

logger = logging.getLogger("guanaco.pool")


class OrderRefused(Exception):
    """The pod has another order, or cannot take one yet."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class PodSupervisor:
    """The order of this pod and the process that follows it."""

    def __init__(self, folder: Path, host: str, port: int, warm_module: str = WARM) -> None:
        self.state = PodState.IMPORTING
        self.order: PodOrder | None = None
        self._path = folder / ORDER_NAME
        self._places = {"{host}": host, "{port}": str(port)}
        self._address = ("127.0.0.1" if host == "0.0.0.0" else host, port)  # noqa: S104 - compared, not bound
        self._warm_module = warm_module
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._unready_probes = 0
        self._ends_at = float("inf")
        self._stopped_by: int | None = None

    def run(self) -> int:
        """Serve until the server ends, and return the exit status of the container."""
        with suppress(FileNotFoundError):
            self.order = PodOrder.from_json(self._path.read_bytes())
            logger.info("This pod was claimed for %s before", self.order.name)
        self._start_warm()
        while True:
            with self._lock:
                status = self._ended()
            if status is not None:
                return status
            if self.state is PodState.IMPORTING and self._has_imported():
                self._begin_waiting()
            if self.state is PodState.LOADING:
                self._look_at_start()
            time.sleep(POLL_S)

    def stop(self, number: int) -> None:
        """Have the server end, as by this signal; ``run`` returns when it has."""
        self._stopped_by = number
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def take(self, order: PodOrder) -> None:
        """Follow this order from now on. One for the same server, or for what it was swapped to, is only kept for a container that starts again."""
        with self._lock:
            if self.order is not None and not self.order.may_become(order):
                raise OrderRefused(HTTPStatus.CONFLICT, f"This pod serves {self.order.name}.")
            if self.order is None and self.state is not PodState.WAITING:
                raise OrderRefused(HTTPStatus.SERVICE_UNAVAILABLE, f"This pod is {self.state}.")
            is_new = self.order is None
            self._write(order)
            self.order = order
            if is_new:
                self._follow(order)

    def is_started(self) -> bool:
        return self.state is not PodState.IMPORTING

    def is_ready(self) -> bool:
        """Tell whether it waits, or serves and has said often enough before that it does not."""
        with self._lock:
            if self.order is None:
                return self.state is PodState.WAITING
            if self._unready_probes < UNREADY_PROBES:
                self._unready_probes += 1
                return False
        return self.state is PodState.SERVING and self._answers()

    def is_alive(self) -> bool:
        return self.state is not PodState.SERVING or self._answers()

    def _start_warm(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._warm_module, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
            )

    def _has_imported(self) -> bool:
        if self._channel is None:
            return True
        with suppress(BlockingIOError):
            return bool(self._channel.recv(64))
        return False

    def _begin_waiting(self) -> None:
        with self._lock:
            self.state = PodState.WAITING
            if self.order is not None:
                self._follow(self.order)

    def _ended(self) -> int | None:
        """Return the status with which the pod's process ended. One that cannot wait for an order is done without."""
        if self._process is None:
            return None if self._stopped_by is None else 128 + self._stopped_by
        status = self._process.poll()
        if status == os.EX_UNAVAILABLE and self.state is PodState.IMPORTING:
            self._process, self._channel = None, None
            return None
        return status if status is None or status >= 0 else 128 - status

    def _follow(self, order: PodOrder) -> None:
        logger.info("This pod is to serve %s", order.name)
        self._ends_at = time.monotonic() + order.start_s
        if self._channel is None or has_ranks(order.arguments):
            self._start_by_command(order)
        else:
            self._channel.setblocking(True)
            with suppress(OSError):  # it has ended, which `run` sees
                self._channel.sendall(self._filled(order).to_json() + b"\n")
        self.state = PodState.LOADING

    def _start_by_command(self, order: PodOrder) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        environment = {**os.environ, **order.environment, **order.secrets}
        command = [sys.executable, "-m", SERVES, *self._filled(order).arguments]
        self._process = subprocess.Popen(command, env=environment)

    def _filled(self, order: PodOrder) -> PodOrder:
        """Fill in where the server is to listen."""
        return replace(
            order, arguments=tuple(self._places.get(part, part) for part in order.arguments)
        )

    def _look_at_start(self) -> None:
        if self._answers():
            self.state = PodState.SERVING
        elif time.monotonic() > self._ends_at:
            logger.error("The server did not answer in time; this container ends")
            self._ends_at = float("inf")
            self.stop(signal.SIGKILL)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(*self._address, timeout=HEALTH_S)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _write(self, order: PodOrder) -> None:
        part = self._path.with_suffix(".part")
        part.touch(0o600)
        part.write_bytes(order.to_json())
        part.replace(self._path)


class ControlPort(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], keeper: PodSupervisor, token: str, cache: Path
    ) -> None:
        """Authorize nobody where there is no ``token``."""
        super().__init__(address, _SupervisorHandler)
        self.keeper = keeper
        self.token = token.encode()
        self.cache = cache

    def is_authorized(self, header: str) -> bool:
        given = header.encode("latin-1", "replace")
        return bool(self.token) and hmac.compare_digest(given, b"Bearer " + self.token)

    def holds(self, key: str) -> bool:
        """Tell whether the node's cache has the artifact: its tensors have their name when all of them are there."""
        return bool(KEY.fullmatch(key)) and (self.cache / key / TENSORS_NAME).is_file()


class _SupervisorHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_S
    server: ControlPort

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every second; what matters is logged where it happens."""

    def do_GET(self) -> None:
        keeper, parts = self.server.keeper, urlsplit(self.path)
        probes = {
            STARTED_PATH: keeper.is_started,
            READY_PATH: keeper.is_ready,
            ALIVE_PATH: keeper.is_alive,
        }
        if probe := probes.get(parts.path):
            status = HTTPStatus.OK if probe() else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(status, {"state": keeper.state})
        elif parts.path == STATE_PATH and self._is_authorized():
            key = dict(parse_qsl(parts.query)).get("artifact", "")
            name = keeper.order.name if keeper.order else None
            fields = {"state": keeper.state, "name": name, "holds": self.server.holds(key)}
            self._answer(HTTPStatus.OK, fields)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "Not Found")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != ORDER_PATH or not self._is_authorized():
            self._refuse(HTTPStatus.NOT_FOUND, "Not Found")
        elif not length.isdecimal() or int(length) > MAX_ORDER_BYTES:
            self._refuse(HTTPStatus.BAD_REQUEST, f"An order has up to {MAX_ORDER_BYTES:,} bytes.")
        else:
            self._take(self.rfile.read(int(length)))

    def _take(self, body: bytes) -> None:
        try:
            self.server.keeper.take(PodOrder.from_json(body))
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "The order cannot be read.")
        except OrderRefused as refused:
            self._refuse(refused.status, str(refused))
        except OSError as error:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"The order cannot be kept: {error}.")
        else:
            self._answer(HTTPStatus.OK, {"state": self.server.keeper.state})

    def _is_authorized(self) -> bool:
        return self.server.is_authorized(self.headers.get("Authorization", ""))

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self._answer(status, {"error": {"message": why, "code": status}})

    def _answer(self, status: HTTPStatus, answer: Mapping[str, object]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(argv: list[str] | None = None) -> None:
    hide_secrets()
    hide_memory()
    token = os.environ.pop(TOKEN_VARIABLE, "")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    options = _parser().parse_args(argv)
    keeper = PodSupervisor(options.orders, options.host, options.port, options.warm_module)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda seen, _: keeper.stop(seen))
    control = ControlPort((options.host, options.control_port), keeper, token, options.cache_dir)
    threading.Thread(target=control.serve_forever, daemon=True, name="control port").start()
    status = keeper.run()
    control.shutdown()
    sys.exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="guanaco-pool", allow_abbrev=False)
    parser.add_argument("--orders", type=Path, required=True, help="folder that lives with the pod")
    parser.add_argument("--cache-dir", type=Path, required=True, help="the node's artifact cache")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True, help="where the model server listens")
    parser.add_argument("--control-port", type=int, required=True)
    parser.add_argument("--warm-module", default=WARM, help="another process, for tests")
    return parser


if __name__ == "__main__":
    main()
