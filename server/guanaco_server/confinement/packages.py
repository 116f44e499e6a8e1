"""Lets the child of a confined process find our packages, which may lie in a checkout that a confined process may not list."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import guanaco
import guanaco_server


@contextmanager
def linked_packages(folder: Path | None = None) -> Iterator[str]:
    """Provide a temporary folder with links to our packages, to be first on a path; it lies in ``folder``."""
    with tempfile.TemporaryDirectory(
        prefix="guanaco-packages-", dir=folder, ignore_cleanup_errors=True
    ) as links:
        for package in (guanaco, guanaco_server):
            Path(links, package.__name__).symlink_to(Path(str(package.__file__)).parent)
        yield links
