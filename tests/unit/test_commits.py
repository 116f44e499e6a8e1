import sqlite3
from pathlib import Path

import pytest

from guanaco_server.database import commits
from guanaco_server.database.commits import CommitCounter, CommitWatch


@pytest.fixture
def file(tmp_path: Path) -> str:
    file = str(tmp_path / "some.db")
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE ones (one INTEGER)")
    return file


def commit(file: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("INSERT INTO ones VALUES (1)")


def test_each_watcher_hears_of_a_commit_once(file: str) -> None:
    counter = CommitCounter(file)
    watchers = [CommitWatch(counter.read), CommitWatch(counter.read)]
    assert [watcher.take() for watcher in watchers] == [True, True]  # nothing was looked at before
    assert [watcher.take() for watcher in watchers] == [False, False]
    commit(file)
    assert [watcher.take() for watcher in watchers] == [True, True]
    assert [watcher.take() for watcher in watchers] == [False, False]
    counter.close()


def test_a_look_that_failed_is_made_again(file: str) -> None:
    counter = CommitCounter(file)
    watcher = CommitWatch(counter.read)
    assert watcher.take()
    watcher.reset()
    assert watcher.take()
    counter.close()


def test_time_alone_makes_a_look_due(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(commits.time, "monotonic", lambda: now)
    counter = CommitCounter(file)
    watcher = CommitWatch(counter.read)
    assert watcher.take()
    now += commits.LOOK_ANYWAY_S - 0.1
    assert not watcher.take()
    now += 0.1
    assert watcher.take()
    counter.close()


def test_what_cannot_be_counted_is_always_looked_at(tmp_path: Path) -> None:
    counter = CommitCounter(str(tmp_path / "missing" / "some.db"))
    watcher = CommitWatch(counter.read)
    assert [watcher.take(), watcher.take()] == [True, True]
    assert CommitWatch(lambda: None).take()
