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
    code = f"import sys, guanaco_server.serve; print(*(n for n in {HEAVY} if n in sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == []
