"""Migrations, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, select, text

from guanaco.errors import InvalidSettings
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import (
    SCRIPTS,
    complete_metadata,
    current_revision,
    newest_revision,
    upgrade,
)
from guanaco_server.deployments.tables import DeploymentRow
from guanaco_server.partitions.service import TABLES
from guanaco_server.statistics.votes import VoteCount
from tests.fixtures.world import World

pytestmark = pytest.mark.both_databases

REBUILD_ACCOUNTS = """
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = {newest!r}


def upgrade():
    with op.batch_alter_table("accounts") as accounts:
        accounts.alter_column("name", type_=sa.String(80))
        accounts.add_column(sa.Column("motto", sa.String(), server_default="none"))
"""
BREAK_HALFWAY = """
from alembic import op

revision = "9999"
down_revision = {newest!r}


def upgrade():
    op.rename_table("messages", "letters")
    op.execute("INSERT INTO nowhere VALUES (1)")
"""
AN_ACCOUNT = text(
    "INSERT INTO accounts (id, name, role, created_at) VALUES ('a', 'ada', 'developer', '2026-01-01 00:00:00+00')"
)
HER_KEY = text(
    "INSERT INTO api_keys (id, account_id, secret_hash, created_at) VALUES ('k', 'a', 'hash', '2026-01-01 00:00:00+00')"
)
A_SUBMISSION = text(
    "INSERT INTO submissions (id, account_id, developer, repo, name, status, params, formatter, run, event_count, request_hash, created_at, updated_at)"
    " VALUES (:id, 'a', 'ada', 'ada/m', 'm', 'deployed', '{}', '{}', 1, 0, '', '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00')"
)
ITS_DEPLOYMENT = text(
    "INSERT INTO deployments (submission_id, run, artifact_key, max_model_tokens, phase, restarts, endpoint, updated_at)"
    " VALUES (:id, 1, 'k', 100, 'ready', 0, :endpoint, '2026-01-01 00:00:00+00')"
)
ITS_BASE = text("UPDATE deployments SET base_key = :base WHERE submission_id = :id")
PROMOTED = "UPDATE submissions SET base_repo = 'ada/b', artifact_key = 'e', is_promoted = true, merged_because = 'why'"

TWO_BACKENDS = text(
    "INSERT INTO accounts (id, name, role, created_at) VALUES ('b', 'app', 'backend', '2026-01-01 00:00:00+00'),"
    " ('c', 'other', 'backend', '2026-01-01 00:00:00+00')"
)
A_RATED_CONVERSATION = (
    text(
        "INSERT INTO conversations (id, account_id, submission_id, user_id, user_name, competition, bot, created_at,"
        " message_count, measured_count) VALUES (:id, :account, :submission, :user, 'You', 'open',"
        """ '{"name": "Luna", "memory": ""}', '2026-01-01 00:00:00+00', 0, 0)"""
    ),
    text(
        "INSERT INTO feedback (id, conversation_id, submission_id, user_id, account_id, competition, bot_name,"
        " thumbs_up, text, created_at, anonymized_by, is_counted) VALUES ('fb_' || CAST(:id AS varchar), :id,"
        " :submission, :user, :account, 'open', 'Luna', :up, '', '2026-01-01 00:00:00+00', 1, true)"
    ),
    text(
        "INSERT INTO score_conversations (conversation_id, submission_id, competition, user_id, tally)"
        " VALUES (:id, :submission, 'open', :user, '{}')"
    ),
)
COUNTED_BY_USER_ID = (
    "INSERT INTO score_votes VALUES ('17', 'open', 'm_v1', true), ('18', 'open', 'm_v2', true)",
    "INSERT INTO score_visits VALUES ('17', 'open', 'm_v1', 4, true), ('18', 'open', 'm_v2', 5, false)",
    """INSERT INTO scores (competition, submission_id, tally, up, down, version)
    VALUES ('open', 'm_v2', '{"rated": 7, "up": 1}', 1, 0, 1)""",
)


@pytest.fixture
async def empty(empty_database_url: str) -> AsyncIterator[Database]:
    database = Database(empty_database_url)
    yield database
    await database.close()


def scripts_with(migration: str, folder: Path) -> Path:
    """Our migrations and one more."""
    scripts = folder / "migrations"
    shutil.copytree(SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    body = migration.format(newest=newest_revision())
    (scripts / "versions" / "9999_one_more.py").write_text(body)
    return scripts


def scripts_before(migration: str, folder: Path) -> Path:
    """Our migrations up to that one."""
    scripts = folder / "migrations"
    shutil.copytree(SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (first,) = scripts.glob(f"versions/????_{migration}.py")
    for script in scripts.glob("versions/*.py"):
        if script.name >= first.name:
            script.unlink()
    return scripts


def partitions_in(connection: Connection) -> set[str]:
    """The tables that are parts of others."""
    if connection.dialect.name == "sqlite":
        return set()
    return set(connection.scalars(text("SELECT relname FROM pg_class WHERE relispartition")))


async def revision_of(database: Database) -> str | None:
    async with database.engine.connect() as connection:
        return await connection.run_sync(current_revision)


async def rows(database: Database, query: str) -> list[Any]:
    async with database.read() as session:
        return list((await session.execute(text(query))).all())


@pytest.mark.slow
async def test_the_migrations_make_exactly_the_tables_that_the_code_has(empty: Database) -> None:
    def differences(connection: Connection) -> list[Any]:
        partitions = partitions_in(connection)
        opts = {
            "compare_type": True,
            "include_name": lambda name, kind, _parents: kind != "table" or name not in partitions,
        }
        context = MigrationContext.configure(connection, opts=opts)
        return list(compare_metadata(context, complete_metadata()))

    await upgrade(empty)

    async with empty.engine.connect() as connection:
        assert await connection.run_sync(differences) == []


def named_primary_keys(found: Any, table: str) -> list[Any]:
    """SQLite's AUTOINCREMENT leaves no place for a name; a table in partitions has its key in each of them."""
    if found.bind.dialect.name == "postgresql" and table in {one.table for one in TABLES}:
        return []
    options = complete_metadata().tables[table].dialect_options["sqlite"]
    is_nameless = found.bind.dialect.name == "sqlite" and options["autoincrement"]
    return [] if is_nameless else [found.get_pk_constraint(table)]


