"""Reads the tensors of an artifact with our verified reader and does nothing with them; prints the seconds, and those of processor time.

python read_alone.py MANIFEST PATH_OR_URL
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from guanaco_server.engine.artifacts.local_tensors import read_local
from guanaco_server.engine.artifacts.remote_tensors import read_remote
from guanaco_server.formats.manifest import Manifest


def main() -> None:
    manifest = Manifest.model_validate_json(Path(sys.argv[1]).read_bytes())
    place, size = sys.argv[2], 0
    began, before_s = time.perf_counter(), time.process_time()
    is_remote = urlsplit(place).scheme in ("http", "https")
    tensors = read_remote(place, manifest) if is_remote else read_local(Path(place), manifest)
    for _, view in tensors:
        size += len(view)
    took_s = time.perf_counter() - began
    assert size == sum(record.size_bytes for record in manifest.tensors)
    print(took_s, time.process_time() - before_s)


if __name__ == "__main__":
    main()
