"""A running experiment that can take nobody says why, and wakes its models."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.chat import ConversationRequest
from guanaco.competitions import CompetitionRequest
from guanaco.submissions import Status
from guanaco_server.chat.tables import ConversationRow
from guanaco_server.database.database import Database
from guanaco_server.deployments.tables import Phase
from tests.fixtures.scaled import IDLE_S, Scaled
from tests.fixtures.world import BOT, World

MODELS = ("a_v1", "b_v1")
TWO_MODELS = {
    "name": "models",
    "variants": [{"name": name, "model": model} for name, model in zip("ab", MODELS, strict=True)],
}


class Asleep(Scaled):
    """Two rated models that sleep, and the experiment that compares them."""

    async def begin(
        self, *, is_started: bool = True
    ) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
        admin, app = await self.http(Role.ADMIN), await self.http(Role.BACKEND, "app")
        for model in MODELS:
            await self.serve(model)
            await self.rate(admin, await self.open_with(admin, model))
        assert (await admin.post("/experiments", json=TWO_MODELS)).status_code == 201
        if is_started:
            started = await admin.post("/experiments/models/start")
            assert started.status_code == 200, started.text
        await self.routing.refresh()
        self.clock.advance(IDLE_S + 1)
        await self.autoscaler.step()
        await self.reconciler.reconcile()
        assert await self.phases() == [Phase.SLEEPING] * 2
        return admin, app

    async def open_with(self, http: httpx.AsyncClient, model: str) -> str:
        request = ConversationRequest(user_id="rater", bot=BOT, consent=True, model=model)
        answer = await http.post("/conversations", json=request.model_dump(mode="json"))
        assert answer.status_code == 201, answer.text
        return str(answer.json()["conversation_id"])

    async def phases(self) -> list[Phase]:
        return [await self.phase(model) for model in MODELS]

    async def variant(self, conversation: str) -> str | None:
        async with self.database.read() as session:
            row = await session.get(ConversationRow, conversation)
        assert row is not None
        return row.variant


async def obstacles(admin: httpx.AsyncClient) -> list[tuple[str | None, str]]:
    """Return what `show` says, and assert that `results` and `list` say the same."""
    shown = (await admin.get("/experiments/models")).json()["obstacles"]
    results = (await admin.get("/experiments/models/results")).json()
    (listed,) = (await admin.get("/experiments")).json()
    assert shown == results["obstacles"] == listed["obstacles"]
    assert all(one["detail"].endswith(".") for one in shown)
    return [(one["variant"], one["reason"]) for one in shown]


async def test_an_opening_wakes_all_models_of_an_experiment(database: Database) -> None:
    world = Asleep(database, feedback_target=1)
    admin, app = await world.begin()
    assert await obstacles(admin) == [("a", "asleep"), ("b", "asleep")]
    assert await world.variant(await world.open(app, "u1")) is None, "nobody waits for a model"
    assert await world.phases() == [Phase.WAKING] * 2
    assert await obstacles(admin) == [("a", "starting"), ("b", "starting")]
    for _ in range(2):  # gives them room and starts them; finds them healthy
        await world.reconciler.reconcile()
    await world.routing.refresh()
    assert await obstacles(admin) == []
    world.clock.advance(IDLE_S - 1)
    assert await world.variant(await world.open(app, "u2")) is not None
    await world.routing.refresh()
    world.clock.advance(2)
    await world.autoscaler.step()
    assert Phase.SLEEPING not in await world.phases(), "an opening uses both models"


async def test_starting_an_experiment_wakes_its_sleeping_models(database: Database) -> None:
    world = Asleep(database, feedback_target=1)
    admin, _ = await world.begin(is_started=False)
    assert await obstacles(admin) == [], "it does not run"
    refused = await admin.post("/experiments/models/start")
    assert (refused.status_code, refused.json()["error"]) == (409, "experiment_conflict")
    assert "being woken" in refused.json()["hint"]
    assert await world.phases() == [Phase.WAKING] * 2


@pytest.mark.parametrize(
    ("status", "says"),
    [(Status.TORN_DOWN, "b_v1 is torn down."), (Status.INACTIVE, "guanaco reactivate b_v1")],
)
async def test_an_experiment_says_which_model_is_not_deployed(
    database: Database, status: Status, says: str
) -> None:
    world = World(database)
    developer = await world.account(Role.DEVELOPER, "ada")
    for model in MODELS:
        await world.publish(developer, model)
    admin = await world.http(Role.ADMIN)
    await admin.post("/experiments", json=TWO_MODELS)
    assert (await admin.post("/experiments/models/start")).status_code == 200
    assert await obstacles(admin) == []
    change = "teardown" if status is Status.TORN_DOWN else "deactivate"
    assert (await admin.post(f"/submissions/b_v1/{change}")).status_code == 200
    await world.routing.refresh()
    assert await obstacles(admin) == [("b", "not_deployed")]
    (found,) = (await admin.get("/experiments/models")).json()["obstacles"]
    assert says in found["detail"]


async def test_an_experiment_of_a_closed_competition_says_so(database: Database) -> None:
    world = World(database)
    now = world.clock.now()
    await world.competitions.put(
        "autumn", CompetitionRequest(name="A", starts_at=now, ends_at=now + timedelta(days=1))
    )
    admin = await world.http(Role.ADMIN)
    prompts = {
        "name": "models",
        "competition": "autumn",
        "variants": [{"name": "a"}, {"name": "b"}],
    }
    await admin.post("/experiments", json=prompts)
    await admin.post("/experiments/models/start")
    assert await obstacles(admin) == []
    world.clock.advance(2 * 86_400)
    assert await obstacles(admin) == [(None, "competition_closed")]
