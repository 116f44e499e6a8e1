"""Takes out of a text what its reader must not have: secrets always, the server's paths where a developer reads it.

Secrets are: every value that the caller names, anything that looks like a key or a token, the value beside a name that says so,
the password in a URL, and the whole query of a signed URL. A text may come from a process that works for a stranger, so each pattern takes
time in proportion to the text's length.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

MASK = "***"
MIN_SECRET_CHARS = 6  # a shorter one would mask ordinary words
MIN_QUERY_CHARS = 16  # of one value in a secret URL: a signature has 43 and more, a date fewer
KEY = re.compile(
    r"(gk_[A-Za-z0-9]{1,64}_)[A-Za-z0-9_-]+|(hf_oauth_)[A-Za-z0-9_.-]{8,}|((?:hf|api_org)_)[A-Za-z0-9]{8,}"
    r"|((?:AKIA|ASIA))[A-Z0-9]{16}|\b(eyJ)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
)
URL_PASSWORD = re.compile(r"(://[^\s:/@]{0,256}:)(?!\d{1,5}[/?#])\S{1,1024}@")
QUERY = re.compile(r"(\?|%(?:25)?3[Ff])[^\s?\"'<>\\]+")
SIGNED = re.compile(r"(?i)signature|x-amz-|x-goog-|awsaccesskeyid|[&?]sig=|token=|policy=")
SIGNATURE = re.compile(
    r"(?i)((?:x-(?:amz|goog)-(?:signature|credential|security-token)|signature|awsaccesskeyid)(?:=|%(?:25)?3d|['\"] ?[:,] ?b?['\"]))[^\s&\"']+"
)
HEADER = re.compile(
    r"(?i)(\bx-[a-z0-9-]{0,40}(?:token|key|secret|signature|credential)['\"]? ?[:,=] ?(?:b(?=['\"]))?['\"]?)[^\s'\",;&]+"
)
NAMED = re.compile(
    r"(?i)(\b(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|client[_-]?secret)(?:=|['\"] ?[:,] ?)(?:b(?=['\"]))?['\"]?)[^\s'\",;&]+"
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
        self._secrets = _longest_first(secrets)
        tops = {
            *SYSTEM_FOLDERS,
            *(path.absolute().parts[1] for path in folders if len(path.absolute().parts) > 1),
        }
        names = "|".join(re.escape(top) for top in sorted(tops))
        self._path = re.compile(rf"(?:file://|(?<![\w./:%-]))/(?:{names})/[^\s'\"(),;:<>\[\]]+")

    def knowing(self, values: Iterable[str]) -> Redaction:
        """Return the same that also masks these secrets, and each secret within one that is a URL or JSON."""
        more = copy.copy(self)
        parts = [part for value in values for part in _parts(value)]
        more._secrets = _longest_first((*self._secrets, *parts))
        return more

    def clean(self, text: str) -> str:
        """Mask the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        text = QUERY.sub(_masked_query, text)
        text = KEY.sub(lambda found: f"{next(filter(None, found.groups()))}{MASK}", text)
        for pattern in (URL_PASSWORD, SIGNATURE, AUTHORIZATION, VARIABLE, HEADER, NAMED):
            text = pattern.sub(
                lambda found: f"{found[1]}{MASK}{'@' if found[0].endswith('@') else ''}", text
            )
        return text

    def clean_output(self, text: str) -> str:
        """Mask the secrets and shorten the paths of what a job or a model server said."""
        return self._path.sub(_short_path, self.clean(text))


def _longest_first(secrets: Iterable[str]) -> list[str]:
    long_enough = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
    return sorted(long_enough, key=len, reverse=True)


def _parts(value: str) -> Iterator[str]:
    """Yield the secret, the texts within it if it is a JSON object, and the long values in the query of each that is a URL."""
    texts = [value]
    if value.startswith("{"):
        parsed = json.loads(value)
        texts += [text for text in parsed.values() if isinstance(text, str)]
    for text in texts:
        yield text
        for pair in urlsplit(text).query.split("&") if "://" in text else ():
            given = pair.partition("=")[2]
            if len(given) >= MIN_QUERY_CHARS:
                yield from (given, unquote(given))


def _masked_query(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if SIGNED.search(found[0]) else found[0]


def _short_path(found: re.Match[str]) -> str:
    """Return a file of a package by its place in the package; of any other path the last part."""
    within = PACKAGES.sub("", found[0])
    return within if within != found[0] else f"…/{found[0].rstrip('/').rpartition('/')[2]}"
