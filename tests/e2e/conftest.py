"""Provides what the stories share: a Hub with a real repo, and a platform that starts in a second."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from guanaco.submissions import Status
from guanaco_server.demo.tiny_repo import make_tiny_repo
from tests.fixtures import warm_start
from tests.fixtures.hub import ControlledHub
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.roles import Roles
from tests.fixtures.up import SCRIPTED_ENGINE, START_S, Up, eventually

StartPlatform = Callable[..., Up]

QUICK: dict[str, object] = {
    "engine_command": SCRIPTED_ENGINE,
    "stress_duration_s": 0.5,
    "stress_rate": 4,
    "stress_requests": 4,
    "failover_s": 60,  # a busy machine takes its time to start a server again
    "first_token_timeout_s": 60,
}
# On the shared platform a submission's name chooses what its model server does.
BY_NAME = (
    "constant:--say=constant",
    "empty:--say=empty",
    "nan:--say=nan",
    "dead:--die-at-start",
    "lossy:--quantized-logprob=-1.5",
    "late:--start-delay=8",
)
SHARED_MAX_PARAMETERS = 1_600_000  # the tiny repo has 1,574,144


class SharedPlatform:
    """One `guanaco up`, with its Hub, for the stories that do not stop it and need no settings of their own."""

    def __init__(self, up: Up, hub: ControlledHub) -> None:
        self.up = up
        self.hub = hub
        self.client = up.client()
        self._repos = 0

    def repo(self, name: str) -> Path:
        """Make a repo acme/NAME with a commit of its own, and give its folder."""
        self._repos += 1
        make_tiny_repo(self.hub.root / "acme" / name, seed=self._repos)
        return self.hub.root / "acme" / name

    def tear_down(self) -> None:
        """Tear down what is published, until no model server is left."""
        self.hub.release()
        for submission in self.client.submissions():
            if submission.status in (Status.DEPLOYED, Status.INACTIVE):
                self.client.teardown(submission.id)
        eventually(lambda: not self.up.model_servers(), "end of the model servers")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ControlledHub]:
    """With one good repo, acme/tiny."""
    make_tiny_repo(tmp_path / "hub" / "acme" / "tiny")
    with ControlledHub(tmp_path / "hub") as hub:
        yield hub
        hub.release()


@contextmanager
def shared_platform(
    folder: Path, engine_python: Path, **settings: object
) -> Iterator[SharedPlatform]:
    with ControlledHub(folder / "hub") as hub:
        given = QUICK | {"hub_endpoint": hub.url, "engine_python": str(engine_python)}
        up = Up(folder / "up", **(given | settings))
        up.start(is_cold=True)  # as an operator's; the other stories' platforms start warm
        yield SharedPlatform(up, hub)
        hub.release()
        up.stop()
        assert up.model_servers() == [], "a stopped platform leaves no model server behind"


@pytest.fixture(scope="session")
def started_platform(
    tmp_path_factory: pytest.TempPathFactory, engine_python: Path
) -> Iterator[SharedPlatform]:
    rules = [word for rule in BY_NAME for word in ("--for", rule)]
    with shared_platform(
        tmp_path_factory.mktemp("shared"),
        engine_python,
        engine_command=[*SCRIPTED_ENGINE, *rules],
        max_parameters=SHARED_MAX_PARAMETERS,
        restart_limit=1,
    ) as shared:
        yield shared


@pytest.fixture
def platform(started_platform: SharedPlatform) -> Iterator[SharedPlatform]:
    """The shared platform; what a test has published is torn down after it."""
    yield started_platform
    started_platform.tear_down()


@pytest.fixture(scope="session")
def new_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with nothing but the tables, which a platform's first start takes a second of processor time to make."""
    folder = tmp_path_factory.mktemp("tables")
    log = folder.with_suffix(".log")
    made = warm_start.start("tests.fixtures.new_tables", str(folder), log=log)
    assert made.wait(START_S) == 0, log.read_text()
    return folder


@pytest.fixture
def start_platform(
    tmp_path: Path, hub: ControlledHub, engine_python: Path, new_tables: Path
) -> Iterator[StartPlatform]:
    """Starts `guanaco up` with a scripted model server (or the given engine) and the real serializer; nothing outlives the test."""
    started: list[Up] = []

    def start(**settings: object) -> Up:
        given = QUICK | {"hub_endpoint": hub.url, "engine_python": str(engine_python)}
        up = Up(tmp_path / f"up{len(started)}", **(given | settings))
        started.append(up)
        shutil.copytree(new_tables, up.data_dir)
        up.start()
        return up

    yield start
    for up in started:
        up.stop()
        assert up.model_servers() == [], "a stopped platform leaves no model server behind"


@pytest.fixture
def role_settings() -> dict[str, object]:
    """Settings of all roles; a module's own fixture of this name has others."""
    return {}


@pytest.fixture
def roles(
    tmp_path: Path,
    hub: ControlledHub,
    engine_python: Path,
    postgres: PostgresServer,
    role_settings: dict[str, object],
) -> Iterator[Roles]:
    """Processes of the platform's roles, which share a database of their own."""
    name = postgres.create()
    with ExitStack() as stack:
        stack.callback(postgres.drop, name)
        yield stack.enter_context(
            Roles(
                tmp_path,
                database_url=postgres.url(name),
                hub_endpoint=hub.url,
                engine_python=str(engine_python),
                **role_settings,
            )
        )
