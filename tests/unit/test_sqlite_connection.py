"""Our connection to SQLite over aiosqlite: for which version it is made, and one trip to its thread for a statement."""

from __future__ import annotations

import tomllib
from pathlib import Path

import aiosqlite
import pytest

from guanaco_server.database.sqlite_connection import MADE_FOR, OneTripConnection, connect

ROOT = Path(__file__).parents[2]


def test_it_is_made_for_the_aiosqlite_that_is_installed() -> None:
    """Read aiosqlite's core.py if this fails, then raise MADE_FOR and the bound in pyproject.toml together."""
    assert aiosqlite.__version__.startswith(f"{MADE_FOR}.")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        requirement
        for group in (project["dependencies"], *project["optional-dependencies"].values())
        for requirement in group
        if requirement.startswith("aiosqlite")
    ]
    major, minor = MADE_FOR.split(".")
    assert wanted == [f"aiosqlite>={MADE_FOR},<{major}.{int(minor) + 1}"]


async def test_a_statement_with_its_rows_is_one_trip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = 0
    call = OneTripConnection.call

    async def counted(self: OneTripConnection, work: object) -> object:
        nonlocal trips
        trips += 1
        return await call(self, work)  # type: ignore[arg-type]

    monkeypatch.setattr(OneTripConnection, "call", counted)
    connection = await connect(str(tmp_path / "one.db"))
    async with connection.cursor() as cursor:
        await cursor.execute("CREATE TABLE t (n INTEGER)")
        await cursor.executemany("INSERT INTO t VALUES (?)", [(1,), (2,), (3,)])
        assert cursor.rowcount == 3
        await cursor.execute("SELECT n FROM t ORDER BY n")
        assert [name for name, *_ in cursor.description] == ["n"]
        assert await cursor.fetchone() == (1,)
        assert await cursor.fetchmany(1) == [(2,)]
        assert list(await cursor.fetchall()) == [(3,)]
    assert trips == 3
    await connection.rollback()
    await connection.close()
