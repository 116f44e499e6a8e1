"""Artifact keys become names of folders and objects, so nothing but hexadecimal digits may be in one."""

from __future__ import annotations

import re

KEY = re.compile(r"[0-9a-f]{8,128}")


def checked_key(key: str) -> str:
    """The key; ValueError for anything else, which is a mistake of ours."""
    if not KEY.fullmatch(key):
        raise ValueError(f"not an artifact key: {key!r}")
    return key
