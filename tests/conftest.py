"""Fixtures that every kind of test uses."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer

from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from tests.fixtures import s3
from tests.fixtures.postgres import MissingPostgresError, PostgresServer, running_server
from tests.fixtures.s3 import S3Server
from tests.fixtures.workers import StoriesApart

ROOT = Path(__file__).parents[1]
BOTH_DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
TEMPLATE = "migrated"


def pytest_configure() -> None:
    os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; tables are to be as wide as in a pipe


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "engine_python" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.engine)


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> StoriesApart:
    return StoriesApart(config, log)


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The Python that has vLLM; CI must have it, elsewhere its tests are skipped."""
    python = Path(os.environ.get("GUANACO_ENGINE_PYTHON", ROOT / ".venv-engine" / "bin" / "python"))
    if python.exists():
        return python
    sentence = f"There is no engine environment at {python}: `make engine` makes it."
    if os.environ.get("CI"):
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server; one for all tests."""
    if os.environ.get("GUANACO_TEST_POSTGRES") == "skip":
        pytest.skip("GUANACO_TEST_POSTGRES=skip leaves PostgreSQL out.")
    try:
        with running_server() as server:
            yield server
    except MissingPostgresError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def migrated_postgres(postgres: PostgresServer) -> PostgresServer:
    """The server, with a migrated database to copy."""
    postgres.create(name=TEMPLATE)
    migrate(postgres.url(TEMPLATE))
    return postgres


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / f"{TEMPLATE}.db"
    migrate(sqlite_url(path))
    return path


@pytest.fixture(params=BOTH_DATABASES)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The SQLAlchemy URL of a database without tables, on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        yield sqlite_url(tmp_path / "guanaco.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = server.create()
    yield server.url(name)
    server.drop(name)


@pytest.fixture(params=BOTH_DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The SQLAlchemy URL of a migrated database without rows, on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        template: Path = request.getfixturevalue("migrated_sqlite")
        shutil.copy(template, tmp_path / "guanaco.db")
        yield sqlite_url(tmp_path / "guanaco.db")
        return
    server: PostgresServer = request.getfixturevalue("migrated_postgres")
    name = server.create(TEMPLATE)
    yield server.url(name)
    server.drop(name)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()


def sqlite_url(path: Path) -> str:
    return f"sqlite+aiosqlite:///{path}"


def migrate(url: str) -> None:
    async def run() -> None:
        database = Database(url)
        await upgrade(database)
        await database.close()

    loop = (
        asyncio.new_event_loop()
    )  # asyncio.run would take away the loop that pytest-asyncio keeps
    loop.run_until_complete(run())
    loop.close()


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with s3.moto() as server:
        yield server


@pytest.fixture(scope="session")
def rclone() -> Iterator[S3Server]:
    with s3.rclone() as server:
        yield server


@pytest.fixture(params=["moto", "rclone"])
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """Each S3 server in turn; one of each for all tests."""
    server: S3Server = request.getfixturevalue(request.param)
    return server
