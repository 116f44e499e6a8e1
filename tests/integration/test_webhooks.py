"""Webhooks: set, signed, told once, tried again for a day."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from guanaco.accounts import Role
from guanaco.errors import ModelServerDied
from guanaco.submissions import Status
from guanaco.webhooks import verify
from guanaco_server.database.database import Database
from guanaco_server.notifications.room import build_notifications
from guanaco_server.submissions import lifecycle
from guanaco_server.submissions.runs.events import StatusChanges
from tests.fixtures.rating import rate_all
from tests.fixtures.receiver import Receiver, receiving
from tests.fixtures.world import World, eventually

ID = "acme-tiny_v1"


class Telling(World):
    """A world whose developer, ada, sets webhooks."""

    async def tell(self) -> None:
        """One turn of the scorekeeper and of the loop, to their ends."""
        await self.count()
        await self.notifications.outbox.fill()
        while await self.notifications.sender.send_due():
            await self.notifications.sender.settled()

    async def move(self, *statuses: Status) -> None:
        for status in statuses:
            async with self.database.write() as session:
                await lifecycle.transition(session, ID, status, at=self.clock.now())

    async def run_pipeline(self) -> None:
        await self.move(Status.QUEUED, Status.CHECKING, Status.SERIALIZING)
        await self.move(Status.DEPLOYING, Status.STRESS_TESTING, Status.DEPLOYED)
        await self.routing.refresh()

    async def rate(self, times: int) -> None:
        backend = await self.http(Role.BACKEND)
        for number in range(times):
            conversation = await self.open(backend, f"u{number}")
            await self.greet(backend, conversation)
            await backend.post(f"/conversations/{conversation}/feedback", json={"thumbs_up": True})


class Hasty(Telling):
    changes = {"webhook_timeout_s": 2}


@pytest.fixture
async def world(database: Database) -> Telling:
    world = Telling(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), ID)
    return world


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving(200) as receiver:
        yield receiver


async def put(world: Telling, url: str, **more: Any) -> tuple[httpx.AsyncClient, str]:
    http = await world.http(Role.DEVELOPER, "ada")
    answer = await http.put("/webhook", json={"url": url, **more})
    assert answer.status_code == 200, answer.text
    return http, answer.json()["secret"]


async def deliveries(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http.get("/webhook")).json()["deliveries"]
    return found


async def test_the_secret_is_shown_once_and_signs_every_delivery(
    world: Telling, receiver: Receiver
) -> None:
    http, secret = await put(world, receiver.url)
    assert secret.startswith("whsec_")
    again = await http.put("/webhook", json={"url": receiver.url})
    assert again.json()["secret"] is None
    assert secret not in (await http.get("/webhook")).text
    await world.run_pipeline()
    await world.tell()
    [message] = receiver.received
    now = world.clock.now().timestamp()
    assert verify(secret, message.headers, message.body, now=now) == message.id
    assert message.headers["content-type"] == "application/json"


async def test_webhook_reports_each_later_event_once(world: Telling, receiver: Receiver) -> None:
    await world.run_pipeline()
    await world.rate(3)
    http, _ = await put(world, receiver.url, feedback_every=2)
    await world.tell()
    assert receiver.received == []
    await world.move(Status.INACTIVE, Status.DEPLOYED)  # no news
    await world.rate(2)
    await world.journal.fail_published(ID, ModelServerDied("It kept dying: user wrote this"))
    await world.tell()
    await world.tell()
    counted, failed = sorted(receiver.received, key=lambda one: "failed" in one.json["type"])
    assert [counted.json["type"], failed.json["type"]] == ["feedback_count", "failed"]
    assert failed.json["data"] == {
        "submission_id": ID,
        "failure": "model_server_died",
        "link": f"/submissions/{ID}",
    }
    assert counted.json["data"]["feedback_count"] == 4
    assert {one["state"] for one in await deliveries(http)} == {"delivered"}


@pytest.mark.both_databases
async def test_the_first_rating_and_every_nth_are_told(world: Telling, receiver: Receiver) -> None:
    await put(world, receiver.url, feedback_every=2)
    await world.rate(5)
    await world.tell()
    told = sorted(
        (one.json["type"], one.json["data"]["feedback_count"]) for one in receiver.received
    )
    assert told == [("feedback_count", 2), ("feedback_count", 4), ("first_feedback", 1)]
    assert b"u1" not in b"".join(one.body for one in receiver.received)


@pytest.mark.both_databases
async def test_looking_for_what_to_tell_reads_no_ratings(
    world: Telling, receiver: Receiver
) -> None:
    """However many there are: it is done every few seconds."""
    await put(world, receiver.url)
    await world.rate(1)
    await world.count()
    asked: list[str] = []

    @event.listens_for(world.database.engine.sync_engine, "before_cursor_execute")
    def note(*executed: Any) -> None:
        asked.append(executed[2])

    await world.notifications.outbox.fill()
    assert asked
    assert not [one for one in asked if "FROM feedback" in one]


@pytest.mark.both_databases
async def test_two_processes_that_look_at_once_write_one_delivery(
    world: Telling, receiver: Receiver
) -> None:
    await put(world, receiver.url)
    await world.run_pipeline()
    other = build_notifications(
        world.database,
        world.clock,
        events=world.events,
        counts=world.scores.counts,
        changes=StatusChanges(),
        settings=world.settings,
    )
    await asyncio.gather(world.notifications.outbox.fill(), other.outbox.fill())
    await asyncio.gather(world.notifications.sender.send_due(), other.sender.send_due())
    await asyncio.gather(world.notifications.sender.settled(), other.sender.settled())
    assert [one.json["type"] for one in receiver.received] == ["deployed"]


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (500, "answered 500"),
        ("close", "no HTTP answer"),
        ("garbage", "no HTTP answer"),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
            "answered 302, and redirects are not followed",
        ),
    ],
)
async def test_failing_receiver_is_retried_under_the_same_id(
    world: Telling, answer: int | str, result: str
) -> None:
    await is_tried_again(world, answer, result)


async def test_hanging_receiver_is_retried_under_the_same_id(database: Database) -> None:
    world = Hasty(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), ID)
    await is_tried_again(world, "hang", "no answer within 2 s")


async def is_tried_again(world: Telling, answer: int | str, result: str) -> None:
    async with receiving(answer, 200) as receiver:
        http, _ = await put(world, receiver.url)
        await http.post("/webhook/test")
        await world.tell()
        [waiting] = await deliveries(http)
        assert (waiting["state"], waiting["attempts"]) == ("pending", 1)
        assert waiting["last_result"] == result
        await world.tell()
        assert len(receiver.received) == 1  # not before its time
        world.clock.advance(13)
        await world.tell()
        [done] = await deliveries(http)
    assert (done["state"], done["attempts"], done["last_result"]) == (
        "delivered",
        2,
        "answered 200",
    )
    assert len({one.id for one in receiver.received}) == 1


async def test_an_endless_answer_is_not_read(world: Telling) -> None:
    async with receiving("endless") as receiver:
        http, _ = await put(world, receiver.url)
        await http.post("/webhook/test")
        await world.tell()
        assert (await deliveries(http))[0]["state"] == "delivered"


@pytest.mark.both_databases
async def test_receiver_failing_for_a_day_is_visibly_given_up(world: Telling) -> None:
    async with receiving(503) as receiver:
        http, _ = await put(world, receiver.url)
        await http.post("/webhook/test")
        begun = world.clock.now()
        for _ in range(30):
            await world.tell()
            [one] = await deliveries(http)
            if one["state"] == "given_up":
                break
            world.clock.advance(9 * 3_600)
        assert one["attempts"] == len(receiver.received) == 11
        assert one["next_attempt_at"] is None
        assert one["last_result"] == "answered 503"
        assert (world.clock.now() - begun).total_seconds() > 20 * 3_600


async def test_a_receiver_that_is_gone_is_not_asked_again(world: Telling) -> None:
    async with receiving(410) as receiver:
        http, _ = await put(world, receiver.url)
        await http.post("/webhook/test")
        await world.tell()
        assert (await deliveries(http))[0]["state"] == "given_up"


@pytest.mark.both_databases
async def test_a_dead_receiver_delays_nobody_else(world: Telling, receiver: Receiver) -> None:
    async with receiving("hang") as dead:
        eve = await world.http(Role.DEVELOPER, "eve")
        await eve.put("/webhook", json={"url": dead.url})
        for _ in range(20):
            await eve.post("/webhook/test")
        http, _ = await put(world, receiver.url)
        await http.post("/webhook/test")
        assert await world.notifications.sender.send_due() == 3  # two of eve's, and ada's

        async def is_told() -> bool:
            return (await deliveries(http))[0]["state"] == "delivered"

        await eventually(is_told)
        assert {one["attempts"] for one in await deliveries(eve)} == {0}
        await world.notifications.sender.stop()


@pytest.mark.both_databases
async def test_what_a_dead_process_held_is_due_again(world: Telling, receiver: Receiver) -> None:
    async with receiving("hang") as dead:
        http, _ = await put(world, dead.url)
        await http.post("/webhook/test")
        await world.notifications.sender.send_due()
        await world.notifications.sender.stop()  # as kill -9 leaves it: leased, and nobody at work
        await http.put("/webhook", json={"url": receiver.url})
        await world.tell()
        assert receiver.received == []
        world.clock.advance(61)
        await world.tell()
    assert len(receiver.received) == 1


@pytest.mark.both_databases
async def test_rotated_secret_signs_beside_the_old_for_a_day(
    world: Telling, receiver: Receiver
) -> None:
    http, old = await put(world, receiver.url)
    rotated = (await http.post("/webhook/secret")).json()
    new = rotated["secret"]
    assert new != old
    assert rotated["old_secret_until"] == "2026-01-02T00:00:01Z"
    await http.post("/webhook/test")
    await world.tell()
    world.clock.advance(86_400)
    await http.post("/webhook/test")
    await world.tell()
    within, after = receiver.received
    assert len(within.headers["webhook-signature"].split()) == 2
    for secret in (old, new):
        verify(secret, within.headers, within.body, now=float(within.headers["webhook-timestamp"]))
    assert len(after.headers["webhook-signature"].split()) == 1


@pytest.mark.both_databases
async def test_a_removed_webhook_takes_its_deliveries_with_it(
    world: Telling, receiver: Receiver
) -> None:
    http, _ = await put(world, receiver.url)
    await http.post("/webhook/test")
    assert (await http.delete("/webhook")).json()["url"] == receiver.url
    await world.tell()
    assert receiver.received == []
    for method in ("GET", "DELETE"):
        answer = await http.request(method, "/webhook")
        assert (answer.status_code, answer.json()["error"]) == (404, "webhook_not_found")


async def test_a_url_into_a_private_network_is_refused(database: Database) -> None:
    http = await World(database, webhook_allow_private=False).http(Role.DEVELOPER)
    for url in ("https://169.254.169.254/latest", "http://example.org", "https://example.org:25"):
        answer = await http.put("/webhook", json={"url": url})
        assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")


async def test_each_developer_has_her_own(world: Telling, receiver: Receiver) -> None:
    await put(world, receiver.url)
    eve = await world.http(Role.DEVELOPER, "eve")
    assert (await eve.get("/webhook")).status_code == 404
    await eve.put("/webhook", json={"url": receiver.url + "/eve"})
    await world.run_pipeline()  # ada's
    await world.tell()
    assert len(receiver.received) == 1


@pytest.mark.both_databases
async def test_two_that_set_one_at_once_make_one(world: Telling, receiver: Receiver) -> None:
    http = await world.http(Role.DEVELOPER, "ada")
    answers = await asyncio.gather(
        *(http.put("/webhook", json={"url": receiver.url}) for _ in range(4))
    )
    assert [answer.status_code for answer in answers] == [200] * 4
    assert sum(answer.json()["secret"] is not None for answer in answers) == 1


@pytest.mark.both_databases
async def test_the_loop_wakes_for_a_test_and_for_a_status(
    world: Telling, receiver: Receiver
) -> None:
    world.notifications.loop.poll_s = 600  # only what wakes it
    http, _ = await put(world, receiver.url)
    await world.notifications.loop.start()
    try:
        await http.post("/webhook/test")
        await eventually(lambda: _count(receiver, 1))
        await world.journal.fail_published(ID, ModelServerDied("It kept dying"))
        await eventually(lambda: _count(receiver, 2))
    finally:
        await world.notifications.loop.stop()


async def _count(receiver: Receiver, count: int) -> bool:
    return len(receiver.received) == count


async def test_a_settled_verdict_and_a_changed_rank_are_told_once(
    world: Telling, receiver: Receiver
) -> None:
    await put(world, receiver.url)
    ada, backend = await world.account(Role.DEVELOPER, "ada"), await world.account(Role.BACKEND)
    await world.publish(ada, "rival_v1")
    await world.routing.refresh()

    async def vote(users: range, mine: bool, rival: bool) -> None:
        opinions = ((ID, mine), ("rival_v1", rival))
        votes = [(name, f"user-{user}", up) for user in users for name, up in opinions]
        await rate_all(world, backend, votes)
        world.clock.advance(60)
        await world.scores.loop.run_once()
        await world.tell()

    await vote(range(5), True, True)
    for first in (5, 45):
        await vote(range(first, first + 40), True, False)
    told = [one.json["data"] for one in receiver.received if one.json["type"] == "verdict"]
    assert sorted((one["submission_id"], one["claim"]) for one in told) == [
        (ID, "settled"),
        ("rival_v1", "rank"),
        ("rival_v1", "settled"),
    ]
    facts = {one["submission_id"]: one for one in told if one["claim"] == "settled"}
    assert (facts[ID]["leader"], facts[ID]["state"], facts[ID]["within"]) == (ID, "leads", 0.05)
    assert facts["rival_v1"]["state"] in {"better", "within"}
    (moved,) = [one for one in told if one["claim"] == "rank"]
    assert (moved["rank"], moved["was"], moved["competition"]) == (2, 1, "open")
