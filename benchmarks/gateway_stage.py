"""Provides what the gateway benchmark runs on: a PostgreSQL with conversations of twenty turns, a mock model server, peers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from guanaco.accounts import KeyRequest, Role
from guanaco.chat import Bot, Sender
from guanaco.prompts import PromptFormatter
from guanaco.submissions import GenerationParams, Status
from guanaco_server.accounts.room import build_accounts
from guanaco_server.chat.tables import ConversationRow, MessageRow
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.demo.tiny_repo import make_tiny_repo
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime.clock import SystemClock
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.postgres import PostgresServer

ROOT = Path(__file__).parents[1]
NATIVE = Path(__file__).with_name("native")
SUBMISSION = "bench-model_v1"
ARTIFACT = "be" * 32  # any key of the right form
TURNS = 20
LINE = "The lamp is lit and the sea is calm tonight, but a storm may come before the morning does."
GATEWAY_CORE, OTHER_CORE = "0", "1"


@dataclass(frozen=True)
class Stage:
    """``key`` opens the gateway."""

    folder: Path
    database_url: str
    key: str
    mock_port: int

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"


@contextmanager
def built() -> Iterator[Path]:
    """A folder with the mock and the load generator, compiled."""
    with tempfile.TemporaryDirectory(prefix="guanaco-bench-") as folder:
        for name in ("mock", "load"):
            subprocess.run(
                ["gcc", "-O2", "-w", "-o", Path(folder) / name, NATIVE / f"{name}.c"], check=True
            )
        yield Path(folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str | Path],
    core: str,
    log: Path,
    environment: dict[str, str] | None = None,
    stop: str = "terminate",
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["taskset", "-c", core, *map(str, command)],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=os.environ | (environment or {}),
        )
    try:
        yield process
    finally:
        getattr(process, stop)()
        process.wait(30)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            if httpx.get(url, trust_env=False, timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{url} did not come up:\n{log.read_text()[-2_000:]}")
        time.sleep(0.05)


def prepare(
    folder: Path, postgres: PostgresServer, mock_port: int, conversations: dict[str, int]
) -> Stage:
    """Fill a new database, and an artifact store with nothing but a tokenizer. So many ``conversations`` are named NAME-0, NAME-1, …"""
    url = postgres.url(postgres.create())
    artifact = folder / "artifacts" / ARTIFACT
    make_tiny_repo(artifact)
    (artifact / "manifest.json").write_text("{}")
    ids = [f"{name}-{number}" for name, count in conversations.items() for number in range(count)]
    key = asyncio.run(_fill(url, mock_port, ids))
    return Stage(folder, url.replace("postgresql+psycopg", "postgresql"), key, mock_port)


async def _fill(url: str, mock_port: int, conversations: list[str]) -> str:
    database, clock = Database(url), SystemClock()
    await upgrade(database)
    accounts = build_accounts(database, clock).accounts
    key = (await accounts.create_key(KeyRequest(role=Role.BACKEND, name="bench"))).key
    account = await accounts.authenticate(key)
    now = clock.now()
    async with database.write() as session:
        session.add(
            SubmissionRow(
                id=SUBMISSION,
                account_id=account.id,
                developer="bench",
                repo="bench/model",
                name="bench",
                status=Status.DEPLOYED,
                params=GenerationParams(max_input_tokens=2_048, stopping_words=[]),
                formatter=PromptFormatter(),
                artifact_key=ARTIFACT,
                request_hash="",
                created_at=now,
                updated_at=now,
            )
        )
        await session.flush()
        session.add(
            DeploymentRow(
                submission_id=SUBMISSION,
                run=1,
                artifact_key=ARTIFACT,
                max_model_tokens=4_096,
                phase=Phase.READY,
                endpoint=f"http://127.0.0.1:{mock_port}",
                endpoints=[f"http://127.0.0.1:{mock_port}"],
                updated_at=now,
            )
        )
    bot = Bot(name="Nia", memory="A cheerful lighthouse keeper.", first_message="Ahoy!")
    for begin in range(0, len(conversations), 200):
        ids = conversations[begin : begin + 200]
        async with database.write() as session:
            for conversation_id in ids:
                session.add(
                    ConversationRow(
                        id=conversation_id,
                        account_id=account.id,
                        submission_id=SUBMISSION,
                        user_id=conversation_id,
                        user_name="Sam",
                        bot=bot,
                        created_at=now,
                        message_count=TURNS,
                    )
                )
            await session.flush()
            session.add_all(
                MessageRow(
                    id=f"{conversation_id}-{position}",
                    conversation_id=conversation_id,
                    position=position + 1,
                    sender=Sender.USER if position % 2 == 0 else Sender.BOT,
                    content=LINE,
                    created_at=now,
                    is_deleted=False,
                )
                for conversation_id in ids
                for position in range(TURNS)
            )
    await database.close()
    return key


@contextmanager
def gateway(
    stage: Stage, core: str = GATEWAY_CORE, **settings: object
) -> Iterator[tuple[int, int]]:
    """Our gateway as `guanaco up --role api` starts it; its port and process id."""
    port, log = free_port(), stage.folder / "gateway.log"
    values = {
        "port": port,
        "data_dir": str(stage.folder / f"data-{port}"),
        "database_url": stage.database_url,
        "artifacts_dir": str(stage.artifacts),
        "pseudonym_key": "bench",
        "log_level": "WARNING",
        "replica_max_streams": 20_000,
    } | settings
    environment = {f"GUANACO_{name.upper()}": str(value) for name, value in values.items()}
    environment["GUANACO_PROFILE"] = str(stage.folder / "profile.json")
    command = [sys.executable, "-m", "guanaco_cli", "up", "--role", "api"]
    with running(command, core, log, environment) as process:
        wait_for(f"http://127.0.0.1:{port}/readyz", process, log)
        yield port, process.pid


@contextmanager
def mock(folder: Path, port: int) -> Iterator[int]:
    log = folder / "mock.log"
    with running([folder / "mock", "-p", str(port)], OTHER_CORE, log) as process:
        wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield port


@contextmanager
def nginx(folder: Path, upstream: int) -> Iterator[int]:
    port, log = free_port(), folder / "nginx.log"
    (folder / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {log};"
        "events { worker_connections 32768; } worker_rlimit_nofile 65536;"
        f"http {{ access_log off; upstream m {{ server 127.0.0.1:{upstream}; keepalive 256; }}"
        f"server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://m;"
        'proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}}'
    )
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    with running([binary, "-c", folder / "nginx.conf"], GATEWAY_CORE, log) as process:
        wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield port


@contextmanager
def fastapi_httpx(folder: Path, upstream: int) -> Iterator[int]:
    port, log = free_port(), folder / "fastapi.log"
    command = [
        sys.executable,
        str(Path(__file__).with_name("gateway_peer.py")),
        str(port),
        str(upstream),
    ]
    with running(command, GATEWAY_CORE, log) as process:
        wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield port


@contextmanager
def vllm_router(folder: Path, python: Path, upstream: int) -> Iterator[int]:
    """In an environment of its own."""
    port, log = free_port(), folder / "vllm-router.log"
    command: list[str | Path] = [python, "-m", "vllm_router.launch_router", "--worker-urls", f"http://127.0.0.1:{upstream}"]  # fmt: skip
    command += ["--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    command += ["--prometheus-port", str(free_port())]
    with running(command, GATEWAY_CORE, log) as process:
        wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield port


def load(folder: Path, *options: object) -> dict[str, Any]:
    """One run of the load generator; its figures."""
    done = subprocess.run(
        ["taskset", "-c", OTHER_CORE, folder / "load", *map(str, options)],
        capture_output=True,
        text=True,
        check=True,
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures
