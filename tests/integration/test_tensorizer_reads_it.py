"""tensorizer itself reads what the serializer wrote, whatever the state dict."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guanaco_server.formats.safetensors_header import DTYPE_BYTES
from guanaco_server.serializer.targets import FileSink
from guanaco_server.serializer.tensors.floats import has_nan
from guanaco_server.serializer.tensors.plan import make_plan
from guanaco_server.serializer.tensors.streaming import StreamingPass
from tests.fixtures.checkpoints import (
    MemoryFiles,
    Stored,
    fresh_journal,
    safetensors,
    weight_file,
)

pytestmark = pytest.mark.slow

READER = Path(__file__).parents[1] / "fixtures" / "tensorizer_reader.py"
TORCH_NAMES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I8": "int8",
    "U8": "uint8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "BOOL": "bool",
}
OPAQUE = frozenset({"BF16", "F8_E4M3", "F8_E5M2"})

shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(
    lambda name: not name.startswith("\x1e") and name != "__metadata__"
)


@st.composite
def tensors(draw: st.DrawFn) -> Stored:
    dtype, shape = draw(st.sampled_from(sorted(TORCH_NAMES))), draw(shapes)
    size = math.prod(shape) * DTYPE_BYTES[dtype]
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype == "BOOL":
        data = bytes(value & 1 for value in data)
    return Stored(dtype, shape, bytes(size) if has_nan(memoryview(data), dtype) else data)


state_dicts = st.dictionaries(names, tensors(), min_size=1, max_size=6).filter(
    # tensorizer 2.12 cannot read back an empty tensor of a dtype that numpy lacks, not even its own.
    lambda state: all(t.data or t.dtype not in OPAQUE for t in state.values())
)


class Reader:
    """tensorizer in a process of the engine's environment."""

    def __init__(self, python: Path) -> None:
        self.process = subprocess.Popen(
            [str(python), str(READER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self, path: Path) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def reader(engine_python: Path) -> Iterator[Reader]:
    reader = Reader(engine_python)
    yield reader
    reader.process.communicate()


def write(state: dict[str, Stored], path: Path) -> None:
    content = safetensors(state)
    plan = make_plan([weight_file("m", content)], None, {})
    journal = fresh_journal()
    sink = FileSink(path, plan.layout.total_bytes, journal)
    StreamingPass(plan, MemoryFiles({"m": content}), None, sink, journal, workers=2).run()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(state=state_dicts, tied=st.booleans())
def test_any_state_dict_comes_back(
    state: dict[str, Stored], tied: bool, reader: Reader, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """``tied``: the same bytes under a second name, as checkpoints with tied weights are saved by some."""
    if tied:
        state = {**state, "tied.weight": next(iter(state.values()))}
    path = tmp_path_factory.getbasetemp() / "round-trip.tensors"
    write(state, path)
    assert reader.read(path) == {
        name: [TORCH_NAMES[t.dtype], list(t.shape), hashlib.sha256(t.data).hexdigest()]
        for name, t in state.items()
    }
    path.unlink()


def test_tensorizer_notices_a_flipped_bit(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "flipped.tensors"
    write({"weight": Stored("F32", (4,), bytes(16))}, path)
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    assert "HashMismatchError" in reader.read(path)["error"]
