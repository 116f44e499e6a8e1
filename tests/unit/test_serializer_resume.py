"""An upload in parts that is cut short and taken up again from its journal: the file is the same to the byte."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from guanaco_server.formats import tensorizer_file
from guanaco_server.serializer.targets import ResumeLog
from guanaco_server.serializer.task import Upload
from guanaco_server.serializer.tensors import plan as planning
from guanaco_server.serializer.tensors.plan import StreamPlan, make_plan
from guanaco_server.serializer.tensors.streaming import StreamingPass
from guanaco_server.serializer.upload_target import PartsSink, Presigned
from tests.fixtures.checkpoints import MemoryFiles, Stored, safetensors, weight_file

PIECE = 20_000
PART = 8_192
NO_CRC_OVER = 4_096


class Bucket(Presigned):
    """The parts that were sent; refuses all after the first ``room``."""

    def __init__(self, room: int | None = None) -> None:
        self.parts: dict[str, bytes] = {}
        self.room = room

    def put(
        self, url: str, content: bytes | memoryview, what: str, *, is_checked: bool = True
    ) -> str:
        if self.room is not None and len(self.parts) >= self.room:
            raise ConnectionError("scripted to break off")
        self.parts[url] = bytes(content)
        return f"etag-{url}"

    def assembled(self) -> bytes:
        return b"".join(self.parts[url] for url in sorted(self.parts, key=int))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorizer_file, "MAX_CHECKED_BYTES", NO_CRC_OVER)
    monkeypatch.setattr(planning, "PIECE_BYTES", PIECE)


def stored(count: int, seed: int) -> Stored:
    return Stored("U8", (count,), np.random.default_rng(seed).bytes(count))


def checkpoint() -> tuple[StreamPlan, MemoryFiles]:
    """Two weight files, in each a small tensor and one too large for a CRC."""
    files = {
        "a": safetensors({"small.a": stored(1_000, 1), "large.a": stored(50_000, 2)}),
        "b": safetensors({"small.b": stored(3_000, 3), "large.b": stored(90_001, 4)}),
    }
    weights = [weight_file(path, content) for path, content in files.items()]
    return make_plan(weights, None, {}), MemoryFiles(files)


def pumped(
    plan: StreamPlan, files: MemoryFiles, bucket: Bucket, journal: ResumeLog, workers: int
) -> None:
    total = plan.layout.total_bytes
    urls = tuple(str(number) for number in range(-(-total // PART)))
    sink = PartsSink(bucket, Upload(part_bytes=PART, part_urls=urls), total, journal)
    StreamingPass(plan, files, None, sink, journal, workers).run()


def uninterrupted() -> bytes:
    plan, files = checkpoint()
    bucket = Bucket()
    pumped(plan, files, bucket, ResumeLog("p", "u", None, lambda _: None), 3)
    return bucket.assembled()


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("room", [0, 1, 2, 5, 9, 13, 16, 17])
def test_upload_cut_after_any_part_ends_like_an_uncut_one(room: int, workers: int) -> None:
    plan, files = checkpoint()
    saved: list[bytes] = []
    journal = ResumeLog("p", "u", None, saved.append, interval_s=0)
    bucket = Bucket(room)
    with pytest.raises(ConnectionError):
        pumped(plan, files, bucket, journal, workers)
    journal.save_sometimes()
    bucket.room = None
    pumped(plan, files, bucket, ResumeLog("p", "u", saved[-1], saved.append), workers)
    assert bucket.assembled() == uninterrupted()


def test_unsent_header_is_rewritten_although_its_first_piece_is_done() -> None:
    """The header of ``large`` ends where a part ends, and its first piece is the next part, sent before."""
    plan, files = header_and_data_in_different_parts()
    assert not tensorizer_file.is_checked(plan.layout.tensors[1].tensor)
    first, small, *others = plan.runs[1], plan.runs[0], *plan.runs[2:]
    plan = replace(plan, runs=(first, small, *others))
    part = plan.layout.tensors[1].data_offset
    wanted, bucket, saved = Bucket(), Bucket(), list[bytes]()
    whole(plan, MemoryFiles(files.files), wanted, ResumeLog("p", "u", None, saved.append), part)

    journal = ResumeLog("p", "u", None, saved.append, interval_s=0)
    files.bytes_left = part  # the first piece of ``large``, and nothing of ``small``
    with pytest.raises(ConnectionError):
        whole(plan, files, bucket, journal, part)
    journal.save_sometimes()
    assert set(bucket.parts) == {"1"}

    again = MemoryFiles(files.files)
    whole(plan, again, bucket, ResumeLog("p", "u", saved[-1], saved.append), part)
    assert ("b", first.start, first.end) not in again.ranges, "its bytes are there"
    assert bucket.assembled() == wanted.assembled()


def header_and_data_in_different_parts() -> tuple[StreamPlan, MemoryFiles]:
    files = {
        "a": safetensors({"small": stored(1_000, 1)}),
        "b": safetensors({"large": stored(900_000, 2)}),
    }
    weights = [weight_file(path, content) for path, content in files.items()]
    part = make_plan(weights, None, {}).layout.tensors[1].data_offset
    planning.PIECE_BYTES = part  # the autouse fixture puts it back
    return make_plan(weights, None, {}), MemoryFiles(files)


def whole(
    plan: StreamPlan, files: MemoryFiles, bucket: Bucket, journal: ResumeLog, part: int
) -> None:
    """Pumped by one worker, run after run, in parts of that size."""
    total = plan.layout.total_bytes
    urls = tuple(str(number) for number in range(-(-total // part)))
    sink = PartsSink(bucket, Upload(part_bytes=part, part_urls=urls), total, journal)
    StreamingPass(plan, files, None, sink, journal, workers=1).run()
