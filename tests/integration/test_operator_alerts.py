"""Alerts to the operator: counted, fired once, told once, resolved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.errors import InvalidSettings
from guanaco_server.alerts.room import AlertsRoom, build_alerts
from guanaco_server.costs.tables import GpuIntervalRow
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.deployments.model_servers.model_server import ModelServerFault
from guanaco_server.settings import Settings
from tests.fixtures.receiver import REDIRECT, Receiver, receiving
from tests.fixtures.world import World

ID = "acme-tiny_v1"
SECRET_PATH = "/services/T000/B000/verysecret"


class Watching(World):
    """A world whose operator is told at a URL."""

    changes = {"daily_budget": 10.0, "webhook_timeout_s": 2}

    @property
    def alerts(self) -> AlertsRoom:
        return self.platform.rooms.alerts

    async def minutes(self, count: int) -> None:
        """Let time pass, with the loop's turn each minute."""
        for _ in range(count):
            self.clock.advance(60)
            await self.alerts.recorder.write()
            await self.alerts.loop.run_once()

    async def spend(self, per_hour: float) -> None:
        """Hold GPUs at this price from now on."""
        async with self.database.write() as session:
            session.add(
                GpuIntervalRow(
                    submission_id=ID,
                    developer="ada",
                    gpu_type="H100",
                    gpu_count=1,
                    replicas=1,
                    gpu_hour_price=per_hour,
                    began_at=self.clock.now(),
                )
            )

    async def stop_spending(self) -> None:
        async with self.database.write() as session:
            for row in await session.run_sync(lambda s: s.query(GpuIntervalRow).all()):
                row.ended_at = self.clock.now()

    def told(self, receiver: Receiver) -> list[str]:
        return [one.json["text"] for one in receiver.received]


async def world_of(database: Database, receiver: Receiver | None, *scripts: Script) -> Watching:
    url = {"alert_webhook_url": receiver.url + SECRET_PATH} if receiver else {}
    world = Watching(database, *scripts, **url)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), ID)
    return world


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving(200) as receiver:
        yield receiver


@pytest.mark.both_databases
async def test_budget_alert_fires_and_ends_once_across_restarts(
    database: Database, receiver: Receiver
) -> None:
    world = await world_of(database, receiver)
    await world.spend(per_hour=60)
    await world.minutes(10)
    assert receiver.received == []
    await world.minutes(3)
    assert world.told(receiver) == ["Guanaco: Firing: daily_spend (critical)"]
    world.restart()
    await world.minutes(5)
    assert len(receiver.received) == 1, "a new process knows that it was told"
    await world.stop_spending()
    world.clock.advance(24 * 3_600)  # another day, another budget
    await world.minutes(5)
    world.restart()
    await world.minutes(5)
    assert len(receiver.received) == 1, "calm, but not for long enough"
    await world.minutes(3)
    assert world.told(receiver)[1:] == ["Guanaco: Resolved: daily_spend (critical)"]
    found = await world.alerts.service.read()
    assert found.firing == []
    assert [one.name for one in found.ended] == ["daily_spend"]


async def test_failing_replies_burn_the_budget_compared_with_last_week(
    database: Database, receiver: Receiver
) -> None:
    world = await world_of(database, receiver)
    tally = world.metrics.tally
    for _ in range(200):
        tally.note_reply(True)
    await world.alerts.recorder.write()
    world.clock.advance(7 * 24 * 3_600)
    for number in range(200):
        tally.note_reply(number % 10 != 0)
    await world.minutes(1)
    assert {text.split(": ")[2] for text in world.told(receiver)} == {
        "errors_unusual (warning)",
        "budget_burns_fast (critical)",
        "budget_burns_slowly (warning)",
    }
    level = await world.alerts.service.service_level()
    hour, _, month = level.windows
    assert (hour.answered, hour.failed) == (180, 20)
    assert (month.answered, month.failed) == (380, 20)
    assert level.budget_left is not None
    assert level.budget_left < 0


async def test_replies_are_counted_by_what_became_of_them(database: Database) -> None:
    fails = Script(pieces=(), fault=ModelServerFault("it died"))
    world = await world_of(database, None)
    backend = await world.http(Role.BACKEND)
    conversation = await world.open(backend)
    path = f"/conversations/{conversation}/messages"
    assert (await backend.post(path, json={"content": "Hello"})).status_code == 200
    assert (await backend.post(path, json={"content": " \n"})).status_code == 422
    world.model_server.scripts[:] = [fails]
    assert (await backend.post(path, json={"content": "Hello again"})).status_code == 503
    counts = world.metrics.tally.take()
    assert {name: counts[name] for name in ("answered", "failed")} == {"answered": 1, "failed": 1}
    assert counts["prompt_tokens"] > 0
    assert sum(count for name, count in counts.items() if name.startswith("first_token:")) == 1


@pytest.mark.both_databases
async def test_counts_of_several_processes_are_added_up(database: Database) -> None:
    one = await world_of(database, None)
    other = Watching(database)
    for world in (one, other):
        for _ in range(3):
            world.metrics.tally.note_reply(True)
            world.metrics.tally.note_reply(False)
    await asyncio.gather(*(world.alerts.recorder.write() for world in (one, other)))
    one.metrics.tally.note_reply(True)
    await one.alerts.recorder.write()
    other.clock.advance(60)
    level = await other.alerts.service.service_level()
    assert (level.windows[0].answered, level.windows[0].failed) == (7, 6)


