"""Tests what is read, what is written where, and in which pieces."""

from __future__ import annotations

import pytest

from guanaco_server.formats.manifest import PIECE_BYTES
from guanaco_server.formats.safetensors_header import TensorInfo
from guanaco_server.serializer.repo_files import WeightFile
from guanaco_server.serializer.reporting import JobFailed
from guanaco_server.serializer.tensors.plan import chosen_cast, make_plan

MIB = 1024**2


def file_of(path: str, *tensors: tuple[str, str, int]) -> WeightFile:
    """Make a file of name, dtype and elements (2 or 4 bytes each)."""
    infos, offset = [], 0
    for name, dtype, count in tensors:
        end = offset + count * (4 if dtype == "F32" else 2)
        infos.append(TensorInfo(name, dtype, (count,), offset, end))
        offset = end
    return WeightFile(path, tuple(infos), data_offset=100)


def test_small_tensors_share_requests_and_large_ones_are_cut() -> None:
    file = file_of(
        "a",
        ("small", "BF16", 10),
        ("tiny", "BF16", 1),
        ("large", "BF16", 40 * MIB),
        ("end", "BF16", 5),
    )
    plan = make_plan([file], None, {})
    assert [len(run.pieces) for run in plan.runs] == [2, 1, 1, 2]
    assert [(run.start, run.end) for run in plan.runs][:2] == [(100, 122), (122, 122 + PIECE_BYTES)]
    assert plan.runs[-1].end == 100 + sum(info.end - info.start for info in file.infos)
    assert all(run.end - run.start <= PIECE_BYTES for run in plan.runs)


def test_a_request_never_spans_two_files() -> None:
    plan = make_plan([file_of("a", ("x", "BF16", 1)), file_of("b", ("y", "BF16", 1))], None, {})
    assert [(run.path, len(run.pieces)) for run in plan.runs] == [("a", 1), ("b", 1)]


def test_cast_halves_writes_but_not_reads() -> None:
    plan = make_plan([file_of("a", ("x", "F32", 12 * MIB), ("i", "I16", 4))], "BF16", {})
    assert [(t.dtype, t.size_bytes) for t in plan.tensors] == [("BF16", 24 * MIB), ("I16", 8)]
    assert sum(run.end - run.start for run in plan.runs) == 48 * MIB + 8


def test_another_cast_or_another_name_is_another_plan() -> None:
    plans = [
        make_plan([file_of("a", ("x", "F32", 8))], None, {}),
        make_plan([file_of("a", ("x", "F32", 8))], "BF16", {}),
        make_plan([file_of("a", ("y", "F32", 8))], None, {}),
        make_plan([file_of("b", ("x", "F32", 8))], None, {}),
    ]
    assert len({plan.digest() for plan in plans}) == 4


@pytest.mark.parametrize(
    ("asked", "dtypes", "is_quantized", "cast"),
    [
        ("auto", ["F32", "I64"], False, "BF16"),
        ("auto", ["F64"], False, "BF16"),
        ("auto", ["BF16", "F32"], False, None),  # a router or a norm that is meant to be float32
        ("auto", ["F16"], False, None),
        ("auto", ["I8"], False, None),
        ("float16", ["BF16", "F32"], False, "F16"),
        ("bfloat16", ["F16"], False, "BF16"),
        ("bfloat16", ["F16", "I32"], True, None),
        ("auto", ["F32", "U8"], True, None),
    ],
)
def test_what_is_cast(asked: str, dtypes: list[str], is_quantized: bool, cast: str | None) -> None:
    files = [WeightFile("a", tuple(TensorInfo(d, d, (0,), 0, 0) for d in dtypes), data_offset=8)]
    assert chosen_cast(asked, files, is_quantized) == cast


@pytest.mark.parametrize(
    ("name", "says"), [("", "name"), ("\x1e[1]", "name"), ("x", "more than one file")]
)
def test_names_that_an_artifact_cannot_hold_are_refused(name: str, says: str) -> None:
    files = [file_of("a", ("x", "BF16", 1)), file_of("b", (name, "BF16", 1))]
    with pytest.raises(JobFailed, match=says):
        make_plan(files, None, {})