async def test_every_constraint_is_named_as_the_convention_says(empty: Database) -> None:
    def names(connection: Connection) -> set[str | None]:
        found = inspect(connection)
        return {
            constraint["name"]
            for table in complete_metadata().tables
            for constraint in [
                *named_primary_keys(found, table),
                *found.get_foreign_keys(table),
                *found.get_unique_constraints(table),
                *found.get_indexes(table),
            ]
        }

    await upgrade(empty)

    async with empty.engine.connect() as connection:
        found = await connection.run_sync(names)
    assert None not in found
    assert {str(name)[:3] for name in found} == {"pk_", "fk_", "uq_", "ix_"}


async def test_upgrading_a_current_database_changes_nothing(database: Database) -> None:
    async with database.write() as session:
        await session.execute(AN_ACCOUNT)

    await upgrade(database)

    assert await rows(database, "SELECT name FROM accounts") == [("ada",)]


async def test_old_database_gains_what_it_lacks_and_keeps_rows(
    database: Database, tmp_path: Path
) -> None:
    async with database.write() as session:
        await session.execute(AN_ACCOUNT)
        await session.execute(HER_KEY)

    await upgrade(database, scripts_with(REBUILD_ACCOUNTS, tmp_path))

    assert await revision_of(database) == "9999"
    assert await rows(database, "SELECT name, motto FROM accounts") == [("ada", "none")]
    assert await rows(database, "SELECT account_id FROM api_keys") == [("a",)]


async def test_the_endpoint_of_each_deployment_becomes_its_list(
    empty: Database, tmp_path: Path
) -> None:
    await upgrade(empty, scripts_before("replicas", tmp_path))
    async with empty.write() as session:
        await session.execute(AN_ACCOUNT)
        for id, endpoint in (("m_v1", "http://one"), ("m_v2", None)):
            await session.execute(A_SUBMISSION, {"id": id})
            await session.execute(ITS_DEPLOYMENT, {"id": id, "endpoint": endpoint})

    await upgrade(empty)

    async with empty.read() as session:
        found = (await session.scalars(select(DeploymentRow))).all()
    assert {row.submission_id: row.endpoints for row in found} == {
        "m_v1": ["http://one"],
        "m_v2": [],
    }


