"""Checking a repo without submitting it, and deleting a submission that failed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from guanaco.accounts import Role
from guanaco.errors import Blame, HubUnreachable
from guanaco.submissions import PIPELINE_STATUSES, Failure, Status
from guanaco_server.artifacts.hub.hub import RepoSnapshot
from guanaco_server.database.database import Database
from guanaco_server.submissions import lifecycle
from tests.fixtures.pipeline import tiny_files
from tests.fixtures.world import World

ID = "acme-tiny_v1"


async def move(world: World, *statuses: Status) -> None:
    for status in statuses:
        async with world.database.write() as session:
            await lifecycle.transition(session, ID, status, at=world.clock.now())


@pytest.mark.both_databases
async def test_what_failed_before_it_was_live_can_be_deleted(database: Database) -> None:
    world = World(database)
    http = await world.http(Role.DEVELOPER)
    sent = {"json": {"repo": "acme/tiny"}, "headers": {"Idempotency-Key": "once"}}
    await http.post("/submissions", **sent)  # type: ignore[arg-type]
    early = await http.delete(f"/submissions/{ID}")
    assert (early.status_code, early.json()["error"]) == (409, "cannot_delete")
    await move(world, Status.CHECKING, Status.FAILED)
    stranger = await world.http(Role.DEVELOPER, "bob")
    assert (await stranger.delete(f"/submissions/{ID}")).status_code == 404
    assert (await http.delete(f"/submissions/{ID}")).json()["id"] == ID
    assert (await http.get("/submissions")).json() == []
    for answer in (
        await http.get(f"/submissions/{ID}"),
        await http.delete(f"/submissions/{ID}"),
        await http.post(f"/submissions/{ID}/redeploy"),
    ):
        assert (answer.status_code, answer.json()["error"]) == (404, "submission_not_found")
    again = await http.post("/submissions", **sent)  # type: ignore[arg-type]
    assert again.json()["id"] == "acme-tiny_v2", "an id is not given twice"


async def test_a_failure_that_is_torn_down_tells_why(
    database: Database,
) -> None:
    world = World(database)
    http = await world.http(Role.DEVELOPER)
    await http.post("/submissions", json={"repo": "acme/tiny"})
    failure = Failure(code="repo_not_found", detail="No repo.", blame=Blame.DEVELOPER)
    await move(world, Status.CHECKING)
    async with world.database.write() as session:
        await lifecycle.transition(
            session, ID, Status.FAILED, at=world.clock.now(), failure=failure
        )
    torn = (await http.post(f"/submissions/{ID}/teardown")).json()
    assert (torn["status"], torn["failure"]["code"]) == ("torn_down", "repo_not_found")
    assert (await http.delete(f"/submissions/{ID}")).json()["id"] == ID


async def test_what_was_live_cannot_be_deleted(database: Database) -> None:
    world = World(database)
    http = await world.http(Role.DEVELOPER)
    await http.post("/submissions", json={"repo": "acme/tiny"})
    await move(world, *PIPELINE_STATUSES[1:], Status.DEPLOYED, Status.FAILED)
    answer = await http.delete(f"/submissions/{ID}")
    assert (answer.status_code, answer.json()["error"]) == (409, "cannot_delete")
    assert "was live" in answer.json()["detail"]
    assert (await http.get(f"/submissions/{ID}")).json()["status"] == "failed"


async def test_a_check_says_what_a_submission_would_and_stores_nothing(
    database: Database, tmp_path: Path
) -> None:
    world = World(database)
    tiny_files(tmp_path / "repo")
    files: dict[str, Any] = {path.name: path.read_bytes() for path in (tmp_path / "repo").iterdir()}
    world.hub.add_repo("acme/tiny", files)
    http = await world.http(Role.DEVELOPER)
    passed = (await http.post("/checks", json={"repo": "acme/tiny"})).json()
    assert passed["failure"] is None
    assert passed["architecture"] == "LlamaForCausalLM"
    assert passed["parameter_count"] > 0
    assert len(passed["commit"]) == 40
    no_repo = (await http.post("/checks", json={"repo": "acme/none"})).json()
    assert no_repo["failure"]["code"] == "repo_not_found"
    assert no_repo["failure"]["stage"] == "resolve"
    body = {"repo": "acme/tiny", "params": {"max_input_tokens": 100_000}}
    too_long = (await http.post("/checks", json=body)).json()
    assert (too_long["failure"]["code"], too_long["failure"]["stage"]) == (
        "context_too_long",
        "check",
    )
    assert (await http.get("/submissions")).json() == []
    await world.prompts.close()


async def test_a_developer_has_one_check_at_a_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(database)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(repo: str, revision: str | None) -> RepoSnapshot:
        begun.set()
        await goes_on.wait()
        raise HubUnreachable("The Hub does not answer.")

    monkeypatch.setattr(world.hub, "resolve", slow)
    http = await world.http(Role.DEVELOPER)
    first = asyncio.create_task(http.post("/checks", json={"repo": "acme/tiny"}))
    await begun.wait()
    second = await http.post("/checks", json={"repo": "acme/tiny"})
    assert (second.status_code, second.json()["error"]) == (429, "too_many_attempts")
    goes_on.set()
    assert (await first).json()["failure"]["blame"] == "chance"
