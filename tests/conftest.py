"""Fixtures that every kind of test uses."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from sqlalchemy import event
from xdist.remote import Producer

from guanaco_server.clusters.local import fork_server as fork_server_module
from guanaco_server.clusters.local.fork_server import ForkServerProcess
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from tests.fixtures import s3
from tests.fixtures.endings import end_all
from tests.fixtures.engine_interpreter import EngineInterpreter
from tests.fixtures.forked import begin_forks
from tests.fixtures.lent_fork_server import LentForkServer
from tests.fixtures.postgres import MissingPostgresError, PostgresServer, running_server
from tests.fixtures.s3 import S3Server
from tests.fixtures.statements import keep_dialect, share_compiled
from tests.fixtures.workers import StoriesApart

ROOT = Path(__file__).parents[1]
SQLITE = "sqlite"
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)
TEMPLATE = "migrated"

# A deadline would make examples fail on a busy machine; with CI=true hypothesis has a profile without one itself.
hypothesis.settings.register_profile("unhurried", deadline=None)
if "CI" not in os.environ:
    hypothesis.settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--databases",
        choices=["chosen", "both", "sqlite"],
        default="chosen",
        help="chosen: both for tests marked both_databases, for the others the one that their name chooses",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with a database on both kinds of database, or on one of them."""
    marks = metafunc.definition.iter_markers("parametrize")
    if "database_url" in metafunc.fixturenames and not any(
        mark.args[0] == "database_url" for mark in marks
    ):
        metafunc.parametrize("database_url", _databases(metafunc), indirect=True)


def _databases(metafunc: pytest.Metafunc) -> list[Any]:
    wanted = metafunc.config.getoption("--databases")
    if wanted == "sqlite" or os.environ.get("GUANACO_TEST_POSTGRES") == "skip":
        return [SQLITE]
    if wanted == "both" or metafunc.definition.get_closest_marker("both_databases"):
        return [SQLITE, POSTGRES]
    name = f"{metafunc.module.__name__}.{metafunc.function.__name__}"
    return [(SQLITE, POSTGRES)[zlib.crc32(name.encode()) % 2]]


def pytest_configure() -> None:
    os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; tables are to be as wide as in a pipe


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need the engine, and those that are slow because of a server that they need."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "engine_python" in fixtures:
            item.add_marker(pytest.mark.engine)
        if any(server in fixtures for server in ("s3_server", "moto", "rclone", "given")):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking again and again through all modules and tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why each test failed that passed when it was run again, which only CI does; it is a fault all the same."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"failed first: {report.nodeid} ({report.when})")
        terminalreporter.write_line(report.longreprtext)


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
def engine_forks(engine_python: Path) -> None:
    """The process that has imported vLLM, once for all workers; what they start warm forks its model servers from it."""
    begin_forks(engine_python)


@pytest.fixture
def clusters_fork(engine_forks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process's own clusters do so too."""
    monkeypatch.setattr(fork_server_module, "ForkServerProcess", LentForkServer)


@pytest.fixture(scope="session")
def engine_interpreter(
    engine_forks: None, tmp_path_factory: pytest.TempPathFactory
) -> EngineInterpreter:
    """For tests that ask vLLM's own code something without starting a server."""
    return EngineInterpreter(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="session")
def fork_server(engine_forks: None) -> Iterator[ForkServerProcess]:
    """For all tests that start a model server without a platform."""
    process = LentForkServer()
    yield process
    asyncio.run(process.stop())


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server; one for all tests."""
    if os.environ.get("GUANACO_TEST_POSTGRES") == "skip":
        pytest.skip("GUANACO_TEST_POSTGRES=skip leaves PostgreSQL out.")
    try:
        with running_server(is_in_memory=True) as server:
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


@pytest.fixture(params=[SQLITE, POSTGRES])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The SQLAlchemy URL of a database without tables, on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        yield sqlite_url(tmp_path / "guanaco.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = server.create()
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The SQLAlchemy URL of a migrated database without rows; which kind is the test's parameter."""
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
    share_compiled(database)
    if database.engine.dialect.name == SQLITE:
        event.listen(database.engine.sync_engine, "connect", _never_wait_for_the_disk)
    yield database
    await end_all()
    await database.close()


def _never_wait_for_the_disk(connection: Any, _record: Any) -> None:
    """Have SQLite not wait for the disk: as for PostgreSQL, nothing here has to outlive a power cut."""
    connection.execute("PRAGMA synchronous=OFF")


def sqlite_url(path: Path) -> str:
    return f"sqlite+aiosqlite:///{path}"


def migrate(url: str) -> None:
    async def run() -> None:
        database = Database(url)
        await upgrade(database)
        keep_dialect(database)
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


@pytest.fixture(scope="session")
def given() -> Iterator[S3Server]:
    with s3.given() as server:
        yield server


@pytest.fixture(params=s3.SERVERS)
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """Each S3 server in turn; one of each for all tests."""
    server: S3Server = request.getfixturevalue(request.param)
    return server
