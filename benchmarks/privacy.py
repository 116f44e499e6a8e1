"""Measures the anonymizer on a labelled corpus in five languages, beside presidio-analyzer on the same lines.

    make bench-privacy ARGS='--peer=PYTHON'

PYTHON is an interpreter that has presidio-analyzer; without one it is installed into a temporary environment, and where
that fails ours is measured alone. Prints a table for each kind of personal data, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.privacy_corpus import KINDS, LANGUAGES, NOTHING, SEED, Line, corpus
from guanaco_server.anonymization.anonymizer import DEFAULT_REGIONS, Anonymizer

PEER = "presidio-analyzer==2.2.366"
PEER_SCRIPT = Path(__file__).with_name("privacy_peer.py")
COVERED = 0.75  # of a value's letters and digits: less than that leaves it readable
Found = Sequence[tuple[int, int, str]]


@dataclass(frozen=True)
class Outcome:
    """Holds what one analyzer found in each line of the corpus, in the corpus' order."""

    name: str
    found: Sequence[Found]
    microseconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--peer", help="an interpreter that has presidio-analyzer, or 'none'")
    parser.add_argument(
        "--misses", action="store_true", help="print tuned lines that came out wrong"
    )
    arguments = parser.parse_args()
    lines = corpus(arguments.seed)
    ours = _measure_ours(lines)
    outcomes = [ours, *_measured_peer(lines, arguments.peer)]
    _print_table(lines, outcomes)
    if arguments.misses:
        _print_misses(lines, ours)
    print(json.dumps(_summary(lines, outcomes)))


def _measure_ours(lines: Sequence[Line]) -> Outcome:
    anonymizer = Anonymizer(DEFAULT_REGIONS)
    started = time.process_time()
    found = [anonymizer.find(line.text, line.user_name) for line in lines]
    elapsed_s = time.process_time() - started
    spans = [[(one.start, one.end, one.tag.name) for one in spans] for spans in found]
    return Outcome("guanaco", spans, elapsed_s / len(lines) * 1e6)


def _measured_peer(lines: Sequence[Line], python: str | None) -> list[Outcome]:
    if python == "none":
        return []
    with tempfile.TemporaryDirectory() as folder:
        try:
            return [_measure_peer(lines, python or _install_peer(Path(folder)))]
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"presidio-analyzer cannot be run here, so ours is measured alone: {error}")
            return []


def _install_peer(folder: Path) -> str:
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", PEER], check=True)
    return python


def _measure_peer(lines: Sequence[Line], python: str) -> Outcome:
    asked = "".join(
        json.dumps({"text": line.text, "language": line.language}) + "\n" for line in lines
    )
    done = subprocess.run(
        [python, str(PEER_SCRIPT)], input=asked, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(done.stderr[-500:])
    notes: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    if not notes["models"]:
        print("presidio runs without spaCy's language models, which PyPI does not have.")
    found = [[(a, b, kind) for a, b, kind in json.loads(line)] for line in done.stdout.splitlines()]
    return Outcome("presidio", found, notes["seconds"] / len(lines) * 1e6)


def is_found(line: Line, found: Found) -> bool:
    """Decide whether at least three quarters of the value's letters and digits are covered."""
    start = line.text.index(line.value)
    places = [start + place for place, sign in enumerate(line.value) if sign.isalnum()]
    covered = sum(any(a <= place < b for a, b, _ in found) for place in places)
    return covered >= COVERED * len(places)


def is_mangled(line: Line, found: Found) -> bool:
    """Decide whether something outside the value is hidden: in an ordinary line, anything at all."""
    if not line.value:
        return bool(found)
    start = line.text.index(line.value)
    return any(b <= start or a >= start + len(line.value) for a, b, _ in found)


def _share(
    lines: Sequence[Line], outcome: Outcome, kind: str, which: Callable[[Line], bool]
) -> str:
    chosen = [
        (line, found)
        for line, found in zip(lines, outcome.found, strict=True)
        if line.kind == kind and which(line)
    ]
    if not chosen:
        return "-"
    good = sum((is_found if kind != NOTHING else is_mangled)(line, found) for line, found in chosen)
    return f"{100 * good / len(chosen):.0f} %"


def _print_table(lines: Sequence[Line], outcomes: Sequence[Outcome]) -> None:
    columns = [f"{one.name}: {part}" for one in outcomes for part in ("all", "held out")]
    print("| recall | lines | " + " | ".join(columns) + " |")
    print("| --- | --- |" + " --- |" * len(columns))
    counts = Counter(line.kind for line in lines)
    for kind in (*KINDS, NOTHING):
        cells = [
            _share(lines, one, kind, which)
            for one in outcomes
            for which in (lambda _line: True, lambda line: line.is_held_out)
        ]
        label = "**ordinary lines changed**" if kind == NOTHING else kind
        print(f"| {label} | {counts[kind]} | " + " | ".join(cells) + " |")
    print()
    for one in outcomes:
        print(
            f"{one.name}: {one.microseconds:.0f} µs a line. By language, recall and ordinary lines changed:"
        )
        print("   ", ", ".join(_by_language(lines, one, language) for language in LANGUAGES))
        wrong = Counter(
            tag
            for line, found in zip(lines, one.found, strict=True)
            if line.kind == NOTHING
            for _, _, tag in found
        )
        print("    wrong finds in ordinary lines:", dict(wrong.most_common()))


def _by_language(lines: Sequence[Line], outcome: Outcome, language: str) -> str:
    recall, mangled = _figures(lines, outcome, lambda line: line.language == language)
    return f"{language} {recall:.1%} {mangled:.1%}"


def _figures(
    lines: Sequence[Line], outcome: Outcome, which: Callable[[Line], bool]
) -> tuple[float, float]:
    """Return the recall, and the share of the ordinary lines that were changed."""
    pairs = [(a, b) for a, b in zip(lines, outcome.found, strict=True) if which(a)]
    personal = [is_found(line, found) for line, found in pairs if line.value]
    ordinary = [is_mangled(line, found) for line, found in pairs if not line.value]
    return sum(personal) / len(personal), sum(ordinary) / len(ordinary)


def _summary(lines: Sequence[Line], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    summary: dict[str, Any] = {"lines": len(lines), "languages": len(LANGUAGES)}
    for one in outcomes:
        for name, which in (("", lambda _line: True), ("_held_out", lambda line: line.is_held_out)):
            recall, mangled = _figures(lines, one, which)
            summary[f"{one.name}_recall{name}"] = round(recall, 4)
            summary[f"{one.name}_changed{name}"] = round(mangled, 4)
        spilt = [
            is_mangled(line, found)
            for line, found in zip(lines, one.found, strict=True)
            if line.value
        ]
        summary[f"{one.name}_changed_beside"] = round(sum(spilt) / len(spilt), 4)
    return summary


def _print_misses(lines: Sequence[Line], outcome: Outcome) -> None:
    for line, found in zip(lines, outcome.found, strict=True):
        if line.is_held_out:
            continue
        if line.value and not is_found(line, found):
            print("missed ", line.kind, "|", line.text, found, file=sys.stderr)
        if is_mangled(line, found):
            print("changed", line.kind, "|", line.text, found, file=sys.stderr)


if __name__ == "__main__":
    main()
