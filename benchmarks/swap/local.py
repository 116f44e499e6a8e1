"""One `guanaco up` with real vLLM over named models, for what is measured through a whole platform."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import NullPool, create_engine, text

from benchmarks.swap.stage import PARAMS, SETTINGS, NamedModel, make_models
from guanaco import Client
from guanaco.bots import BOTS
from guanaco.chat import Reply, Token
from guanaco.submissions import Status
from guanaco_server.demo.hub_server import LocalHub
from tests.fixtures.up import Up

OTHER = {"gateways": 1, "max_model_servers": 0, "wake_wait_s": 120}
WITHIN_S = 180.0


@contextmanager
def platform(folder: Path, python: Path, **settings: Any) -> Iterator[tuple[Up, list[NamedModel]]]:
    """A platform without submissions, and the models whose repos its Hub has."""
    models = make_models(folder)
    with LocalHub(folder / "hub") as hub:
        given = SETTINGS | OTHER | {"hub_endpoint": hub.url, "engine_python": str(python)}
        up = Up(folder / "up", **(given | settings))
        up.start()
        try:
            yield up, models
        finally:
            up.stop()


def publish(client: Client, repo: str, **columns: Any) -> str:
    made = client.wait(client.submit(repo, **({"params": PARAMS} | columns)).id)
    assert made.status is Status.DEPLOYED, made.failure
    return made.id


def open_with(client: Client, submission_id: str, user: str = "user-1") -> str:
    bot = next(iter(BOTS.values()))
    opened = client.open_conversation(user, bot, consent=True, model=submission_id)
    return opened.conversation_id


def first_token_s(client: Client, conversation_id: str) -> tuple[float, str]:
    """Send a message; the seconds until the first piece of the reply, and the whole reply."""
    began, first_s, content = time.perf_counter(), 0.0, ""
    for piece in client.stream_send(conversation_id, "Hello"):
        if isinstance(piece, Token | Reply) and not first_s:
            first_s = time.perf_counter() - began
        if isinstance(piece, Reply):
            content = piece.content
    return first_s, content


def phase_of(up: Up, submission_id: str) -> str:
    engine = create_engine(f"sqlite:///{up.data_dir}/guanaco.db", poolclass=NullPool)
    query = text("SELECT phase FROM deployments WHERE submission_id = :id")
    with engine.connect() as tables:
        return str(tables.execute(query, {"id": submission_id}).scalar_one())


def wait_until(holds: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < until, f"no {what} within {WITHIN_S:g} s"
        time.sleep(0.05)
