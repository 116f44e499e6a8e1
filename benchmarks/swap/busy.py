"""The chat of a busy engine's submission, turn by turn, while something is done beside it.

alone    nothing else
check    a sibling on its engine is checked
stress   a submission of another artifact is checked and stressed on a server of its own
swap     another server of the machine is swapped again and again
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.swap.figures import percentile, talk
from benchmarks.swap.local import first_token_s, open_with, platform, publish
from benchmarks.swap.stage import PARAMS, NamedModel
from guanaco import Client
from guanaco.errors import GuanacoError
from tests.fixtures.up import Up

USERS = 2
SETTINGS = {
    "max_model_servers": 2,  # the busy one, and one for all others in turn
    "preempt_quiet_s": 0.5,
    "stress_duration_s": 5.6,
    "stress_rate": 4,
    "stress_requests": 16,
}


class Chat:
    """Users who talk to one submission until they are stopped; each turn's seconds, and what failed."""

    def __init__(self, up: Up, submission_id: str) -> None:
        self.turns_s: list[float] = []
        self.failed: list[str] = []
        self._is_over = threading.Event()
        self._threads = []
        for number in range(USERS):
            client = up.client()
            opened = open_with(client, submission_id, f"user-{number}")
            client.send(opened, "Hello")  # it is awake from here on
            self._threads.append(threading.Thread(target=self._talk, args=(client, opened)))

    def __enter__(self) -> Chat:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _talk(self, client: Client, conversation_id: str) -> None:
        while not self._is_over.is_set():
            began = time.perf_counter()
            try:
                first_token_s(client, conversation_id)
            except GuanacoError as error:
                self.failed.append(str(error))
            self.turns_s.append(time.perf_counter() - began)


def bench_busy(folder: Path, python: Path, turns: int) -> dict[str, Any]:
    """Take at least this number of turns alone, and as many as each disturbance lasts for."""
    with platform(folder, python, **SETTINGS) as (up, models):
        client = up.client()
        busy, beside, *_ = models  # of two shapes
        swapped = [model for model in models if model.shape == beside.shape]
        submission_id = publish(client, busy.repo)
        talks = []
        for model in swapped:
            model.submission_id = publish(client, model.repo)
            talks.append(open_with(client, model.submission_id, "user-of-swaps"))
            client.deactivate(model.submission_id)
        parts: dict[str, Callable[[Chat], None]] = {
            "alone": lambda chat: _last(chat, turns),
            "check": lambda _: _publish_and_end(client, busy.repo),
            "swap": lambda chat: _swap(client, talks, chat, turns),
            "stress": lambda _: _publish_and_end(client, _another(models, busy, swapped)),
        }
        found: dict[str, Any] = {}
        for name, disturb in parts.items():
            with Chat(up, submission_id) as chat:
                disturb(chat)
            found[name] = _told(name, chat)
        found["swaps"] = up.log.count("has taken over a server of its shape")
    alone = found["alone"]["p99_s"]
    for name in ("check", "swap", "stress"):
        found[name]["p99_ratio"] = round(found[name]["p99_s"] / alone, 2)
    return found


def _last(chat: Chat, turns: int) -> None:
    while len(chat.turns_s) < turns:
        time.sleep(0.05)


def _publish_and_end(client: Client, repo: str) -> None:
    """Enter a submission with parameters of its own, which is checked, and tear it down."""
    made = publish(client, repo, params=PARAMS.model_copy(update={"max_output_tokens": 10}))
    client.teardown(made)


def _another(models: list[NamedModel], busy: NamedModel, swapped: list[NamedModel]) -> str:
    return next(model.repo for model in models if model is not busy and model not in swapped)


def _swap(client: Client, talks: list[str], chat: Chat, turns: int) -> None:
    """Talk to the two in turn, each of which takes the other's server."""
    while len(chat.turns_s) < turns:
        for talk_id in talks:
            client.send(talk_id, "Hello")


def _told(name: str, chat: Chat) -> dict[str, Any]:
    told = {
        "turns": len(chat.turns_s),
        "failed": len(chat.failed),
        "p50_s": round(percentile(chat.turns_s, 0.5), 4),
        "p99_s": round(percentile(chat.turns_s, 0.99), 4),
    }
    talk(f"  {name:8s} {told} {chat.failed[:2]}")
    return told