async def test_a_submission_says_again_that_its_adapter_serves_unmerged(
    empty: Database, tmp_path: Path
) -> None:
    await upgrade(empty, scripts_before("artifacts_of_rollouts", tmp_path))
    async with empty.write() as session:
        await session.execute(AN_ACCOUNT)
        for id, base in (("m_v1", "b"), ("m_v2", "k"), ("m_v3", None)):
            await session.execute(A_SUBMISSION, {"id": id})
            await session.execute(ITS_DEPLOYMENT, {"id": id, "endpoint": None})
            await session.execute(ITS_BASE, {"id": id, "base": base})
        await session.execute(text(PROMOTED))

    await upgrade(empty)

    found = await rows(empty, "SELECT id, artifact_key, merged_because FROM submissions ORDER BY 1")
    assert found == [("m_v1", "k", None), ("m_v2", "e", "why"), ("m_v3", "e", "why")]


async def test_measured_capacity_becomes_that_of_sequences(empty: Database, tmp_path: Path) -> None:
    await upgrade(empty, scripts_before("capacity_in_sequences", tmp_path))
    best_of = {"m_v1": "{}", "m_v2": '{"best_of": 4}', "m_v3": '{"best_of": 4, "temperature": 0}'}
    async with empty.write() as session:
        await session.execute(AN_ACCOUNT)
        for id, params in best_of.items():
            await session.execute(A_SUBMISSION, {"id": id})
            await session.execute(
                text(f"UPDATE submissions SET params = '{params}' WHERE id = :id"), {"id": id}
            )
            await session.execute(ITS_DEPLOYMENT, {"id": id, "endpoint": None})
        await session.execute(ITS_DEPLOYMENT, {"id": "m_v2@2", "endpoint": None})
        await session.execute(text("UPDATE deployments SET capacity = 9"))

    await upgrade(empty)

    found = await rows(empty, "SELECT submission_id, capacity FROM deployments ORDER BY 1")
    assert found == [("m_v1", 9), ("m_v2", 36), ("m_v2@2", 36), ("m_v3", 9)]


async def test_users_of_several_accounts_are_separated_and_recounted(
    empty: Database, tmp_path: Path
) -> None:
    await upgrade(empty, scripts_before("users_of_accounts", tmp_path))
    async with empty.write() as session:
        await session.execute(AN_ACCOUNT)
        await session.execute(TWO_BACKENDS)
        for id in ("m_v1", "m_v2", "m_v3"):
            await session.execute(A_SUBMISSION, {"id": id})
        for values in (
            {"id": "c1", "account": "c", "user": "17", "submission": "m_v1", "up": False},
            {"id": "c2", "account": "b", "user": "17", "submission": "m_v1", "up": True},
            {"id": "c3", "account": "b", "user": "18", "submission": "m_v2", "up": True},
        ):
            for statement in A_RATED_CONVERSATION:
                await session.execute(statement, values)
        for statement in COUNTED_BY_USER_ID:
            await session.execute(text(statement))

    await upgrade(empty)

    assert await rows(empty, "SELECT user_key FROM score_votes") == [("b/18",)]
    assert await rows(empty, "SELECT user_key, first_day FROM score_visits") == [("b/18", 5)]
    counted = "SELECT conversation_id, user_key FROM score_conversations ORDER BY 1"
    assert await rows(empty, counted) == [("c1", "c/17"), ("c2", "b/17"), ("c3", "b/18")]
    assert await rows(empty, "SELECT submission_id FROM score_recounts") == [("m_v1",)]
    assert await rows(empty, "SELECT rated FROM scores") == [(7,)]
    assert await rows(empty, "SELECT DISTINCT anonymized_by FROM feedback") == [(0,)]
    world = World(empty)
    while not (await world.scores.counter.count_batch()).is_all:
        pass
    votes = (await world.leaderboard.votes_by_competition())["open"]
    assert votes == {"m_v1": VoteCount(1, 1), "m_v2": VoteCount(1, 0)}


async def test_a_migration_that_breaks_halfway_leaves_nothing(
    database: Database, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="nowhere"):
        await upgrade(database, scripts_with(BREAK_HALFWAY, tmp_path))

    assert await revision_of(database) == newest_revision()
    assert await rows(database, "SELECT * FROM messages") == []


async def test_platforms_that_start_at_once_migrate_once(empty_database_url: str) -> None:
    databases = [Database(empty_database_url) for _ in range(4)]

    await asyncio.gather(*(upgrade(database) for database in databases))

    assert await revision_of(databases[0]) == newest_revision()
    for database in databases:
        await database.close()


async def test_a_database_of_a_newer_version_is_refused(database: Database, tmp_path: Path) -> None:
    await upgrade(database, scripts_with(REBUILD_ACCOUNTS, tmp_path))

    with pytest.raises(InvalidSettings, match="newer than this Guanaco"):
        await upgrade(database)
