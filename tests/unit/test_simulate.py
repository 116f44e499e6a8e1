"""`guanaco simulate`, and the seasons behind it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guanaco.competitions import AssignmentKind, AssignmentRule, RankingRule
from guanaco.simulations import Simulation, SimulationRequest
from guanaco_cli import simulate as command
from guanaco_cli.main import run
from guanaco_server.duels.scores import RegenerationCount, scores_of_regenerations
from guanaco_server.simulation.regenerations import regenerations_until
from guanaco_server.simulation.seasons import SeasonPlan, season, simulate

SMALL = SimulationRequest(
    submissions=3, seasons=3, spread=0.2, most_ratings=3_000, ratings_per_day=500
)
RULES = "name: Autumn\nstarts_at: 2026-12-01T00:00:00Z\nassignment: {kind: decide, within: 0.1}\n"


def plan(kind: AssignmentKind, rule: RankingRule = RankingRule.THUMBS_UP) -> SeasonPlan:
    return SeasonPlan(SMALL, AssignmentRule(kind=kind, within=0.1), rule)


@pytest.mark.parametrize("kind", list(AssignmentKind))
def test_every_policy_comes_to_a_verdict_and_repeats_it(kind: AssignmentKind) -> None:
    found = simulate(plan(kind))
    assert found.decided > 0.5
    assert found.days == found.ratings / 500
    assert found.gpu_hours == pytest.approx(found.days * 24 * 3)
    assert season(plan(kind), 1) == season(plan(kind), 1)
    assert season(plan(kind), 1).after == found.decided_after[0]


@pytest.mark.parametrize("rule", [RankingRule.BRADLEY_TERRY, RankingRule.COMBINED])
def test_every_rule_is_simulated(rule: RankingRule) -> None:
    found = simulate(plan(AssignmentKind.UNIFORM, rule))
    assert (found.rule, len(found.decided_after)) == (rule, 3)


def test_more_certainty_takes_more_ratings() -> None:
    sure = plan(AssignmentKind.DECIDE)
    doubtful = SeasonPlan(SMALL.model_copy(update={"certainty": 0.5}), sure.assignment, sure.rule)
    assert simulate(doubtful).ratings < simulate(sure).ratings


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "autumn.yaml"
    path.write_text(RULES)
    return str(path)


FEW = ["--submissions", "3", "--seasons", "2", "--spread", "0.2", "--most-ratings", "2000"]


def test_the_command_prints_a_table_and_a_plot(rules: str, capsys: Any) -> None:
    assert run(["simulate", rules, *FEW, "--policy", "decide", "--policy", "uniform"]) == 0
    said = capsys.readouterr()
    assert "decide *" in said.out
    assert "decided seasons, by ratings" in said.out
    assert "within 10 points of the best, with 95 % certainty" in said.err


def test_a_user_rates_no_submission_twice(rules: str, capsys: Any) -> None:
    few = ["simulate", rules, *FEW, "--policy", "uniform", "--ratings-per-user", "100", "--json"]
    assert run(few) == 0
    (one,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert one["users"] == one["ratings"] / 3


def test_a_figure_of_undecided_seasons_is_a_least_one(rules: str, capsys: Any) -> None:
    few = ["simulate", rules, "--submissions", "9", "--spread", "0.001", "--seasons", "2"]
    assert run([*few, "--most-ratings", "200", "--policy", "uniform"]) == 0
    said = capsys.readouterr()
    assert "> 200   > 200 to > 200" in said.out
    assert "> is before a figure that they decide" in said.err


def test_a_competition_that_duels_settle_is_simulated_by_duels(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "duels.yaml"
    path.write_text(RULES + "ranking: bradley_terry\nduels: {battles: true, counted: true}\n")
    few = ["simulate", str(path), *FEW, "--policy", "decide"]
    assert run([*few, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert (one["is_by_duels"], one["rule"]) == (True, "bradley_terry")
    assert run(few) == 0
    assert "decide by duels *" in capsys.readouterr().out
    assert run([*few, "--rule", "thumbs_up", "--json"]) == 0
    (plain,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert plain["is_by_duels"] is False
    assert run([*few, "--ties", "2"]) != 0
    assert "ties" in capsys.readouterr().err


def test_a_random_share_and_compared_regenerations_are_planned(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "asked.yaml"
    path.write_text(RULES + "ask: {after: 3, share: 0.5}\nduels: {regenerations: 0.5}\n")
    few = ["simulate", str(path), *FEW, "--policy", "decide", "--answering", "1"]
    assert run([*few, "--spread", "0.3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (asked,) = found["asked"]
    assert (asked["policy"], asked["wrong"]) == ("decide", 0)
    assert asked["conversations"] == 2 * asked["answers"]
    assert asked["answers"] > found["verdicts"][0]["ratings"]
    assert found["regenerations"]["of_all_pairs"] == 3 * found["regenerations"]["of_pair"]
    assert run(few) == 0
    said = capsys.readouterr()
    assert "of all who could be asked" in said.out
    assert "50% of the conversations are asked for a rating, and 100% of these answer." in said.err
    assert "50% of the regenerations are compared" in said.err


def test_enough_regenerations_make_the_interval_narrow() -> None:
    of_pair = regenerations_until(0.1, 1, 0.05)
    kept = RegenerationCount(of_pair // 8, of_pair // 4, of_pair // 8, of_pair // 4)
    (pair,) = scores_of_regenerations({("a", "b"): kept, ("b", "a"): kept})
    assert pair.low is not None
    assert pair.high is not None
    assert 0.09 < (pair.high - pair.low) / 2 <= 0.1001


def test_the_command_prints_json(rules: str, capsys: Any) -> None:
    assert run(["simulate", rules, *FEW, "--policy", "decide", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert (one["policy"], one["rule"], len(one["decided_after"])) == ("decide", "thumbs_up", 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--submissions", "1"], "submissions: "),
        (["--spread", "0.39", "--mean", "0.95"], "No shares with a mean of 0.95"),
        (["--policy", "luck"], "--policy luck: there is newest, uniform, adaptive, decide."),
        (["--rule", "luck"], "--rule luck: there is"),
        (["--answering", "0"], "answering: "),
    ],
)
def test_wrong_assumptions_are_one_sentence(
    rules: str, capsys: Any, options: list[str], said: str
) -> None:
    assert run(["simulate", rules, *options]) != 0
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no fields"),
        ("- a", "holds no fields"),
        ("a: [", "neither YAML nor JSON"),
        (RULES + "duels: {regenerations: 2}\n", "duels.regenerations: "),
        (RULES + "ask: {after: 3, share: 0.5}\nfeedback_after: 3\n", "feedback_after or ask"),
    ],
)
def test_wrong_plans_are_one_sentence(tmp_path: Path, capsys: Any, content: str, said: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    assert run(["simulate", str(path)]) != 0
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_terminal_without_block_characters_gets_a_plain_plot(
    rules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Simulation(within=0.1, request=SMALL, verdicts=[simulate(plan(AssignmentKind.DECIDE))])
    assert "█" in "".join(command.plot(found))

    class Ascii:
        encoding = "ascii"

    monkeypatch.setattr(command.sys, "stdout", Ascii())
    "".join(command.plot(found)).encode("ascii")


def test_a_light_installation_simulates_by_thumbs() -> None:
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numpy", "sqlalchemy", "fastapi", "dbos", "jinja2"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import guanaco_server.simulation.asking
import guanaco_server.simulation.regenerations
from guanaco_server.simulation.seasons import SeasonPlan, season
from guanaco.competitions import AssignmentKind, AssignmentRule, RankingRule
from guanaco.simulations import SimulationRequest
request = SimulationRequest(submissions=2, spread=0.2, most_ratings=1000)
print(season(SeasonPlan(request, AssignmentRule(kind=AssignmentKind.ADAPTIVE), RankingRule.THUMBS_UP), 1))
print(season(SeasonPlan(request, AssignmentRule(kind=AssignmentKind.DECIDE), RankingRule.BRADLEY_TERRY, True), 1))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("SeasonOutcome(after=")
    assert "DuelSeasonOutcome(after=" in ended.stdout
