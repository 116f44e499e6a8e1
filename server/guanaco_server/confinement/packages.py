"""Lets the child of a confined process find our packages, which may lie in a checkout that a confined process may not list."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import guanaco
import guanaco_server
from guanaco_server.confinement.scratch import scratch_folder


@contextmanager
def linked_packages(folder: Path | None = None) -> Iterator[str]:
    """Provide a temporary folder with links to our packages, to be first on a path; it lies in ``folder``."""
    with scratch_folder("guanaco-packages-", folder) as links:
        for package in (guanaco, guanaco_server):
            (links / package.__name__).symlink_to(Path(str(package.__file__)).parent)
        yield str(links)
