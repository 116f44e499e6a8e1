"""Tells processes that know only URLs of the artifact store which certificates vouch for it.

The text of ``s3_ca_file`` travels in the environment of jobs and model servers: a pod needs no volume for it, and a
confined process no file. It is cut into several variables, because Linux has 128 KiB for one. If it is not set, the system's certificates count.
"""

from __future__ import annotations

import itertools
import os
import ssl
from collections.abc import Mapping
from functools import cache

PREFIX = "GUANACO_STORE_CERTIFICATES_"
CHUNK_CHARS = 96 * 1024
MAX_CHARS = 512 * 1024  # a Kubernetes Secret has room for 1 MiB
UNTRUSTED = "The artifact store's certificate is not trusted: the operator names its authority in s3_ca_file."


def as_environment(certificates: str) -> dict[str, str]:
    starts = range(0, len(certificates), CHUNK_CHARS)
    return {f"{PREFIX}{i}": certificates[at : at + CHUNK_CHARS] for i, at in enumerate(starts)}


def trusted_by(environment: Mapping[str, str] = os.environ) -> ssl.SSLContext | None:
    """Return what trusts those certificates alone; None without any, for what trusts the system's."""
    chunks = (environment.get(f"{PREFIX}{number}", "") for number in itertools.count())
    certificates = "".join(itertools.takewhile(bool, chunks))
    return context_of(certificates) if certificates else None


@cache
def context_of(certificates: str) -> ssl.SSLContext:
    """Raise ssl.SSLError if the text holds no certificate."""
    return ssl.create_default_context(cadata=certificates)
