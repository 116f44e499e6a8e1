"""The erasure ledger in a folder and on each S3 server: what is entered is there for another process, and names nobody."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from guanaco.errors import StoreUnreachable
from guanaco_server.assembly.adapters import build_ledger
from guanaco_server.feedback.erasures.ledger import (
    ErasureEntry,
    ErasureLedger,
    in_force,
    new_id,
)
from guanaco_server.feedback.erasures.s3_ledger import PREFIX
from guanaco_server.settings import Settings
from tests.fixtures.s3 import SERVERS, S3Server, boto

AT = datetime(2026, 11, 22, 19, 15, tzinfo=UTC)


@pytest.fixture(params=["folder", *SERVERS])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Return the settings of a platform that keeps its artifacts there."""
    if request.param == "folder":
        return Settings(data_dir=tmp_path)
    server: S3Server = request.getfixturevalue(request.param)
    return Settings(data_dir=tmp_path, **server.settings())


@pytest.fixture
def ledger(settings: Settings) -> ErasureLedger:
    return build_ledger(settings)


def entry(user: str) -> ErasureEntry:
    hashed = hashlib.sha256(user.encode()).hexdigest()
    return ErasureEntry(id=new_id(), at=AT, user=hashed, key="0123456789abcdef")


async def test_another_process_reads_what_was_entered(
    ledger: ErasureLedger, settings: Settings
) -> None:
    assert await ledger.ids() == set()
    alice, bob = entry("app/alice"), entry("app/bob")
    for one in (alice, bob, alice):  # every call may be repeated
        await ledger.add(one)
    other = build_ledger(settings)
    assert await other.ids() == {alice.id, bob.id}
    assert await other.read([bob.id]) == [bob]


async def test_a_revoked_entry_is_no_longer_in_force(ledger: ErasureLedger) -> None:
    wrong, right = entry("app/alice"), entry("app/bob")
    for one in (wrong, right, ErasureEntry(id=new_id(), at=AT, revokes=wrong.id)):
        await ledger.add(one)
    assert in_force(await ledger.read(await ledger.ids())) == [right]


async def test_an_entry_that_is_not_there_is_one_sentence(s3_server: S3Server) -> None:
    ledger = build_ledger(Settings(**s3_server.settings()))
    with pytest.raises(StoreUnreachable, match="cannot be read"):
        await ledger.read([new_id()])


async def test_foreign_objects_are_no_entries_and_entries_hold_no_name(
    s3_server: S3Server,
) -> None:
    settings = Settings(**s3_server.settings())
    ledger, config = build_ledger(settings), s3_server.made[-1]
    await ledger.add(one := entry("app/Alicanto"))
    client = boto(config)
    folder = f"models/{PREFIX}"
    client.put_object(Bucket=config.bucket, Key=f"{folder}README.txt", Body=b"of somebody")
    assert await ledger.ids() == {one.id}
    stored = client.get_object(Bucket=config.bucket, Key=f"{folder}{one.id}")["Body"].read()
    assert b"Alicanto" not in stored
    assert ErasureEntry.model_validate_json(stored) == one


async def test_a_ledger_out_of_reach_is_said_to_be(s3_server: S3Server) -> None:
    settings = Settings(**{**s3_server.settings(), "artifacts_url": "s3://guanaco-is-not-there/m"})
    ledger = build_ledger(settings)
    with pytest.raises(StoreUnreachable):
        await ledger.add(entry("app/alice"))
    with pytest.raises(StoreUnreachable):
        await ledger.ids()
