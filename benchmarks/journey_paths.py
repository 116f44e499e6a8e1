"""Submit to first feedback by the path that a submission takes to its model server, on one platform with real vLLM.

start    no server runs and nothing is imported yet: the first submission after the platform's start
unknown  a shape that no server has: a server is forked from the process that has imported vLLM
known    a hot server of the shape, whose submission sleeps, takes the weights of another person's model of the same kind
shared   the artifact is served already: another temperature of the same repo
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.swap.figures import show, spread, talk
from benchmarks.swap.local import phase_of, wait_until
from benchmarks.swap.stage import SETTINGS
from guanaco import Client
from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.submissions import GenerationParams, Stage, Status, Submission
from guanaco_server.demo.hub_server import LocalHub
from guanaco_server.demo.tiny_repo import INTERMEDIATE
from tests.fixtures.named_models import (
    make_named_repo,
    save_as_another_trainer,
    spoken_tokens,
)
from tests.fixtures.up import Up

PARAMS = GenerationParams(temperature=0, max_output_tokens=12, stopping_words=[])
USERS = 50  # of whom one at least meets a newcomer
SHAPE_STEP = 16  # shapes differ in the width of a layer
OF_SWAPS = {
    "gateways": 1,
    "max_model_servers": 0,
    "feedback_target": 1,  # with one rating it may sleep
    "sleep_idle_s": 1,
    "scale_interval_s": 0.25,
    "hot_engines": 1,
    "hot_engine_requests": 0,
}
TAKEN_OVER = "has taken the model's weights; no process was started"


@dataclass(frozen=True)
class Trip:
    """One submission's way to its first feedback, in seconds."""

    total_s: float
    stages_s: dict[str, float]
    window_s: float
    is_by_swap: bool

    @property
    def server_s(self) -> float:
        return self.stages_s.get(Stage.DEPLOY, 0.0)

    @property
    def own_s(self) -> float:
        return self.total_s - self.server_s - self.window_s


class Repos:
    """Writes repos of the Hub, each with a model of its own."""

    def __init__(self, hub: Path) -> None:
        self._hub = hub
        self._tokens: Iterator[int] = iter(spoken_tokens())
        self._count = 0

    def make(self, shape: int, *, by_another: bool = False) -> str:
        """Write one of this shape; ``by_another`` person, whose small files are other ones."""
        self._count += 1
        repo = f"acme/named{self._count}"
        make_named_repo(
            self._hub / repo,
            next(self._tokens),
            intermediate=INTERMEDIATE + shape * SHAPE_STEP,
            then=next(self._tokens),
        )
        if by_another:
            save_as_another_trainer(self._hub / repo)
        return repo


def bench_paths(folder: Path, python: Path, rounds: int) -> dict[str, Any]:
    """Take each path this many times; return the seconds of each part."""
    trips: dict[str, list[Trip]] = {"start": [], "unknown": [], "known": [], "shared": []}
    repos = Repos(folder / "hub")
    with LocalHub(folder / "hub") as hub:
        settings = {k: v for k, v in SETTINGS.items() if not k.startswith("stress_")}
        settings |= OF_SWAPS | {"hub_endpoint": hub.url, "engine_python": str(python)}
        for number in range(rounds):
            talk(f"round {number + 1}")
            up = Up(folder / f"up-{number}", **settings)
            up.start(is_cold=True)
            try:
                for path, trip in _round(up, repos, number):
                    talk(f"  {path:8s} {trip.total_s:5.1f} s, model server {trip.server_s:.1f} s")
                    trips[path].append(trip)
            finally:
                up.stop()
    for path, taken in trips.items():
        show(
            f"{path}, s",
            {
                "submit to first feedback": [trip.total_s for trip in taken],
                "model server (stage deploy)": [trip.server_s for trip in taken],
                "stress window": [trip.window_s for trip in taken],
                "platform's own share": [trip.own_s for trip in taken],
                "platform and model server": [trip.total_s - trip.window_s for trip in taken],
            },
        )
    return {path: _figures(taken) for path, taken in trips.items()}


def _round(up: Up, repos: Repos, number: int) -> Iterator[tuple[str, Trip]]:
    """Take the paths one after another; after each its submission sleeps, and its server stays as the hot one."""
    client, app = up.client(Role.DEVELOPER, "ada"), up.client(Role.BACKEND, "app")
    shape = 2 * number
    for path, of_shape in (("start", shape), ("unknown", shape + 1), ("known", shape + 1)):
        repo = repos.make(of_shape, by_another=path == "known")
        trip, made = _travel(client, app, repo)
        assert trip.is_by_swap == (path == "known"), f"{path} went another way"
        yield path, trip
        if path == "known":
            warmer = {"params": PARAMS.model_copy(update={"temperature": 0.5})}
            yield "shared", _travel(client, app, repo, **warmer)[0]
            return
        client.deactivate(made.id)
        wait_until(lambda made=made: phase_of(up, made.id) == "sleeping", "sleep")  # type: ignore[misc]


def _travel(client: Client, app: Client, repo: str, **columns: Any) -> tuple[Trip, Submission]:
    began = time.perf_counter()
    entered = client.submit(repo, **({"params": PARAMS} | columns))
    made = client.wait(entered.id)
    assert made.status is Status.DEPLOYED, made.failure
    talk_id = _opened_with(app, made.id)
    app.send(talk_id, "Hello!")
    app.rate(talk_id, True, "Good.")
    assert client.feedback(made.id), "no feedback"
    total_s = time.perf_counter() - began
    stages = {str(run.stage): run.duration_s or 0.0 for run in made.stages}
    log = "\n".join(event.message for event in client.events(made.id, follow=False))
    report = client.stress(made.id)
    return Trip(total_s, stages, report.duration_s, TAKEN_OVER in log), made


def _opened_with(app: Client, submission_id: str) -> str:
    """Let users come until one is sent to the submission; return that conversation's id."""
    bot = next(iter(BOTS.values()))
    for number in range(USERS):
        opened = app.open_conversation(f"{submission_id} {number}", bot, consent=True)
        if opened.submission_id == submission_id:
            return opened.conversation_id
    raise AssertionError(f"none of {USERS} users was sent to {submission_id}")


def _figures(taken: list[Trip]) -> dict[str, Any]:
    return {
        "total_s": spread([trip.total_s for trip in taken]),
        "server_s": spread([trip.server_s for trip in taken]),
        "window_s": spread([trip.window_s for trip in taken]),
        "own_s": spread([trip.own_s for trip in taken]),
        "stages_s": {
            stage: spread([trip.stages_s[stage] for trip in taken]) for stage in taken[0].stages_s
        },
    }
