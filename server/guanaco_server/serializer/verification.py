"""Proves that an artifact's bytes are those of its manifest, and that the manifest is what the Hub's files make.

The first proof reads model.tensors from beginning to end and compares each byte with the manifest, including
tensorizer's headers and index. The second makes the artifact once more and keeps only its hashes.
"""

from __future__ import annotations

import hashlib
import io
import json
import ssl
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO
from urllib.parse import unquote, urlsplit

from guanaco_server.engine.artifacts.ranged_http import RangedFile
from guanaco_server.formats.manifest import Manifest, TensorRecord
from guanaco_server.formats.tensorizer_file import (
    FileTensor,
    crc32_combine,
    epilogue,
    lay_out,
    prologue,
    tensor_header,
)
from guanaco_server.serializer.making import make_artifact
from guanaco_server.serializer.repo_files import FileStream, Stream, prepare
from guanaco_server.serializer.targets import ResumeLog
from guanaco_server.serializer.task import SerializerJob
from guanaco_server.serializer.tensors.streaming import BLOCK_BYTES

WORKERS = 4


def hub_differences(job: SerializerJob, stored: Manifest) -> list[str]:
    """Return a sentence for each way in which a manifest is not what the Hub's files make; JobFailed if these cannot be read."""
    with redirect_stdout(_MessageWriter(sys.stderr)), tempfile.TemporaryDirectory() as scratch:
        prepare(Path(scratch))
        made = make_artifact(job, NullTarget(), WORKERS, Path(scratch))
    found = [*_tensor_differences(made, stored), *_file_differences(made, stored)]
    if made.tensors_bytes != stored.tensors_bytes:
        found.append(
            f"model.tensors has {stored.tensors_bytes:,} bytes, not {made.tensors_bytes:,}."
        )
    return found


class _MessageWriter(io.TextIOBase):
    """Passes on what a job says in JSON, as sentences: a person runs this."""

    def __init__(self, sink: TextIO) -> None:
        self._sink = sink

    def write(self, text: str) -> int:
        try:
            message = json.loads(text)["message"]
        except (ValueError, KeyError, TypeError):
            message = text.strip()
        if message:
            self._sink.write(f"{message}\n")
        return len(text)


def stored_differences(manifest: Manifest, stream: Stream) -> list[str]:
    """Return a sentence for each part of a tensors file that is not as its manifest says."""
    tensors = [FileTensor(r.name, r.dtype, r.shape, r.size_bytes) for r in manifest.tensors]
    layout = lay_out(tensors)
    if layout.total_bytes != manifest.tensors_bytes:
        return [
            f"The manifest lists tensors of {layout.total_bytes:,} bytes in a file of another size."
        ]
    found = []
    if _read(stream, layout.prologue_bytes) != prologue(layout):
        found.append("The index of model.tensors is not that of the manifest's tensors.")
    for record, tensor, placed in zip(manifest.tensors, tensors, layout.tensors, strict=True):
        header = _read(stream, placed.data_offset - placed.header_offset)
        is_same, crc32 = _check_data(record, stream)
        if not is_same:
            found.append(f"The tensor {record.name} is damaged.")
        elif header != tensor_header(tensor, crc32):
            found.append(f"The header of tensor {record.name} is damaged.")
    if _read(stream, len(epilogue())) != epilogue():
        found.append("The end of model.tensors is damaged.")
    return found


def _check_data(record: TensorRecord, stream: Stream) -> tuple[bool, int]:
    is_same, whole_crc32 = True, 0
    buffer = memoryview(bytearray(min(BLOCK_BYTES, record.size_bytes)))
    for (start, end, expected), expected_crc32 in zip(record.pieces(), record.crc32, strict=True):
        sha256, crc32 = hashlib.sha256(), 0
        for at in range(start, end, BLOCK_BYTES):
            block = buffer[: min(BLOCK_BYTES, end - at)]
            stream.read_exactly(block)
            sha256.update(block)
            crc32 = zlib.crc32(block, crc32)
        is_same = is_same and (sha256.hexdigest(), crc32) == (expected, expected_crc32)
        whole_crc32 = crc32_combine(whole_crc32, crc32, end - start)
    return is_same, whole_crc32


def _read(stream: Stream, count: int) -> bytes:
    data = bytearray(count)
    stream.read_exactly(memoryview(data))
    return bytes(data)


class NullTarget:
    identity = "null"

    def read_journal(self) -> bytes | None:
        return None

    def save_journal(self, content: bytes) -> None:
        """Save nothing: there is nothing to resume."""

    def put_file(self, name: str, content: bytes) -> None:
        """Keep nothing: the file's hash is in the manifest."""

    def open_tensors(self, total_bytes: int, resume_log: ResumeLog) -> NullSink:
        return NullSink()


class NullSink:
    def is_written(self, start: int, end: int) -> bool:
        return False

    def wait_for_room(self, end: int, is_stopped: Callable[[], bool]) -> None:
        """There is always room in nothing."""

    def write(self, offset: int, data: memoryview) -> None:
        """Hashed before it came here."""

    def finish(self) -> None: ...


def _tensor_differences(made: Manifest, stored: Manifest) -> list[str]:
    ours = {record.name: record for record in stored.tensors}
    theirs = {record.name: record for record in made.tensors}
    found = [f"The tensor {name} is missing." for name in theirs.keys() - ours.keys()]
    found += [f"The tensor {name} is not the Hub's." for name in ours.keys() - theirs.keys()]
    for name in ours.keys() & theirs.keys():
        if ours[name] != theirs[name]:
            found.append(f"The tensor {name} differs from the Hub's.")
    return sorted(found)


def _file_differences(made: Manifest, stored: Manifest) -> list[str]:
    ours, theirs = set(stored.files), set(made.files)
    return sorted({f"The file {file.path} differs from the Hub's." for file in ours ^ theirs})


@contextmanager
def open_artifact_file(
    url: str, size_bytes: int, name: str, trusted: ssl.SSLContext | None = None
) -> Iterator[Stream]:
    """Open the file by a file URL or a presigned URL, which no message shows."""
    if urlsplit(url).scheme == "file":
        with FileStream(Path(unquote(urlsplit(url).path)), 0) as stream:
            yield stream
        return
    with closing(RangedFile(url, name, trusted=trusted, patience_s=0)) as file:
        file.begin(0, size_bytes)
        yield _Remote(file)


class _Remote:
    def __init__(self, file: RangedFile) -> None:
        self._file = file

    def read_exactly(self, view: memoryview) -> None:
        self._file.fill(view)
