"""Tests what the operator sees of each model server; on both databases."""

from __future__ import annotations

import re

import pytest

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from guanaco_server.deployments.tables import DeploymentRow, Phase
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import signed_in

TWO = ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]


@pytest.mark.parametrize(
    ("phase", "endpoints", "shown"),
    [
        (Phase.READY, TWO, [("ready", TWO[0]), ("ready", TWO[1]), ("starting", "does not answer")]),
        (Phase.RESTARTING, [], [("restarting", "does not answer")] * 3),
        (Phase.SLEEPING, [], []),
    ],
)
async def test_each_replica_is_listed_with_its_state_and_endpoint(
    database: Database, phase: Phase, endpoints: list[str], shown: list[tuple[str, str]]
) -> None:
    world = WebWorld(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    async with database.write() as session:
        session.add(
            DeploymentRow(
                submission_id="acme-tiny_v1",
                run=1,
                artifact_key="a" * 64,
                max_model_tokens=1_088,
                phase=phase,
                endpoints=endpoints,
                wanted_replicas=3,
                applied_replicas=3,
                updated_at=world.clock.now(),
            )
        )
    root = await signed_in(world, Role.ADMIN, "root")
    page = (await root.get("/admin/deployments")).text
    cell = page[page.index('<ul class="replicas">') : page.index("</ul>", page.index("replicas"))]
    items = [re.sub("<[^>]+>", " ", item).split() for item in cell.split("<li>")[1:]]
    assert [(state, " ".join(place)) for state, *place in items if place] == shown
