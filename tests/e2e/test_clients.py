"""Clients that others make: generated from openapi.json in Python and TypeScript, OpenAI's in JavaScript; and schemathesis.

Each runs as a program of its own against the platform over a socket. `scripts/setup-clients` installs what they need.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from guanaco_server.http import api_document
from tests.fixtures.served_app import served
from tests.fixtures.world import World

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-clients"
SMOKE = ROOT / "tests" / "clients"
STRICT = ("--strict", "--noUncheckedIndexedAccess", "--target", "es2022", "--module", "nodenext")

CHECKS = "status_code_conformance,content_type_conformance,response_schema_conformance"
FUZZING = (
    f"--checks={CHECKS}",
    "--phases=fuzzing",
    "--seed=13",
    "--generation-database=none",
    "--exclude-path-regex=/events$",  # endless
)
EXAMPLES = {Role.ADMIN: 3, Role.DEVELOPER: 1, Role.BACKEND: 1}
"""Requests of each operation, by role: an admin's key opens all, the others' show how most are refused."""


@dataclass(frozen=True)
class Platform:
    url: str
    document: Path
    model: str
    keys: dict[Role, str]


@pytest.fixture
def tools() -> Path:
    """The folder of the environment; CI must have it, elsewhere its tests are skipped."""
    if (VENV / ".installed").exists():
        return VENV
    sentence = "There is no .venv-clients: `scripts/setup-clients` makes it; it needs node and npm."
    if os.environ.get("CI"):
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


@pytest.fixture
async def platform(database: Database, tmp_path: Path) -> AsyncIterator[Platform]:
    world = World(database)
    model = await world.publish(await world.account(Role.DEVELOPER, "ada"))
    keys = {role: await world.key(role, f"of-{role}") for role in Role}
    document = shutil.copy(api_document.FILE, tmp_path / "openapi.json")
    async with served(world.app) as url:
        yield Platform(url, document, model, keys)


async def run(*command: str | Path, cwd: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_a_generated_python_client_works(
    tools: Path, platform: Platform, tmp_path: Path
) -> None:
    made = await run(
        tools / "bin" / "openapi-python-client",
        "generate",
        *("--path", platform.document, "--output-path", tmp_path / "generated", "--meta", "none"),
        cwd=tmp_path,
    )
    assert "will not be generated" not in made
    python = tools / "bin" / "python"
    await run(python, "-m", "compileall", "-q", "generated", cwd=tmp_path)
    shutil.copy(SMOKE / "smoke.py", tmp_path)
    said = await run(python, "smoke.py", platform.url, platform.keys[Role.BACKEND], cwd=tmp_path)
    assert "every call was answered" in said


async def test_a_generated_typescript_client_and_openais_work(
    tools: Path, platform: Platform, tmp_path: Path
) -> None:
    (tmp_path / "node_modules").symlink_to(tools / "node_modules")
    for name in ("package.json", "smoke.ts"):
        shutil.copy(SMOKE / name, tmp_path)
    bin = tools / "node_modules" / ".bin"
    await run(
        bin / "openapi-typescript",
        platform.document,
        "--default-non-nullable=false",
        "-o",
        "schema.ts",
        cwd=tmp_path,
    )
    await run(bin / "tsc", *STRICT, "--skipLibCheck", "smoke.ts", cwd=tmp_path)
    key = platform.keys[Role.BACKEND]
    said = await run("node", "smoke.js", platform.url, key, platform.model, cwd=tmp_path)
    assert "every call was answered" in said


async def test_schemathesis_finds_nothing_undocumented(
    tools: Path, platform: Platform, tmp_path: Path
) -> None:
    """The document is made without ``default``, which would document every status."""
    document = json.loads(platform.document.read_text())
    for methods in document["paths"].values():
        for operation in methods.values():
            del operation["responses"]["default"]
    platform.document.write_text(json.dumps(document))
    for role, examples in EXAMPLES.items():
        await run(
            tools / "bin" / "schemathesis",
            "run",
            platform.document,
            *("--url", platform.url, "-H", f"Authorization: Bearer {platform.keys[role]}"),
            *FUZZING,
            f"--max-examples={examples}",
            cwd=tmp_path,
        )
