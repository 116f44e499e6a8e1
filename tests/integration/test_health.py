"""Tests what probes and scrapes are told."""

from __future__ import annotations

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.errors import SchemaNotReady
from guanaco_server.assembly.platform import gauge_queries
from guanaco_server.database.database import Database
from guanaco_server.database.migrations import upgrade
from guanaco_server.database.schema import wait_until_current
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.http.health import Health
from guanaco_server.observability.database_gauges import DatabaseGauges
from tests.fixtures.world import World

ID = "acme-tiny_v1"


async def test_ready_needs_a_database_with_its_tables(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    health = Health(database, None)
    assert await health.problem() == "database not migrated"
    with pytest.raises(SchemaNotReady, match="revision none"):
        await wait_until_current(database, 0)
    await upgrade(database)
    await wait_until_current(database, 0)
    assert await health.problem() is None
    await database.close()


async def test_a_database_that_does_not_answer_is_said_so() -> None:
    database = Database("postgresql+psycopg://nobody@127.0.0.1:1/none")
    assert await Health(database, None).problem() == "database down"
    with pytest.raises(SchemaNotReady, match="does not answer"):
        await wait_until_current(database, 0)
    await database.close()


async def test_a_gateway_with_an_old_snapshot_is_not_ready(database: Database) -> None:
    age_s = 0.0
    health = Health(database, lambda: age_s)
    assert await health.problem() is None
    age_s = 60.0
    assert await health.problem() == "routing snapshot stale"


async def test_probes_are_public_and_metrics_are_the_admins(database: Database) -> None:
    world = World(database)
    async with world.http_with({}) as http:
        http.base_url = httpx.URL("http://guanaco")
        unready = await http.get("/readyz")
        assert (unready.status_code, unready.headers["Retry-After"]) == (503, "5")
        await world.routing.refresh()
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        assert (await http.get("/readyz")).json() == {"status": "ok"}
        assert (await http.get("/metrics")).status_code == 401
    async with await world.http(Role.BACKEND) as http:
        assert (await http.get("http://guanaco/metrics")).status_code == 403
    async with await world.http(Role.ADMIN) as http:
        answer = await http.get("http://guanaco/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'route="/readyz",status="200"' in answer.text
    assert "/metrics" in answer.text


async def test_requests_are_measured_by_template_and_answer_with_their_id(
    database: Database,
) -> None:
    world = World(database)
    async with await world.http(Role.DEVELOPER) as http:
        answer = await http.get("/submissions/nobody_v1", headers={"X-Request-Id": "mine"})
        await http.get("/nothing/here/12345")
    assert answer.headers["x-request-id"] == "mine"
    async with await world.http(Role.ADMIN) as http:
        scraped = (await http.get("http://guanaco/metrics")).text
    assert 'route="/api/v1/submissions/{submission_id}",status="404"' in scraped
    assert 'route="unmatched",status="404"' in scraped
    assert "here/12345" not in scraped


@pytest.mark.both_databases
async def test_a_process_without_a_reconciler_learns_endpoints_from_the_table(
    database: Database,
) -> None:
    worker, gateway = World(database), World(database)
    developer = await worker.account(Role.DEVELOPER)
    await worker.publish(developer, ID)
    gateway.store = worker.store
    gateway.deployments.note_reconciler(False)
    await worker.deployments.wish(Deployment(ID, 1, "a" * 64, 100))
    await gateway.routing.refresh()
    assert not gateway.deployments.replicas(ID)
    await worker.deployments.mark_ready(ID, "http://m-1:8000")
    assert (await gateway.routing.target(ID)).endpoints == ("http://m-1:8000",)
    await worker.withdraw(ID)
    await gateway.routing.refresh()
    assert not gateway.deployments.replicas(ID)


@pytest.mark.both_databases
async def test_the_gauges_show_what_the_database_holds(database: Database) -> None:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER), ID)
    await world.deployments.wish(Deployment(ID, 1, "a" * 64, 100))
    await DatabaseGauges(
        world.metrics,
        world.clock,
        gauge_queries(world.platform.rooms, "all"),
        world.database.watch_commits().wait,
    ).take()
    async with await world.http(Role.ADMIN) as http:
        scraped = (await http.get("http://guanaco/metrics")).text
    assert 'guanaco_submissions{status="deployed"} 1.0' in scraped
    assert 'guanaco_submissions{status="queued"} 0.0' in scraped
    assert 'guanaco_deployments{phase="starting"} 1.0' in scraped
    assert "guanaco_workers 1.0" in scraped, "a plain `guanaco up` works itself"


async def test_api_document_is_written_once_and_answered_with_an_etag(database: Database) -> None:
    world = World(database)
    async with world.http_with({}) as http:
        answers = [await http.get("http://guanaco/openapi.json") for _ in range(2)]
        tag = answers[0].headers["etag"]
        again = await http.get("http://guanaco/openapi.json", headers={"If-None-Match": tag})
    assert answers[0].content == answers[1].content
    assert "/api/v1/conversations/{conversation_id}/messages" in answers[0].json()["paths"]
    assert (again.status_code, again.content) == (304, b"")
