"""The child process in which strangers' templates and tokenizers are tried: it is ended, whatever it does."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from guanaco_server.confinement import confined

pytestmark = pytest.mark.slow

LIMITS = confined.ProcessLimits(cpu_s=1, memory_bytes=200_000_000, wall_s=60, file_bytes=1_000)
START = f"""
import json, os, signal, sys, time
from pathlib import Path
from guanaco_server.confinement import confined
folder = Path(sys.argv[1])
confined.confine(confined.{LIMITS!r}, folder)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the child's module lies; its folder too."""
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path("server").absolute())]
    monkeypatch.setenv("PYTHONPATH", ":".join(paths))
    return tmp_path


def run(child: Path, work: str, limits: confined.ProcessLimits = LIMITS) -> str | None:
    (child / "tried.py").write_text(START + work)
    return confined.run("tried", child, limits)


def test_a_child_that_finds_nothing_wrong_is_believed(child: Path) -> None:
    assert run(child, "confined.tell(None)") is None


@pytest.mark.parametrize(
    ("work", "says"),
    [
        ("confined.tell('it is odd\\nand long')", "it is odd and long"),
        ("while True: pass", "more than 1 s of CPU time"),
        ("x = bytearray(10**9)", "200 MB of memory"),
        ("os.abort()", "or it is corrupt"),
        ("raise SystemExit(1)", "or it is corrupt"),
        ("pass", "it is corrupt"),
        ("print('x' * 100)", "it is corrupt"),
        ("print('[1]')", "it is corrupt"),
        ("(folder / 'big').write_bytes(bytes(2_000))", "or it is corrupt"),
    ],
)
def test_a_child_that_overruns_is_a_reason(child: Path, work: str, says: str) -> None:
    assert says in str(run(child, work))


def test_a_child_that_only_waits_is_ended(child: Path) -> None:
    assert "more than 1 s" in str(run(child, "time.sleep(60)", replace(LIMITS, wall_s=1)))


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("raise SystemExit(3)", "could not begin (3): it says nothing"),
        ("import os; os.kill(os.getpid(), 9)", "could not begin (-9)"),
    ],
)
def test_a_child_that_cannot_begin_is_our_fault(child: Path, start: str, says: str) -> None:
    (child / "tried.py").write_text(start)
    with pytest.raises(RuntimeError, match=re.escape(says)):
        confined.run("tried", child, LIMITS)


def test_a_child_has_no_secret(child: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("GUANACO_TICKET", "https://secret")
    work = "(folder / 'seen').write_text(json.dumps(sorted(os.environ))); confined.tell(None)"
    assert run(child, work) is None
    seen = set(json.loads((child / "seen").read_text()))
    assert "PYTHONPATH" in seen
    assert not {"HF_TOKEN", "GUANACO_TICKET"} & seen


def test_no_child_is_left_behind(child: Path) -> None:
    work = "(folder / 'pid').write_text(str(os.getpid()))\ntime.sleep(60)"
    assert run(child, work, replace(LIMITS, wall_s=10))
    with pytest.raises(ProcessLookupError):
        os.kill(int((child / "pid").read_text()), 0)
