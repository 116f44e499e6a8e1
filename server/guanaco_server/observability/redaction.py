"""Takes out of a text what its reader must not have: secrets always, the server's paths where a developer reads it.

Secrets are: every value that the caller names, anything that looks like a key or a token, the password in a URL,
and the whole query of a signed URL. A text may come from a process that works for a stranger, so each pattern takes
time in proportion to the text's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

MASK = "***"
MIN_SECRET_CHARS = 6  # a shorter one would mask ordinary words
KEY = re.compile(
    r"(gk_[A-Za-z0-9]{1,64}_)[A-Za-z0-9_-]+|(hf_)[A-Za-z0-9]{8,}|((?:AKIA|ASIA))[A-Z0-9]{16}"
)
URL_PASSWORD = re.compile(r"(://[^\s:/@]{0,256}:)(?!\d{1,5}[/?#])\S{1,1024}@")
QUERY = re.compile(r"(\?|%3[Ff])[^\s?\"'<>\\]+")
SIGNED = re.compile(r"(?i)signature|x-amz-|x-goog-|awsaccesskeyid|[&?]sig=|token=|policy=")
SIGNATURE = re.compile(
    r"(?i)((?:x-(?:amz|goog)-(?:signature|credential|security-token)|signature|awsaccesskeyid)(?:=|%3d))[^\s&\"']+"
)
AUTHORIZATION = re.compile(
    r"(?i)((?:authorization\W{1,4}|\b)(?:bearer|basic) )[A-Za-z0-9._~+/=-]{6,}"
)
VARIABLE = re.compile(
    r"(\b(?:GUANACO|HF|AWS|PG)[A-Z_]{0,40}(?:KEY|TOKEN|TICKET|URLS?|SECRET|PASSWORD)['\"]?[=:] ?['\"]?)[^\s'\"]+"
)
SYSTEM_FOLDERS = (
    *("app", "bin", "boot", "cache", "data", "dev", "etc", "home", "lib", "lib64", "media", "mnt", "models"),
    *("opt", "proc", "root", "run", "sbin", "snap", "srv", "sys", "tmp", "usr", "var", "workspace"),
)  # fmt: skip
PACKAGES = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/")


class Redaction:
    """``folders`` are the platform's own, wherever they are; a system's usual ones are known."""

    def __init__(self, secrets: Iterable[str], folders: Iterable[Path] = ()) -> None:
        long_enough = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
        self._secrets = sorted(long_enough, key=len, reverse=True)
        tops = {
            *SYSTEM_FOLDERS,
            *(path.absolute().parts[1] for path in folders if len(path.absolute().parts) > 1),
        }
        names = "|".join(re.escape(top) for top in sorted(tops))
        self._path = re.compile(rf"(?:file://|(?<![\w./:%-]))/(?:{names})/[^\s'\"(),;:<>\[\]]+")

    def clean(self, text: str) -> str:
        """Mask the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        text = QUERY.sub(_masked_query, text)
        text = KEY.sub(lambda found: f"{found[1] or found[2] or found[3]}{MASK}", text)
        for pattern in (URL_PASSWORD, SIGNATURE, AUTHORIZATION, VARIABLE):
            text = pattern.sub(
                lambda found: f"{found[1]}{MASK}{'@' if found[0].endswith('@') else ''}", text
            )
        return text

    def clean_output(self, text: str) -> str:
        """Mask the secrets and shorten the paths of what a job or a model server said."""
        return self._path.sub(_short_path, self.clean(text))


def _masked_query(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if SIGNED.search(found[0]) else found[0]


def _short_path(found: re.Match[str]) -> str:
    """Return a file of a package by its place in the package; of any other path the last part."""
    within = PACKAGES.sub("", found[0])
    return within if within != found[0] else f"…/{found[0].rstrip('/').rpartition('/')[2]}"
