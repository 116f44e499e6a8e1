"""The built wheel in an environment of its own: the SDK and the CLI, and nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
HEAVY = {"fastapi", "sqlalchemy", "torch", "dbos", "numpy", "boto3", "cryptography", "uvicorn"}


def output_of(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_is_a_light_client_under_our_own_name(tmp_path: Path) -> None:
    build = ("-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "dist"))
    output_of(sys.executable, *build, cwd=ROOT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name == f"guanaco_platform-{VERSION}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert "guanaco_server/migrations/env.py" in names
    assert "guanaco_server/web/runbooks.md" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]

    output_of(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=tmp_path)
    bin = tmp_path / "venv" / "bin"
    lock = (ROOT / "requirements" / "platform.txt").read_text().splitlines()
    pins = tmp_path / "pins.txt"  # without hashes: pip would want one of the wheel too
    pins.write_text("\n".join(line.rstrip(" \\") for line in lock if "==" in line))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", bin / "python")
    output_of(*pip, "install", "-qq", "--no-compile", "-c", pins, wheel, cwd=tmp_path)
    listed = json.loads(output_of(*pip, "list", "--format=json", cwd=tmp_path))
    installed = {package["name"].lower() for package in listed}
    assert "guanaco-platform" in installed
    assert not installed & HEAVY

    assert output_of(bin / "guanaco", "--version", cwd=tmp_path).strip() == VERSION
    script = "import guanaco; print(guanaco.Client.__name__, guanaco.__version__)"
    assert output_of(bin / "python", "-c", script, cwd=tmp_path).split() == ["Client", VERSION]
    client = {"PATH": str(bin), "HOME": str(tmp_path), "GUANACO_URL": "http://127.0.0.1:9"}
    for command, says in (
        (["doctor"], "cannot use a server yet"),
        (["plan", "llama-3-8b"], "http://127.0.0.1:9"),
        (["prompt", "render", "chatml"], "http://127.0.0.1:9"),
    ):
        asked = subprocess.run(
            [bin / "guanaco", *command], cwd=tmp_path, env=client, capture_output=True, text=True
        )
        assert says in asked.stderr, asked.stderr
    refused = subprocess.run([bin / "guanaco", "up"], cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "pip install 'guanaco-platform[server]'" in refused.stderr
