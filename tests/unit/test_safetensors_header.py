"""The strict reader of safetensors headers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guanaco_server.formats import safetensors_header
from guanaco_server.formats.safetensors_header import (
    DTYPE_BYTES,
    TensorInfo,
    parameter_count,
    parse_header,
    parse_length,
    read_header,
)

tensors = st.dictionaries(
    st.text(min_size=1, max_size=30).filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), st.lists(st.integers(0, 5), max_size=4)),
    max_size=8,
)

anything = st.none() | st.booleans() | st.integers(-1, 9) | st.floats() | st.text(max_size=3)
sizes = st.lists(st.integers(0, 9) | anything, max_size=3)
likely_entries = anything | st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "F32"]) | anything,
        "shape": sizes | anything,
        "data_offsets": sizes | anything,
    }
)


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@given(tensors)
def test_what_was_written_is_read(written: dict[str, tuple[str, list[int]]]) -> None:
    header, infos, position = {}, [], 0
    for name, (dtype, shape) in written.items():
        end = position + math.prod(shape) * DTYPE_BYTES[dtype]
        header[name] = entry(dtype, shape, [position, end])
        infos.append(TensorInfo(name, dtype, tuple(shape), position, end))
        position = end
    read = parse_header(json.dumps(header | {"__metadata__": {"format": "pt"}}).encode(), position)
    assert sorted(read, key=lambda info: info.name) == sorted(infos, key=lambda info: info.name)
    assert parameter_count(read) == sum(math.prod(shape) for _, shape in written.values())


@given(st.binary(max_size=200), st.integers(0, 1_000))
def test_whatever_the_bytes_are_there_is_a_sentence(header: bytes, length: int) -> None:
    try:
        parse_header(header, length)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either outcome is right


@given(st.dictionaries(st.text(max_size=5), likely_entries, max_size=3), st.integers(0, 16))
def test_any_entries_cover_the_data_or_are_refused(header: dict[str, Any], length: int) -> None:
    try:
        infos = parse_header(json.dumps(header).encode(), length)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either outcome is right
    else:
        assert sum(info.end - info.start for info in infos) == length


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"a": 1, "a": 2}', "the same key twice"),
        (b'{"a": ' + b"1" * 5_000 + b"}", "an impossible number"),
        ('{"a": 5}'.encode("utf-16"), "not valid JSON"),
        ({"\ud800": entry()}, "not valid Unicode"),
        ({"a": 5}, "not dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "not dtype, shape and data_offsets"),
        ({"a": entry(dtype="F33")}, "unknown dtype"),
        ({"a": entry(shape=[-2])}, "impossible shape"),
        ({"a": entry(shape=[True, 2])}, "impossible shape"),
        ({"a": entry(shape=[2**70])}, "impossible shape"),
        ({"a": entry(shape=[1] * 17)}, "impossible shape"),
        ({"a": entry(shape=2)}, "impossible shape"),
        ({"a": entry(offsets=[8, 0])}, "impossible offsets"),
        ({"a": entry(offsets=[0])}, "impossible offsets"),
        ({"a": entry(offsets=[0, 4])}, "do not fit"),
        ({"a": entry(offsets=[4, 12])}, "overlaps another or leaves a gap"),
        ({"a": entry(), "b": entry()}, "overlaps another or leaves a gap"),
        ({"a": entry(), "b": entry(offsets=[8, 16])}, "promises 16 bytes"),
        ({}, "promises 0 bytes"),
        ({"a" * 2_000: entry()}, "too long"),
        ({"a": entry(), "b": entry("U8", [4], [4, 8])}, "overlaps another or leaves a gap"),
        ({"a": entry("U8", [4], [0, 4]), "b": entry("U8", [2], [6, 8])}, "overlaps another or leaves a gap"),
        ({"a": entry(shape=[2**40], offsets=[0, 2**42])}, "promises 4,398,046,511,104 bytes"),
        ({"a": entry(shape=[2**62, 2**62], offsets=[0, 2**63 - 1])}, "do not fit"),
        ({"a": entry(offsets=[-8, 0])}, "impossible offsets"),
        ({"a": entry(offsets=[0, 2**63])}, "impossible offsets"),
        ({"a": entry(offsets=[0.0, 8.0])}, "impossible offsets"),
        ({"a": entry(offsets=["0", "8"])}, "impossible offsets"),
        (b'{"a": {"dtype": "U8", "dtype": "F32"}}', "the same key twice"),
        (b'{"__metadata__": {}, "__metadata__": {}}', "the same key twice"),
        (b'{"a": 1, "\\u0061": 2}', "the same key twice"),
        ({"__metadata__": {"a": 1}, "a": entry()}, "not an object of strings"),
        ({"__metadata__": [], "a": entry()}, "not an object of strings"),
        (b"[NaN]", "not a JSON object"),
        (b"", "not valid JSON"),
        (b"{} {}", "not valid JSON"),
    ],
)  # fmt: skip
def test_a_corrupt_header_is_refused(header: Any, says: str) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    with pytest.raises(ValueError, match=says):
        parse_header(raw, 8)


@pytest.mark.parametrize(
    ("prefix", "size", "says"),
    [
        (b"\x01", 1, "only 1 bytes"),
        ((200_000_000).to_bytes(8, "little"), 10**9, "more than the format allows"),
        ((100).to_bytes(8, "little"), 50, "claims 100 bytes but the file has 50"),
    ],
)
def test_an_impossible_length_is_refused(prefix: bytes, size: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_length(prefix, size)


def test_more_tensors_than_any_model_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert safetensors_header.MAX_TENSORS == 1_000_000
    monkeypatch.setattr(safetensors_header, "MAX_TENSORS", 2_000)
    header = b"{" + b",".join(b'"%d":0' % number for number in range(2_001)) + b"}"
    with pytest.raises(ValueError, match="lists 2,001 tensors, more than 2,000"):
        parse_header(header, 0)


def test_a_file_is_read_with_the_offset_of_its_data(tmp_path: Path) -> None:
    header = json.dumps({"a": entry()}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    infos, offset = read_header(path)
    assert (infos[0].name, infos[0].shape, offset) == ("a", (2,), 8 + len(header))


@given(st.binary(max_size=64))
def test_a_file_of_any_bytes_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(content)
    try:
        read_header(path)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either outcome is right


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"a": entry()}).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(8)
    path = tmp_path / "cut.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"only \d bytes|claims|promises"):
            read_header(path)
