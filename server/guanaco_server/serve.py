"""The entrance of `guanaco up`: one process with the API, the worker, or both, until a signal."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import uvicorn

from guanaco.accounts import CreatedKey
from guanaco.errors import InvalidSettings
from guanaco_server import preparation
from guanaco_server.assembly.app import create_app
from guanaco_server.assembly.gateways import Gateways
from guanaco_server.assembly.platform import Platform, build_platform
from guanaco_server.confinement import layers
from guanaco_server.confinement.environment import hide_memory, hide_secrets
from guanaco_server.http.body_limit import MAX_BODY_BYTES
from guanaco_server.http.connections.front_door import DoorLimits, FrontDoor
from guanaco_server.http.connections.listener import GuardedServer
from guanaco_server.http.connections.protocol import protocol_of
from guanaco_server.observability import logs
from guanaco_server.observability.exposition import serving
from guanaco_server.runtime import threads
from guanaco_server.runtime.data_dir import PSEUDONYM_KEY, DataDir
from guanaco_server.runtime.garbage import GarbageCollection
from guanaco_server.settings import Settings
from guanaco_server.submissions.pipeline.engine import make_tables

logger = logging.getLogger(__name__)

# Time that a thread waits for the interpreter before it asks the thread that holds it. With Python's 5 ms the event loop, which
# gives it away at each system call, stood still for 320 ms while several threads read from a Hub, and for 50 with 0.5.
SWITCH_S = 0.000_5
STOP_PATIENCE_S = 5  # open streams get this long when the platform stops; an API that others replace waits for its own


@dataclass(frozen=True)
class StartupInfo:
    """``admin_key`` is there on the first start only, and nowhere else ever again."""

    url: str
    admin_key: str | None
    role: str


def run(settings: Settings, on_ready: Callable[[StartupInfo], None]) -> int:
    """Serve until SIGINT or SIGTERM; the exit status. InvalidSettings, DataDirInUse and StoreUnreachable before anything is started."""
    require_shared(settings)
    hide_secrets()
    hide_memory()
    _allow_many_files()
    logs.configure(settings.log_level, settings.log_format, settings.secrets)
    _check_confinement(settings)
    with DataDir(settings.data_dir) as data_dir, _listen(settings) as listener:
        _make_new_tables(settings)
        platform = build_platform(settings, data_dir)
        asyncio.run(platform.check())
        gateways = Gateways(settings, data_dir, listener.getsockname()[1])
        server = _ApiServer(platform, settings, listener, gateways, on_ready)
        with serving(platform.metrics, settings.host, settings.metrics_port):
            server.run(sockets=[listener])
        return 0 if server.is_ready_announced else 1


def _check_confinement(settings: Settings) -> None:
    """Say which layers this machine lacks; InvalidSettings where they are required."""
    if missing := layers.unavailable():
        logger.warning("strangers' files are confined without: %s", ", ".join(missing))
    if settings.require_confinement:
        try:
            examined = layers.examine()
        except (OSError, ValueError, subprocess.SubprocessError):
            raise InvalidSettings(
                "require_confinement is set, and the layers could not be tried out.",
                hint="`guanaco doctor` tries them, too.",
            ) from None
        layers.require(examined)


def _make_new_tables(settings: Settings) -> None:
    """Make a new SQLite's tables in a child process: what that imports takes 18 MB, which are gone when it ends.

    Where the child fails, the start makes them itself, and says what is wrong.
    """
    if settings.database_url is not None or (settings.data_dir / "guanaco.db").exists():
        return
    child = os.fork()  # no thread runs yet
    if child:
        os.waitpid(child, 0)
        return
    try:
        preparation.migrate(settings)
        make_tables(settings.workflow_database_url)
    finally:
        os._exit(0)


def _allow_many_files() -> None:
    """A stream holds two sockets, and many systems allow a process 1,024 files until it asks for more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def require_shared(settings: Settings) -> None:
    """InvalidSettings where processes of different roles would not see the same things."""
    if settings.gateways > 1 and settings.database_url is None:
        raise InvalidSettings(
            f"With gateways={settings.gateways} a database_url must be given.",
            hint="Several gateway processes share a PostgreSQL.",
        )
    if settings.database_replica_url is not None and settings.database_url is None:
        raise InvalidSettings(
            "database_replica_url is set, and database_url is not.",
            hint="A replica is one of a PostgreSQL: name that in GUANACO_DATABASE_URL.",
        )
    if settings.role == "all":
        return
    lent_key = settings.data_dir / PSEUDONYM_KEY
    needed = {
        "database_url": settings.database_url,
        "artifacts_url": settings.artifacts_url or settings.artifacts_dir,
        "pseudonym_key": settings.pseudonym_key or (lent_key if lent_key.exists() else None),
    }
    if missing := [name for name, value in needed.items() if value is None]:
        raise InvalidSettings(
            f"With role={settings.role} these settings must be given: {', '.join(missing)}.",
            hint="Processes of different roles share a PostgreSQL, an artifact store and a key.",
        )


