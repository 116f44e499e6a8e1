"""The small rules: errors and statuses, the interval, pseudonyms, the verdict, names."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guanaco import errors
from guanaco.errors import GuanacoError, SubmissionNotFound, error_classes
from guanaco.submissions import Quantization
from guanaco_server.accounts import secrets
from guanaco_server.deployments.engines.specs import (
    EngineOptions,
    deployment_name,
    model_server_spec,
)
from guanaco_server.feedback.copies import Pseudonyms
from guanaco_server.http.errors import status_of
from guanaco_server.statistics.intervals import wilson_interval
from guanaco_server.submissions.pipeline.checks.fixed_text import perplexity
from guanaco_server.submissions.pipeline.server_start import evidence

ROOT = Path(__file__).parents[2]
PACKAGES = ("guanaco", "cli/guanaco_cli", "server/guanaco_server")
MAY_WRITE_IN_MANY_TRIPS = {
    "server/guanaco_server/partitions/service.py": "PostgreSQL only, which has many writers",
}
CLASS = re.compile(r"^ *class (\w+)[(:]", re.MULTILINE)


@pytest.mark.slow
def test_a_class_name_stands_for_one_class() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for name in CLASS.findall(path.read_text()):
                places[name].append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def _error_classes() -> list[type[GuanacoError]]:
    public = vars(errors).values()
    return [kind for kind in public if isinstance(kind, type) and issubclass(kind, GuanacoError)]


def _drawn_parents(drawing: str) -> dict[str, str]:
    """Read the tree in the docstring of guanaco.errors: each class and the class that it is drawn under."""
    parents, path = {}, ["GuanacoError"]
    for line in drawing.splitlines():
        match = re.match(r"^((?:│   |    )*)(?:[├└]── )?(\w+(?:, \w+)*)", line)
        if match is None or line[0] not in "├└│":
            continue
        is_new = "── " in line
        depth = len(match[1]) // 4 + (1 if is_new else 0)
        for name in match[2].split(", "):
            parents[name] = path[depth - 1]
        path[depth:] = [match[2].split(", ")[-1]]
    return parents


def test_every_error_has_its_own_code_and_a_status() -> None:
    assert len(error_classes()) == len(_error_classes())
    for kind in _error_classes():
        assert 400 <= status_of(kind.__new__(kind)) <= 599


def test_the_error_tree_is_drawn_as_it_is() -> None:
    real = {kind.__name__: kind.__mro__[1].__name__ for kind in _error_classes()}
    del real["GuanacoError"]
    assert errors.__doc__ is not None
    assert _drawn_parents(errors.__doc__) == real


def test_an_error_comes_back_from_the_wire_as_its_class() -> None:
    sent = SubmissionNotFound("x")
    back = GuanacoError.from_wire(sent.to_wire())
    assert type(back) is SubmissionNotFound
    assert (str(back), back.hint) == (str(sent), sent.hint)
    assert type(GuanacoError.from_wire({"error": "from the future", "detail": "?"})) is GuanacoError


def test_the_wilson_interval_has_its_known_values() -> None:
    assert wilson_interval(1, 1) == pytest.approx((0.2065, 1.0), abs=1e-4)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(90, 100) == pytest.approx((0.8256, 0.9448), abs=1e-4)


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_the_wilson_interval_holds_the_ratio(trials: int, share: float) -> None:
    successes = round(trials * share)
    low, high = wilson_interval(successes, trials)
    assert 0 <= low <= successes / trials + 1e-12
    assert successes / trials - 1e-12 <= high <= 1


def test_a_pseudonym_differs_by_user_developer_and_key() -> None:
    one, other = Pseudonyms(b"one"), Pseudonyms(b"other")
    assert one.seen_by("ada", "app/alice") == one.seen_by("ada", "app/alice")
    names = {
        keyed.seen_by(developer, user)
        for keyed in (one, other)
        for developer in ("ada", "grace")
        for user in ("app/alice", "app/bob")
    }
    assert len(names | {one.in_audit("app/alice"), other.in_audit("app/alice")}) == 10


def test_a_key_opens_only_with_its_own_secret() -> None:
    key = secrets.new_key()
    parts = secrets.split_key(key.text)
    assert parts is not None
    assert parts[0] == key.id
    assert secrets.is_secret(parts[1], key.secret_hash)
    assert not secrets.is_secret(parts[1][:-1], key.secret_hash)
    for malformed in ("", "gk", "gk_a", "xx_a_b", "gk_a_b_c", "gk_ä_b"):
        assert secrets.split_key(malformed) is None


@given(st.text(min_size=1, max_size=120))
def test_deployment_names_are_dns_labels(submission_id: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", deployment_name(submission_id))


def test_perplexity_is_what_the_formula_says() -> None:
    assert perplexity([math.log(0.5)] * 7) == pytest.approx(2)
    assert perplexity([math.log(0.25), 0.0]) == pytest.approx(2)
    assert perplexity([-9_999.0]) == math.inf


def test_only_a_quantized_deployment_is_told_to_quantize() -> None:
    engine = EngineOptions(("engine",), ())
    plain = model_server_spec("a_v1", 1, "file:///a", 100, engine, {}, 0)
    fp8 = model_server_spec("a_v1", 1, "file:///a", 100, engine, {}, 0, Quantization.FP8)
    assert "--quantization" not in plain.command
    assert fp8.command[-2:] == ("--quantization", "fp8_per_channel")


def test_evidence_is_the_last_errors_else_the_last_lines() -> None:
    assert evidence(["fine", "ERROR one", "fine", "ERROR two"]) == "ERROR one | ERROR two"
    assert evidence(["a", "b"]) == "a | b"
    assert evidence([]) == "it said nothing."


def test_each_migration_follows_the_one_before_it() -> None:
    """Two branches that each add one would otherwise leave two newest ones, and no database could be migrated."""
    files = sorted((ROOT / "migrations" / "versions").glob("*.py"))
    numbers = [file.name.partition("_")[0] for file in files]
    follows = [re.search(r'^down_revision = "?(\w+)"?$', file.read_text(), re.M) for file in files]
    assert [found[1] if found else "" for found in follows[1:]] == numbers[:-1]


def test_no_writer_keeps_chats_waiting_for_the_event_loop() -> None:
    """``Database.write_unit`` is one trip, where ``write`` holds SQLite's write lock across many."""
    used = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "server" / "guanaco_server").rglob("*.py")
        if re.search(r"database\.write\(", path.read_text())
    }
    assert used == set(MAY_WRITE_IN_MANY_TRIPS)