@pytest.mark.slow
@pytest.mark.parametrize("answer", [500, "hang", "close", "garbage", REDIRECT, "endless"])
async def test_a_receiver_that_misbehaves_gets_the_message_again_and_again(
    answer: int | str, database: Database
) -> None:
    async with receiving(answer, answer, 200) as receiver:
        if answer == "endless":
            receiver.answers = ["endless"]
        world = await world_of(database, receiver)
        await world.alerts.service.test()
        await world.minutes(1)
        (message,) = (await world.alerts.service.read()).messages
        if answer == "endless":  # its status came, and its body is not read
            assert message.state == "delivered"
            return
        assert (message.state, message.attempts) == ("pending", 1)
        assert message.last_result
        assert SECRET_PATH not in message.last_result
        await world.minutes(2)
        (message,) = (await world.alerts.service.read()).messages
        assert (message.state, message.attempts) == ("delivered", 3)
        assert len(receiver.received) == 3


async def test_an_end_is_not_told_before_the_beginning(database: Database) -> None:
    async with receiving(500) as receiver:
        world = await world_of(database, receiver)
        await world.spend(per_hour=600)
        await world.minutes(2)
        await world.stop_spending()
        world.clock.advance(24 * 3_600)
        await world.minutes(13)
        told = {message.kind: message for message in (await world.alerts.service.read()).messages}
        assert told["resolved"].attempts == 0
        receiver.answers[:] = [200]
        world.clock.advance(8 * 3_600)
        await world.minutes(2)
        assert world.told(receiver)[-2:] == [
            "Guanaco: Firing: daily_spend (critical)",
            "Guanaco: Resolved: daily_spend (critical)",
        ]


@pytest.mark.both_databases
async def test_two_processes_send_a_message_once(database: Database, receiver: Receiver) -> None:
    one = await world_of(database, receiver)
    other = Watching(database, alert_webhook_url=receiver.url)
    await one.alerts.service.test()
    tried = await asyncio.gather(one.alerts.sender.send_due(), other.alerts.sender.send_due())
    assert len(receiver.received) == sum(tried) == 1


async def test_a_private_receiver_is_refused_unless_allowed(database: Database) -> None:
    async with receiving(200) as receiver:
        with pytest.raises(InvalidSettings, match="alert_webhook_url") as refused:
            Watching(
                database,
                alert_webhook_url="http://127.0.0.1/verysecret",
                webhook_allow_private=False,
            )
        assert "verysecret" not in str(refused.value)
        world = Watching(
            database,
            alert_webhook_url="https://inside.example/verysecret",
            webhook_allow_private=False,
        )

        async def lead_inside(host: str, port: int) -> list[str]:
            return ["127.0.0.1"]

        alerts = build_alerts(
            database,
            world.clock,
            read_cost=world.costs.spent,
            absences=world.platform.rooms.workers.absences,
            metrics=world.metrics,
            settings=world.settings,
            resolve=lead_inside,
        )
        await alerts.service.test()
        await alerts.sender.send_due()
        (message,) = (await alerts.service.read()).messages
        assert message.last_result == "the host's address is not a public one"
        assert receiver.received == []


async def test_alerts_are_kept_where_nobody_is_told(database: Database) -> None:
    world = await world_of(database, None)
    await world.spend(per_hour=600)
    await world.minutes(2)
    await world.alerts.service.test()
    await world.minutes(1)
    found = await world.alerts.service.read()
    assert [one.name for one in found.firing] == ["daily_spend"]
    (message,) = found.messages
    assert (message.kind, message.state) == ("test", "given_up")
    assert message.last_result == "alert_webhook_url is not set for the worker"


@pytest.mark.both_databases
async def test_what_is_old_is_forgotten(database: Database, receiver: Receiver) -> None:
    world = await world_of(database, receiver)
    await world.spend(per_hour=600)
    world.metrics.tally.note_reply(True)
    await world.minutes(2)
    await world.stop_spending()
    world.clock.advance(24 * 3_600)
    await world.minutes(13)
    world.clock.advance(timedelta(days=31).total_seconds())
    await world.minutes(1)
    found = await world.alerts.service.read()
    assert (found.ended, found.messages) == ([], [])
    assert (await world.alerts.service.service_level()).windows[-1].answered == 0


async def test_only_admins_read_alerts_and_nobody_reads_the_url(
    database: Database, receiver: Receiver
) -> None:
    world = await world_of(database, receiver)
    await world.spend(per_hour=600)
    admin, developer = await world.http(Role.ADMIN), await world.http(Role.DEVELOPER, "ada")
    for path in ("/alerts", "/slo"):
        assert (await developer.get(path)).status_code == 403
    sent = await admin.post("/alerts/test")
    assert sent.status_code == 202
    await world.minutes(2)
    answers: list[httpx.Response] = [await admin.get("/alerts"), await admin.get("/slo")]
    assert [one.status_code for one in answers] == [200, 200]
    assert [one["name"] for one in answers[0].json()["firing"]] == ["daily_spend"]
    assert all("verysecret" not in one.text for one in (*answers, sent))
    assert SECRET_PATH in Settings(alert_webhook_url=receiver.url + SECRET_PATH).secrets[0]
