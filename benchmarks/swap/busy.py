"""The chat of a busy engine's submission, turn by turn, while something is done beside it.

alone    nothing else, half of the turns before the other parts and half after
check    a sibling on its engine is checked and stressed, one after another
swap     another server of the machine is swapped again and again
stress   a submission of another artifact is checked and stressed on a server of its own, one after another; a spare, so that nothing starts

Each part goes on until it has its number of turns: of `check` and `stress` those that overlap the content checks (the stage
`deploy`) and the stress check, each. Their figures are by stage; a turn that overlaps two counts for both. MOST_ROUNDS end a part early, and
its turns say so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.swap.figures import percentile, talk
from benchmarks.swap.local import first_token_s, open_with, platform, publish
from benchmarks.swap.stage import PARAMS, NamedModel
from guanaco import Client
from guanaco.errors import GuanacoError
from guanaco.submissions import Stage, StageRun
from tests.fixtures.up import Up

USERS = 2
MOST_ROUNDS = 60  # submissions of one part
MEASURED = (Stage.DEPLOY, Stage.STRESS)  # the content checks are in the first
# A server of the same length, so that it is shared; one token more, so that the load is sent and not reused.
SIBLING = PARAMS.model_copy(
    update={
        "max_output_tokens": PARAMS.max_output_tokens + 1,
        "max_input_tokens": PARAMS.max_input_tokens - 1,
    }
)
SETTINGS = {
    "max_model_servers": 2,  # the busy one, and one for all others in turn
    "preempt_quiet_s": 0.5,
    "hot_engines": 1,
    "hot_engine_requests": 0,
    "stress_duration_s": 5.6,
    "stress_rate": 4,
    "stress_requests": 16,
}


@dataclass(frozen=True)
class Turn:
    """One turn of the chat: when it began and ended, by the machine's clock, and its seconds."""

    began: datetime
    ended: datetime
    seconds: float

    def overlaps(self, stage: StageRun) -> bool:
        return self.began < (stage.ended_at or self.ended) and stage.started_at < self.ended


class Chat:
    """Users who talk to one submission until they are stopped; each turn, and what failed."""

    def __init__(self, up: Up, submission_id: str) -> None:
        self.turns: list[Turn] = []
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
            began, clock = datetime.now(UTC), time.perf_counter()
            try:
                first_token_s(client, conversation_id)
            except GuanacoError as error:
                self.failed.append(str(error))
            seconds = time.perf_counter() - clock
            self.turns.append(Turn(began, datetime.now(UTC), seconds))


def bench_busy(folder: Path, python: Path, turns: int) -> dict[str, Any]:
    """Take at least this number of turns alone, while others are swapped, and during each stage of what is checked."""
    with platform(folder, python, **SETTINGS) as (up, models):
        client = up.client()
        busy, beside, *_ = models  # of two shapes
        swapped = [model for model in models if model.shape == beside.shape]
        talks = []
        for model in swapped:
            model.submission_id = publish(client, model.repo)
            talks.append(open_with(client, model.submission_id, "user-of-swaps"))
            client.deactivate(model.submission_id)
        submission_id = publish(client, busy.repo)  # last, so that it makes room for no other
        other = _another(models, busy, swapped)
        alone: list[Turn] = []
        found: dict[str, Any] = {}

        def chat_alone() -> None:
            with Chat(up, submission_id) as chat:
                _last(chat, turns // 2)
            alone.extend(chat.turns)

        chat_alone()
        found["check"] = _checked(up, client, submission_id, busy.repo, turns)
        with Chat(up, submission_id) as chat:
            _swap(client, talks, chat, turns)
        found["swap"] = _told("swap", chat.turns, chat.failed)
        found["stress"] = _checked(up, client, submission_id, other, turns)
        chat_alone()
        found["alone"] = _told("alone", alone, [])
        found["swaps"] = up.log.count("has taken over a server of its shape")
    p99_s = found["alone"]["p99_s"]
    for told in (found["swap"], *found["check"].values(), *found["stress"].values()):
        if "p99_s" in told:
            told["p99_ratio"] = round(told["p99_s"] / p99_s, 2)
    return found


def _checked(
    up: Up, client: Client, submission_id: str, repo: str, turns: int
) -> dict[str, dict[str, Any]]:
    """Enter submissions one after another while users chat, until enough turns overlap each stage; the figures by stage."""
    stages: list[StageRun] = []
    client.teardown(publish(client, repo, params=SIBLING))  # what it starts is not measured
    with Chat(up, submission_id) as chat:
        for _ in range(MOST_ROUNDS):
            made = publish(client, repo, params=SIBLING)
            stages += client.submission(made).stages
            client.teardown(made)
            counts = {stage.value: len(during(chat.turns, stages, stage)) for stage in MEASURED}
            talk(f"  {repo}: turns {counts}")
            if min(counts.values()) >= turns:
                break
    return {
        stage.value: _told(f"{repo} {stage}", during(chat.turns, stages, stage), chat.failed)
        for stage in MEASURED
    }


def during(turns: Sequence[Turn], stages: Sequence[StageRun], stage: Stage) -> list[Turn]:
    """Return the turns that overlap a run of this stage."""
    runs = [one for one in stages if one.stage is stage]
    return [turn for turn in list(turns) if any(turn.overlaps(one) for one in runs)]


def _last(chat: Chat, turns: int) -> None:
    while len(chat.turns) < turns:
        time.sleep(0.05)


def _another(models: list[NamedModel], busy: NamedModel, swapped: list[NamedModel]) -> str:
    return next(model.repo for model in models if model is not busy and model not in swapped)


def _swap(client: Client, talks: list[str], chat: Chat, turns: int) -> None:
    """Talk to the two in turn, each of which takes the other's server."""
    while len(chat.turns) < turns:
        for talk_id in talks:
            client.send(talk_id, "Hello")


def _told(name: str, turns: Sequence[Turn], failed: Sequence[str]) -> dict[str, Any]:
    seconds = [turn.seconds for turn in turns]
    told: dict[str, Any] = {"turns": len(seconds), "failed": len(failed)}
    if seconds:
        told |= {
            "p50_s": round(percentile(seconds, 0.5), 4),
            "p99_s": round(percentile(seconds, 0.99), 4),
        }
    talk(f"  {name} {told} {failed[:2]}")
    return told
