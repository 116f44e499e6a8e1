"""Finds the passwords in a setting's URL.

A password may hold characters that a URL should have escaped, and the programs that it is given to accept that: everything
up to the last @ is taken for it. So part of a path may be hidden, but no part of a password is shown.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_BEFORE_HOST = re.compile(r"(?<=://)([^/@\s:]*):(.*)(?=@)", re.DOTALL)
_IN_QUERY = re.compile(r"(?<=[?&])((?:ssl)?password=)([^&#]*)", re.IGNORECASE)


def mask_passwords(url: str, mask: str) -> str:
    """Return the URL with the mask in place of each password."""
    return _IN_QUERY.sub(rf"\1{mask}", _BEFORE_HOST.sub(rf"\1:{mask}", url))


def passwords_of(url: str) -> set[str]:
    """Return the passwords as the URL has them, and as they are when they are unescaped."""
    found = [match[2] for pattern in (_BEFORE_HOST, _IN_QUERY) for match in pattern.finditer(url)]
    return {form for password in found for form in (password, unquote(password)) if form}
