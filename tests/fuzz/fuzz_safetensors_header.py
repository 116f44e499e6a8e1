#!/usr/bin/env python
"""Fuzzes the reader of safetensors headers with Atheris: `python tests/fuzz/fuzz_safetensors_header.py CORPUS` (README.md)."""

from __future__ import annotations

import json
import random
import sys

import atheris

with atheris.instrument_imports(include=["guanaco_server.formats", "json"]):
    from guanaco_server.formats.safetensors_header import DTYPE_BYTES, LENGTH_BYTES
    from tests.fuzz import safetensors_case

HEAD_BYTES = safetensors_case.SIZE_BYTES + LENGTH_BYTES
NUMBERS = (
    -1,
    0,
    1,
    2,
    7,
    8,
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    10**29,
    10**40,
    1.5,
    True,
    None,
)


def test_one_input(case: bytes) -> None:
    safetensors_case.run(case)


def mutate(case: bytes, max_size: int, seed: int) -> bytes:
    """A third raw, so that lengths lie; else only the header, by bytes or by fields, with a length that fits it."""
    rng = random.Random(seed)
    way = rng.randrange(3)
    if way == 0 or len(case) <= HEAD_BYTES:
        return bytes(atheris.Mutate(case, max_size))
    header = case[HEAD_BYTES:]
    if way == 2:
        header = _change_field(header, rng)
    else:
        header = bytes(atheris.Mutate(header, max(max_size - HEAD_BYTES, 1)))
    missing = int.from_bytes(case[: safetensors_case.SIZE_BYTES], "little")
    if rng.random() < 0.7:
        missing = _promised(header)
    return safetensors_case.encode(header, missing)[:max_size]


def _change_field(header: bytes, rng: random.Random) -> bytes:
    entries = _entries(header)
    name = rng.choice(sorted(entries)) if entries else "a"
    entry = entries.get(name)
    if not isinstance(entry, dict):
        entry = {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}
    change = rng.randrange(6)
    if change == 0:
        entry["dtype"] = rng.choice([*DTYPE_BYTES, "F4", "", None, 1])
    elif change == 1:
        entry["shape"] = [rng.choice(NUMBERS) for _ in range(rng.randrange(18))]
    elif change == 2:
        entry["data_offsets"] = [rng.choice(NUMBERS) for _ in range(rng.randrange(4))]
    elif change == 3:
        name += rng.choice(["a", "\ud800", "\0", "x" * 1_100])
    elif change == 4:
        entry = rng.choice([entry, {}, [], None, 3])
    else:
        end = max(_promised(header), 0)
        name, entry = name + "'", {"dtype": "U8", "shape": [3], "data_offsets": [end, end + 3]}
    return json.dumps(entries | {name: entry}).encode()


def _entries(header: bytes) -> dict[str, object]:
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _promised(header: bytes) -> int:
    """The last byte that any entry speaks of."""
    ends = [0]
    for entry in _entries(header).values():
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if isinstance(offsets, list):
            ends += [end for end in offsets if type(end) is int]
    return max(ends)


if __name__ == "__main__":
    atheris.Setup(sys.argv, test_one_input, custom_mutator=lambda *given: mutate(*given))
    atheris.Fuzz()
