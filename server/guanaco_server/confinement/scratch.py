"""A temporary folder of a process that may be confined meanwhile.

`tempfile.TemporaryDirectory` changes the modes of what it cannot remove, which a confined process may not do. What is left
here is removed with the folder around it, by who started the process.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder(prefix: str, folder: Path | None = None) -> Iterator[Path]:
    """Provide a temporary folder within ``folder``, or where the system has those, and remove as much of it as may be removed."""
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
