"""The streaming pass over files in memory: exact, in any order, taken up again where it broke off."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guanaco_server.formats.manifest import PIECE_BYTES
from guanaco_server.formats.safetensors_header import DTYPE_BYTES, TensorInfo
from guanaco_server.formats.tensorizer_file import crc32_combine
from guanaco_server.serializer.reporting import JobFailed
from guanaco_server.serializer.targets import ResumeLog
from guanaco_server.serializer.tensors.floats import from_float32, has_nan, to_float32
from guanaco_server.serializer.tensors.lora import LoraMatrices, LoraPair
from guanaco_server.serializer.tensors.plan import StreamPlan, make_plan
from guanaco_server.serializer.tensors.streaming import StreamingPass
from tests.fixtures.checkpoints import (
    MemoryFiles,
    MemorySink,
    Stored,
    fresh_journal,
    safetensors,
    weight_file,
)

MIB = 1024**2
NO_LORA: dict[str, LoraPair] = {}


class OneMatrix:
    def __init__(self, matrices: LoraMatrices) -> None:
        self._matrices = matrices

    def load(self, pair: LoraPair) -> LoraMatrices:
        return self._matrices


def big(count: int, seed: int = 1) -> Stored:
    """A bfloat16 tensor of this number of elements without NaN."""
    values = np.random.default_rng(seed).integers(0, 0x7F00, count, dtype=np.uint16)
    return Stored("BF16", (count,), values.tobytes())


def planned(tensors: dict[str, Stored], cast: str | None = None) -> tuple[StreamPlan, MemoryFiles]:
    content = safetensors(tensors)
    return make_plan([weight_file("m", content)], cast, NO_LORA), MemoryFiles({"m": content})


def streamed(
    plan: StreamPlan, files: MemoryFiles, sink: MemorySink, journal: ResumeLog
) -> StreamingPass:
    pump = StreamingPass(plan, files, None, sink, journal, workers=3)
    pump.run()
    return pump


def data_of(plan: StreamPlan, sink: MemorySink, index: int) -> bytes:
    placed = plan.layout.tensors[index]
    return bytes(sink.content[placed.data_offset : placed.end])


@pytest.mark.slow
def test_each_byte_is_read_once_and_written_once_and_hashed() -> None:
    tensors = {
        "small": big(10),
        "large": big(40 * MIB // 2 * 2),
        "none": Stored("F32", (0, 3), b""),
    }
    plan, files = planned(tensors)
    sink = MemorySink(plan.layout.total_bytes)
    pump = streamed(plan, files, sink, fresh_journal())
    assert sink.is_finished
    assert all(sink.written)
    assert files.read_bytes == sum(len(tensor.data) for tensor in tensors.values())
    for index, tensor in enumerate(plan.tensors):
        data = tensors[tensor.name].data
        assert data_of(plan, sink, index) == data
        pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
        assert [facts.sha256 for facts in pump.facts(index)] == [
            hashlib.sha256(piece).hexdigest() for piece in pieces
        ]
        assert [facts.crc32 for facts in pump.facts(index)] == [zlib.crc32(p) for p in pieces]


@pytest.mark.slow
def test_broken_pass_resumes_without_rereading() -> None:
    plan, files = planned({f"t{number}": big(16 * MIB, number) for number in range(6)})
    sink = MemorySink(plan.layout.total_bytes)
    saved: list[bytes] = []
    journal = ResumeLog("p", "u", None, saved.append, interval_s=0)
    files.bytes_left = 100 * MIB
    with pytest.raises(ConnectionError):
        StreamingPass(plan, files, None, sink, journal, workers=1).run()
    journal.save_sometimes()

    again = MemoryFiles(files.files)
    pump = streamed(plan, again, sink, ResumeLog("p", "u", saved[-1], saved.append))
    assert again.read_bytes == (6 - 3) * PIECE_BYTES, "three of six were whole"
    assert all(sink.written)
    assert [data_of(plan, sink, index) for index in range(6)] == [
        big(16 * MIB, number).data for number in range(6)
    ]
    assert all(len(pump.facts(index)) == 1 for index in range(6))


@pytest.mark.parametrize(("plan", "upload"), [("other", "u"), ("p", "other")])
def test_a_journal_of_another_plan_or_upload_counts_for_nothing(plan: str, upload: str) -> None:
    content = json.dumps({"plan": "p", "upload": "u", "parts": {"1": "etag"}}).encode()
    assert ResumeLog("p", "u", content, lambda _: None).parts == {1: "etag"}
    assert ResumeLog(plan, upload, content, lambda _: None).parts == {}
    assert ResumeLog("p", "u", b"{", lambda _: None).parts == {}


def test_nan_is_refused_and_the_tensor_is_named() -> None:
    values = np.ones(MIB, np.float32)
    values[700_000] = np.nan
    plan, files = planned({"good": big(9), "bad": Stored("F32", (MIB,), values.tobytes())})
    with pytest.raises(JobFailed, match="'bad' holds NaN"):
        streamed(plan, files, MemorySink(plan.layout.total_bytes), fresh_journal())


def test_a_value_that_float16_cannot_hold_is_refused() -> None:
    plan, files = planned({"x": Stored("F32", (1,), struct.pack("<f", 1e6))}, "F16")
    with pytest.raises(JobFailed, match="outside float16"):
        streamed(plan, files, MemorySink(plan.layout.total_bytes), fresh_journal())


def test_an_adapter_is_added_row_by_row() -> None:
    """Rows of 700 float32 do not fit evenly into blocks, so that blocks begin inside rows."""
    rows, columns, rank = 1_000, 700, 4
    generator = np.random.default_rng(3)
    weight = generator.standard_normal((rows, columns), dtype=np.float32)
    a = generator.standard_normal((rank, columns), dtype=np.float32)
    b = generator.standard_normal((rows, rank), dtype=np.float32)
    content = safetensors({"w": Stored("F32", (rows, columns), weight.tobytes())})
    info = TensorInfo("a", "F32", a.shape, 0, 0)
    plan = make_plan(
        [weight_file("m", content)], None, {"w": LoraPair(info, info, data_offset=0, scale=0.5)}
    )
    sink = MemorySink(plan.layout.total_bytes)
    matrices = OneMatrix(LoraMatrices(a, b, 0.5))
    StreamingPass(plan, MemoryFiles({"m": content}), matrices, sink, fresh_journal(), 2).run()
    merged = np.frombuffer(data_of(plan, sink, 0), np.float32).reshape(rows, columns)
    np.testing.assert_allclose(merged, weight + 0.5 * b @ a, rtol=1e-5, atol=1e-5)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_of_two_stretches_make_that_of_both(first: bytes, second: bytes) -> None:
    combined = crc32_combine(zlib.crc32(first), zlib.crc32(second), len(second))
    assert combined == zlib.crc32(first + second)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_bfloat16_is_rounded_to_the_nearest_even(values: list[float]) -> None:
    """Against the definition: of the two neighbours the nearer, of two equally near the even one."""
    wide = np.array(values, np.float32)
    rounded = from_float32(wide, "BF16")
    for value, bits in zip(wide, rounded, strict=True):
        low = int(value.view(np.uint32)) >> 16
        below, above = (_from_bits(low), _from_bits(low + 1))
        nearest = (
            min(
                (
                    (abs(float(value) - below), low & 1, low),
                    (abs(float(value) - above), ~low & 1, low + 1),
                )
            )[2]
            if np.isfinite(value) and np.isfinite(above)
            else int(bits)
        )
        assert int(bits) == nearest


def _from_bits(bits: int) -> float:
    return float(np.uint32(bits << 16).view(np.float32))


@settings(deadline=None)
@given(st.sampled_from(["BF16", "F16", "F32"]), st.binary(min_size=4, max_size=64))
def test_every_number_survives_float32_and_back(dtype: str, data: bytes) -> None:
    whole = memoryview(data)[: len(data) // 4 * 4]
    if not has_nan(whole, dtype):
        assert from_float32(to_float32(whole, dtype), dtype).tobytes() == bytes(whole)


@pytest.mark.parametrize(
    ("dtype", "pattern", "is_nan"),
    [
        ("BF16", 0x7FC0, True),
        ("BF16", 0xFF81, True),
        ("BF16", 0x7F80, False),  # infinity
        ("F16", 0x7E00, True),
        ("F32", 0x7FC00000, True),
        ("F32", 0xFF800000, False),
        ("F64", 0x7FF8 << 48, True),
        ("F8_E4M3", 0x7F, True),
        ("F8_E5M2", 0x7D, True),
        ("F8_E5M2", 0x7C, False),
        ("I32", 0x7FC00000, False),
    ],
)
def test_nan_is_known_in_every_dtype(dtype: str, pattern: int, is_nan: bool) -> None:
    data = pattern.to_bytes(DTYPE_BYTES[dtype], "little")
    assert has_nan(memoryview(bytes(len(data)) + data), dtype) is is_nan
