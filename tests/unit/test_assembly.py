"""Tests and benchmarks build rooms with the product's constructors, not with a second list of their own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "server" / "guanaco_server"


def imported(tree: ast.Module) -> dict[str, str]:
    """The product's names that a module imports, with where they come from."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("guanaco_server.")
        for alias in node.names
    }


def constructed(path: Path) -> Iterator[tuple[str, int]]:
    """The product's classes that a module calls, each with the line."""
    tree = ast.parse(path.read_text())
    names = imported(tree)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in names
            and node.func.id[0].isupper()
        ):
            yield names[node.func.id], node.lineno


@cache
def built_by_rooms() -> set[str]:
    """The services of the rooms, without the dataclasses that only carry their settings."""
    rooms = [*SERVER.rglob("room.py"), SERVER / "assembly" / "rooms.py"]
    return {
        name for room in rooms for name, _ in constructed(room) if not is_dataclass(resolved(name))
    }


def resolved(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


# Units that a test makes by itself: they decide something from what they are given, or the test needs one that differs
# from every product's in the very part that it tests.
ALLOWED = {
    "Anonymizer": "decides from a text alone",
    "Boards": "a cache around any reader",
    "WebhookClient": "sends one message; tests give it a resolver of names",
    "Occupancy": "counts what it is given",
    "Pseudonyms": "a keyed hash",
    "Redaction": "decides from a text alone",
    "RepoChecker": "has processes, and nothing of the platform",
    "ReplicaChooser": "chooses from what it is given",
    "StatusChanges": "a list of subscribers",
    "StressService": "judges what a model server answers",
    "WorthPlanner": "plans from the rows and the races that it is given",
}
ALLOWED_IN = {
    "tests/fixtures/compiled_pages.py": {
        "Assets"
    },  # whose templates are compiled before a World is
    "tests/fixtures/artifact_yard.py": {"ArtifactCollector"},  # with other grace periods
    "tests/fixtures/scaled.py": {"Autoscaler"},  # with other windows of load
    "tests/fixtures/webhook_sender.py": {"WebhookSender"},  # a process that does nothing else
    "tests/integration/test_artifact_service.py": {"ArtifactCollector", "ArtifactService"},
    "tests/integration/test_counted_duels.py": {"DuelCounts"},  # what the plan of duels reads
    "tests/integration/test_feedback_copies.py": {"CopyService"},  # with another anonymizer
    "tests/integration/test_idempotency.py": {"IdempotencyService"},  # with room for less
    "tests/integration/test_metric_definitions.py": {"ScoreCounter"},  # with the next version's
    "tests/integration/test_promoting.py": {"ArtifactCollector"},  # a sweep a day
    "tests/integration/test_ranking.py": {"StandingsPublisher"},  # beside another one
    "tests/integration/test_turn_log.py": {"TurnLog", "PostgresqlTurns", "SqliteTurns"},
    "benchmarks/feedback.py": {"StandingsPublisher"},  # timed alone
    "benchmarks/transaction_ids.py": {"TurnLog", "PostgresqlTurns"},  # counted
}


# Counts that an earlier room needs of a later one and that need only the database, and classes that are no services.
IN_ROOMS = {
    "ConversationActivity",
    "ConversationStart",
    "CanaryVote",
    "DuelCounts",
    "Outcomes",
    "Redaction",
}
# The reconciler acts for rooms that are built after its own, so it is built after them.
SECOND_CONSTRUCTORS = {"deployments": {"build_reconciler"}}


@pytest.mark.parametrize("path", sorted(SERVER.rglob("room.py")), ids=lambda path: path.parent.name)
def test_a_room_has_one_constructor(path: Path) -> None:
    defined = ast.parse(path.read_text()).body
    functions = {node.name for node in defined if isinstance(node, ast.FunctionDef)}
    public = {one for one in functions if one.startswith("build_")}
    name = path.parent.name
    assert public - SECOND_CONSTRUCTORS.get(name, set()) == {f"build_{name}"}
    rooms = [node.name for node in defined if isinstance(node, ast.ClassDef)]
    assert len([room for room in rooms if room.endswith("Room")]) == 1


def test_the_assembly_constructs_nothing_of_a_room() -> None:
    made = {name.rpartition(".")[2] for name, _ in constructed(SERVER / "assembly" / "rooms.py")}
    assert made == IN_ROOMS


def test_rooms_construct_services() -> None:
    assert len(built_by_rooms()) > 40


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_no_test_builds_a_room_by_hand(folder: str) -> None:
    found = []
    names = "|".join(name.rpartition(".")[2] for name in built_by_rooms())
    called = re.compile(rf"\b(?:{names})\(")
    for path in sorted((ROOT / folder).rglob("*.py")):
        if not called.search(path.read_text()):
            continue  # most files, which need not be parsed
        place = str(path.relative_to(ROOT))
        allowed = ALLOWED.keys() | ALLOWED_IN.get(place, set())
        found += [
            f"{place}:{line} constructs {name.rpartition('.')[2]}: take it from a World, or from its room's build function."
            for name, line in constructed(path)
            if name in built_by_rooms() and name.rpartition(".")[2] not in allowed
        ]
    assert found == []


def test_every_exception_is_used() -> None:
    for place, names in ALLOWED_IN.items():
        used = {name.rpartition(".")[2] for name, _ in constructed(ROOT / place)}
        assert names <= used, place


def test_a_service_made_by_hand_is_found(tmp_path: Path) -> None:
    path = tmp_path / "test_by_hand.py"
    path.write_text(
        "from guanaco_server.costs.service import CostService\n\ncosts = CostService(1, 2, 3)\n"
    )
    assert list(constructed(path)) == [("guanaco_server.costs.service.CostService", 3)]
    assert "guanaco_server.costs.service.CostService" in built_by_rooms()
