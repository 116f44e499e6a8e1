"""Tests that what an idle platform does not use is imported at its first use: each of these takes megabytes."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "alembic",
    "boto3",
    "cryptography",
    "dbos",
    "httpx2",
    "huggingface_hub",
    "kubernetes",
    "numpy",
    "opentelemetry.sdk",
    "psycopg",
    "pyarrow",
    "tokenizers",
    "torch",
    "urllib3",
)


@pytest.mark.slow
def test_the_entrance_imports_nothing_heavy() -> None:
    """Neither when it is imported, nor when it is assembled: without an endpoint for traces, their SDK is not."""
    code = f"""
import sys, guanaco_server.serve
print(*(name for name in {HEAVY} if name in sys.modules))
from guanaco_server.assembly.adapters import build_tracing
from guanaco_server.settings import Settings
build_tracing(Settings())
print(*(name for name in sys.modules if name.startswith("opentelemetry.sdk")))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == []
