"""Measures how long a user waits for a submission that sleeps: until its first token, over a whole platform.

swap     a hot server of its shape takes its weights
kept     its own server was kept
start    no server was kept: one is forked from the fork server
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.swap.figures import show, spread, talk
from benchmarks.swap.local import (
    first_token_s,
    open_with,
    phase_of,
    platform,
    publish,
    wait_until,
)
from guanaco import Client
from tests.fixtures.up import Up

SLEEPY = {
    "feedback_target": 1,  # with one rating it may sleep
    "sleep_idle_s": 1,
    "scale_interval_s": 0.25,
    "hot_engines": 1,
    "hot_engine_requests": 0,
}


def bench_wake(folder: Path, python: Path, rounds: int) -> dict[str, Any]:
    with platform(folder, python, **SLEEPY) as (up, models):
        pair = [model for model in models if model.shape == models[0].shape]
        client = up.client()
        for model in pair:
            model.submission_id = publish(client, model.repo)
        talks = {model.submission_id: open_with(client, model.submission_id) for model in pair}
        for name, talk_id in talks.items():
            client.send(talk_id, "Hello")
            client.rate(talk_id, True, "Good.")
            client.deactivate(name)
        waits: dict[str, list[float]] = {"swap": [], "kept": [], "start": []}
        for number in range(rounds + 1):
            model = pair[number % 2]
            waits["swap"].append(_wake(up, client, talks, model.submission_id, model.says))
            waits["kept"].append(_wake(up, client, talks, model.submission_id, model.says))
        swaps = up.log.count("has taken over a server of its shape")
        assert swaps >= rounds, f"{swaps} swaps in {rounds} rounds"
        up.stop()
        up.settings = {**up.settings, "hot_engines": 0}
        up.start()
        client = up.client()
        for number in range(rounds + 1):
            model = pair[number % 2]
            waits["start"].append(_wake(up, client, talks, model.submission_id, model.says))
    counted = {name: each[1:] for name, each in waits.items()}  # the first finds cold caches
    show("Wake: first token after, s", counted)
    return {name: spread(each) for name, each in counted.items()}


def _wake(
    up: Up, client: Client, talks: dict[str, str], submission_id: str, says: tuple[str, ...]
) -> float:
    """Wait until all sleep, and talk to one."""
    wait_until(lambda: all(phase_of(up, name) == "sleeping" for name in talks), "sleep")
    if up.settings["hot_engines"] == 0:
        wait_until(lambda: not up.model_servers(), "end of the model servers")
    waited_s, content = first_token_s(client, talks[submission_id])
    assert set(content.split()) <= set(says), f"{submission_id} said {content!r}"
    talk(f"  {submission_id} after {waited_s:.2f} s")
    return waited_s