class _ApiServer(GuardedServer):
    """Tells ``on_ready`` once the platform runs and requests are taken."""

    def __init__(
        self,
        platform: Platform,
        settings: Settings,
        listener: socket.socket,
        gateways: Gateways,
        on_ready: Callable[[StartupInfo], None],
    ) -> None:
        door = _front_door(platform, settings)
        super().__init__(
            uvicorn.Config(
                create_app(platform),
                log_config=None,
                access_log=False,
                loop="uvloop",
                http=protocol_of(door),
                ws="none",
                timeout_graceful_shutdown=_patience_s(settings),
                lifespan="off",  # serve() starts and stops the platform
                server_header=False,
                proxy_headers=False,  # app.py does that, behind the gateway
            ),
            door,
        )
        self._platform = platform
        self._url = f"http://{settings.host}:{listener.getsockname()[1]}"
        self._gateways = gateways
        self._on_ready = on_ready
        self._garbage = GarbageCollection(lambda: platform.metrics.turns_in_flight)
        self.is_ready_announced = False
        self._starting: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do as uvicorn, but do not raise the signal again at the end: stopping is what was asked, and it was done."""
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the platform, answer requests until a signal, and stop the platform. A start that fails raises its error."""
        self._starting = asyncio.current_task()
        with self.capture_signals():
            try:
                async with self._platform.running():
                    self._starting = None
                    await super().serve(sockets)
            except asyncio.CancelledError:
                if self._starting is None:
                    raise

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Do as uvicorn, and end a start at once: it may wait for its database for minutes."""
        super().handle_exit(sig, frame)
        if self._starting is not None:
            self._starting.get_loop().call_soon_threadsafe(self._end_start)

    def _end_start(self) -> None:
        if self._starting is not None:
            self._starting.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            key: CreatedKey | None = self._platform.first_key
            role = self._platform.settings.role
            if role != "worker":
                await self._gateways.start()
            self._garbage.start()
            sys.setswitchinterval(SWITCH_S)
            self.is_ready_announced = True
            await threads.FILES.run(
                self._on_ready, StartupInfo(self._url, key.key if key else None, role)
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._garbage.stop()
        await self._gateways.stop()
        await super().shutdown(sockets)


def _front_door(platform: Platform, settings: Settings) -> FrontDoor:
    limits = DoorLimits.of(settings, MAX_BODY_BYTES)
    return FrontDoor(limits, settings.trusted_proxies, platform.metrics)


def _patience_s(settings: Settings) -> int:
    return int(settings.reply_timeout_s) if settings.role == "api" else STOP_PATIENCE_S


LISTEN_HINTS = {
    errno.EADDRINUSE: "Another program uses it: choose another --port.",
    errno.EACCES: "Ports under 1024 need a right of their own: choose another --port.",
}


def _listen(settings: Settings) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if settings.reuse_port or settings.gateways > 1:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise InvalidSettings(
            f"Cannot listen on {settings.host}:{settings.port}: {error.strerror}.",
            hint=LISTEN_HINTS.get(error.errno or 0, "Give an address of this machine with --host."),
        ) from None
    return listener
