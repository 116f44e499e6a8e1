"""A start that the database fails says so in a sentence, and stops what it has started."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import InterfaceError, OperationalError

from guanaco.errors import DatabaseUnavailable
from guanaco_server.database.database import Database
from tests.fixtures.world import World


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
async def test_a_database_that_fails_during_a_start_is_said_in_a_sentence(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[OperationalError] | type[InterfaceError],
) -> None:
    async def fail() -> None:
        raise kind("SELECT 1", {}, OSError("server closed the connection unexpectedly"))

    platform = World(database).platform
    monkeypatch.setattr(platform.rooms.feedback.erasures, "replay", fail)
    with pytest.raises(DatabaseUnavailable, match="database does not answer: server closed"):
        async with platform.running():
            raise AssertionError("it must not have started")
