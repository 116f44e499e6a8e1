"""The headers of weight files, by range."""

from __future__ import annotations

from guanaco_server.formats.safetensors_header import (
    LENGTH_BYTES,
    parse_header,
    parse_length,
)
from guanaco_server.serializer.failures import JobFailed
from guanaco_server.serializer.plan import WeightFile
from guanaco_server.serializer.repo_files import RepoFiles

FIRST_READ_BYTES = 65_536  # holds most headers, so that one request is enough


def read_header(files: RepoFiles, path: str) -> WeightFile:
    """JobFailed for anything not as the format wants it."""
    size = files.size(path)
    head = files.read(path, 0, min(size, FIRST_READ_BYTES))
    try:
        data_offset = LENGTH_BYTES + parse_length(head, size)
        if len(head) < data_offset:
            head += files.read(path, len(head), data_offset)
        infos = parse_header(head[LENGTH_BYTES:data_offset], size - data_offset)
    except ValueError as error:
        raise JobFailed(
            "corrupt_weights", f"{path} is not a valid safetensors file: {error}."
        ) from error
    return WeightFile(path, infos, data_offset)
