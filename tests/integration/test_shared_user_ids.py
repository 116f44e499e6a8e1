"""Two apps that number their users alike: user 17 of one is nobody to the other."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from tests.fixtures.world import World

PATH = "/submissions/acme-tiny_v1"
RATINGS_PER_MINUTE = 30
DAY_S = 86_400
ID = re.compile(r'"((?:user|conv|fb|msg)_\w+|_bot_[\w-]+|[0-9a-f]{32})"(?!:)')
BOT_ID = re.compile(r"_bot_[0-9a-f-]{36}")  # made of the bot's name alone


class TwoApps(World):
    """One submission, and two backends whose users have the same ids."""

    one: httpx.AsyncClient
    other: httpx.AsyncClient
    developer: httpx.AsyncClient
    admin: httpx.AsyncClient

    async def begin(self) -> TwoApps:
        await self.publish(await self.account(Role.DEVELOPER, "ada"))
        self.one = await self.http(Role.BACKEND, "one")
        self.other = await self.http(Role.BACKEND, "other")
        self.developer = await self.http(Role.DEVELOPER, "ada")
        self.admin = await self.http(Role.ADMIN)
        return self

    async def rate(self, app: httpx.AsyncClient, user: str, thumbs_up: bool) -> int:
        self.clock.advance(1)
        conversation = await self.open(app, user)
        await app.post(f"/conversations/{conversation}/messages", json={"content": "Hello"})
        path = f"/conversations/{conversation}/feedback"
        return (await app.post(path, json={"thumbs_up": thumbs_up})).status_code

    async def figures(self) -> dict[str, Any]:
        await self.count()
        found: dict[str, Any] = (await self.developer.get(f"{PATH}/metrics")).json()
        return found

    async def pseudonyms(self) -> list[str]:
        items = (await self.developer.get(f"{PATH}/feedback")).json()["items"]
        return [one["user"] for one in items]


@pytest.fixture
async def world(database: Database) -> TwoApps:
    return await TwoApps(database).begin()


@pytest.mark.both_databases
async def test_each_has_a_vote_and_a_pseudonym(world: TwoApps) -> None:
    await world.rate(world.one, "17", True)
    await world.rate(world.other, "17", False)
    await world.rate(world.one, "17", True)
    found = await world.figures()
    assert (found["thumbs_up"], found["thumbs_down"]) == (1, 1)
    first, second, again = await world.pseudonyms()
    assert first == again != second


@pytest.mark.slow
async def test_two_developers_read_no_id_in_common(world: TwoApps) -> None:
    """The old client's ids are made of the pseudonyms, so they are looked at too."""
    await world.publish(await world.account(Role.DEVELOPER, "grace"), "acme-tiny_v2")
    for _ in range(8):
        await world.rate(world.one, "17", True)
    read: dict[str, set[str]] = {}
    for name, submission in (("ada", "acme-tiny_v1"), ("grace", "acme-tiny_v2")):
        key = await world.key(Role.DEVELOPER, name)
        path = f"/submissions/{submission}/feedback"
        async with world.http_with({"Authorization": f"Bearer {key}"}) as http:
            page, export = await http.get(path), await http.get(f"{path}/export")
            old = await http.get(f"http://guanaco/feedback/{submission}")
        users = {one["user"] for one in page.json()["items"]}
        assert len(users) == 1, "all that one user rated is joined for one developer"
        assert old.json()["feedback"], old.text
        read[name] = {found for answer in (page, export, old) for found in ID.findall(answer.text)}
    assert {one for one in read["ada"] & read["grace"] if not BOT_ID.fullmatch(one)} == set()


@pytest.mark.slow
async def test_user_limited_in_one_app_is_welcome_in_another(world: TwoApps) -> None:
    for _ in range(RATINGS_PER_MINUTE):
        assert await world.rate(world.one, "17", True) == 201
    assert await world.rate(world.one, "17", True) == 429
    assert await world.rate(world.other, "17", True) == 201


async def test_who_comes_to_the_other_app_has_not_come_back(world: TwoApps) -> None:
    await world.rate(world.one, "17", True)
    world.clock.advance(DAY_S)
    await world.rate(world.other, "17", True)
    world.clock.advance(3 * DAY_S)
    found = (await world.figures())["retention"]
    assert (found["value"], found["n"]) == (0, 2)


async def test_who_is_erased_in_one_app_stays_in_the_other(world: TwoApps) -> None:
    await world.rate(world.one, "17", True)
    await world.rate(world.other, "17", False)
    await world.figures()
    [erased_name, _] = await world.pseudonyms()
    body = {"user_id": "17", "account": "one"}
    erased = (await world.admin.post("/users/erase", json=body)).json()
    assert (erased["ratings"], erased["known_as"]) == (1, {"ada": erased_name})
    found = await world.figures()
    assert (found["thumbs_up"], found["thumbs_down"], found["conversation_count"]) == (0, 1, 1)


async def test_a_season_counts_both(world: TwoApps) -> None:
    rules = {"name": "Cup", "starts_at": world.clock.now().isoformat()}
    await world.admin.put("/competitions/cup", json=rules)
    for app, thumbs_up in ((world.one, True), (world.other, False)):
        body = {
            "user_id": "17",
            "bot": {"name": "Luna", "memory": ""},
            "consent": True,
            "competition": "cup",
        }
        opened = (await app.post("/conversations", json=body)).json()["conversation_id"]
        world.clock.advance(1)
        await world.greet(app, opened)
        await app.post(f"/conversations/{opened}/feedback", json={"thumbs_up": thumbs_up})
    world.clock.advance(1)
    season = (await world.admin.post("/competitions/cup/freeze")).json()
    assert '"thumbs_down":1,"thumbs_up":1' in season["ranking"]
