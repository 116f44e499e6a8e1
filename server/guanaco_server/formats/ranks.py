"""The arguments of vLLM by which several processes share a model: its ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable

RANKS = re.compile(r"--?(tp|pp|dp|(tensor|pipeline|data)[-_]parallel|distributed[-_]executor)")


def has_ranks(arguments: Iterable[str]) -> bool:
    """Return whether several processes may share the model."""
    return any(map(RANKS.match, arguments))
