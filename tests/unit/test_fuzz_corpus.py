"""Replays what the fuzzer has found worth keeping, without the fuzzer (tests/fuzz/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import safetensors_case

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus" / "safetensors_header"
CASES = sorted(CORPUS.iterdir())


@pytest.mark.parametrize("path", CASES, ids=[path.name[:12] for path in CASES])
def test_a_kept_case_keeps_the_headers_promises(path: Path) -> None:
    safetensors_case.run(path.read_bytes())


def test_real_headers_are_accepted() -> None:
    seeds = [path for path in CASES if path.name.startswith("seed-")]
    assert seeds
    for path in seeds:
        assert safetensors_case.run(path.read_bytes()) is not None, path.name


def test_cut_or_changed_seed_keeps_the_promises() -> None:
    case = (CORPUS / "seed-lora").read_bytes()
    for place in range(len(case)):
        safetensors_case.run(case[:place])
        for byte in (0, 34, 45, 48, 57, 91, 93, 125, 255):
            safetensors_case.run(case[:place] + bytes([byte]) + case[place + 1 :])
