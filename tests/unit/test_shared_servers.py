"""Seasons on a few model servers that all submissions share, by who sleeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guanaco.simulations import SharedServers, SimulationRequest, SleepPolicy
from guanaco_cli.main import run
from guanaco_server.simulation.engines import SharedPlan, shared_season, simulate_shared

SMALL = SimulationRequest(submissions=5, seasons=2, spread=0.25, most_ratings=20_000)
SERVERS = SharedServers(engines=2, swap_s=30, rating_s=10)
RULES = "name: Autumn\nstarts_at: 2026-12-01T00:00:00Z\nassignment: {kind: decide, within: 0.1}\n"


def plan(policy: SleepPolicy, **servers: float) -> SharedPlan:
    return SharedPlan(SMALL, SERVERS.model_copy(update=servers), 0.1, policy)


def test_worth_reaches_a_verdict_with_fewer_gpu_hours_reproducibly() -> None:
    worth, use = (simulate_shared(plan(policy)) for policy in ("worth", "least_useful"))  # type: ignore[arg-type]
    assert (worth.decided, use.decided, worth.wrong) == (1, 1, 0)
    assert worth.gpu_hours < use.gpu_hours
    assert shared_season(plan(SleepPolicy.WORTH), 1) == shared_season(plan(SleepPolicy.WORTH), 1)


def test_every_second_of_every_server_counts() -> None:
    season = shared_season(plan(SleepPolicy.LEAST_USEFUL, engines=1, swap_s=7), 1)
    assert season.seconds == season.ratings * 10 + season.changes * 7


def test_changes_are_fewer_where_they_cost_more() -> None:
    cheap, dear = (
        simulate_shared(plan(SleepPolicy.WORTH, swap_s=swap_s)).changes for swap_s in (0.0, 3_600.0)
    )
    assert dear < cheap


def test_what_is_not_decided_says_so() -> None:
    few = SharedPlan(
        SMALL.model_copy(update={"most_ratings": 200}), SERVERS, 0.005, SleepPolicy.WORTH
    )
    found = shared_season(few, 1)
    assert (found.is_decided, found.ratings) == (False, 200)


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "autumn.yaml"
    path.write_text(RULES)
    return str(path)


FEW = [
    "--submissions", "4", "--seasons", "2", "--spread", "0.3", "--most-ratings", "500", "--policy", "decide",
]  # fmt: skip


def test_the_command_compares_who_sleeps(rules: str, capsys: Any) -> None:
    assert run(["simulate", rules, *FEW, "--engines", "2", "--swap-s", "0.6"]) == 0
    said = capsys.readouterr()
    assert "who sleeps" in said.out
    assert "least_useful" in said.out
    assert (
        "4 submissions on 2 model servers of 1 GPUs that are never idle: a change takes 0.6 s"
        in said.err
    )


def test_the_command_prints_it_as_json(rules: str, capsys: Any) -> None:
    assert run(["simulate", rules, *FEW, "--engines", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["servers"] == {"engines": 1, "swap_s": 10.0, "rating_s": 10.0}
    assert [one["policy"] for one in found["shared"]] == ["least_useful", "worth"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engines", "4"], "With 4 model servers none of 4 submissions has to sleep."),
        (["--engines", "0"], "engines: "),
        (["--engines", "2", "--swap-s", "-1"], "--swap-s: "),
    ],
)
def test_wrong_servers_are_one_sentence(
    rules: str, capsys: Any, options: list[str], said: str
) -> None:
    assert run(["simulate", rules, *FEW, *options]) != 0
    assert said in capsys.readouterr().err
