"""Several gateway processes on one machine: the platform's own, and others beside it on the same port.

They share nothing but the database; the kernel gives each new connection to one of them (SO_REUSEPORT). One that dies
is started again; all end with the platform, also when it is killed, for they read a pipe that ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from guanaco_server.runtime.background import Background
from guanaco_server.runtime.data_dir import DataDir
from guanaco_server.settings import Settings

RESTART_S = 1.0
STOP_S = 15.0

logger = logging.getLogger(__name__)


class Gateways:
    """``settings.gateways`` processes in all, this one counted."""

    def __init__(self, settings: Settings, data_dir: DataDir, port: int) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._port = port
        self._keepers: list[Background] = []
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    async def start(self) -> None:
        for number in range(1, self._settings.gateways):
            self._data_dir.lend_key(_folder(self._settings, number))
            keeper = Background(f"gateway {number}")
            keeper.start(self._keep(number))
            self._keepers.append(keeper)

    async def stop(self) -> None:
        for keeper in self._keepers:
            await keeper.stop()
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()
        for process in self._processes.values():
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    async def _keep(self, number: int) -> None:
        while True:
            environment = _environment(self._settings, self._port)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "guanaco_server.gateway_process",
                stdin=asyncio.subprocess.PIPE,
                env=environment | _own(self._settings, number),
            )
            self._processes[number] = process
            status = await process.wait()
            logger.warning("gateway %d ended with status %d: it is started again", number, status)
            await asyncio.sleep(RESTART_S)


def _environment(settings: Settings, port: int) -> dict[str, str]:
    """Return the environment that makes another process one of the same platform."""
    assert settings.database_url is not None, "checked at the start"
    values = {
        "ROLE": "api",
        "GATEWAYS": "1",
        "REUSE_PORT": "true",
        "HOST": settings.host,
        "PORT": str(port),
        "DATABASE_URL": settings.database_url.get_secret_value(),
        "ENGINE_PYTHON": str(settings.engine_python),
    }
    if settings.database_replica_url is not None:
        values["DATABASE_REPLICA_URL"] = settings.database_replica_url.get_secret_value()
    if settings.artifacts_url is None:
        values["ARTIFACTS_DIR"] = str(settings.artifacts_path.absolute())
    return os.environ | {f"GUANACO_{name}": value for name, value in values.items()}


def _own(settings: Settings, number: int) -> dict[str, str]:
    own = {"GUANACO_DATA_DIR": str(_folder(settings, number))}
    if settings.metrics_port is not None:
        own["GUANACO_METRICS_PORT"] = str(settings.metrics_port + number)
    return own


def _folder(settings: Settings, number: int) -> Path:
    return settings.data_dir.absolute() / "gateways" / str(number)
