"""A developer sees what they may use, an admin sets it, and a Hub token goes in by a form and never comes out."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco_server.database.database import Database
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import send, signed_in

ACCOUNT = "/admin/accounts/ada"
TOKEN = "hf_ofada0123456789"
FORM = {"repo": "acme/llama"}


class LimitedWorld(WebWorld):
    changes = {"quota_per_hour": 2}


@pytest.fixture
def world(database: Database) -> WebWorld:
    return LimitedWorld(database)


async def test_developer_sees_their_usage_and_when_more_is_possible(world: WebWorld) -> None:
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    page = (await ada.get("/quota")).text
    assert "Submissions and redeploys within an hour" in page
    assert "The next one is possible" not in page
    for _ in range(2):
        assert (await send(ada, "/submissions/new", FORM)).status_code == 303
    assert "The next one is possible" in (await ada.get("/quota")).text
    refused = await send(ada, "/submissions/new", {**FORM, "hub_token": TOKEN})
    assert refused.status_code == 429
    assert "acme/llama" in refused.text, "what was typed is kept"
    assert TOKEN not in refused.text


async def test_an_admin_lifts_a_developers_limits_and_takes_it_back(world: WebWorld) -> None:
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    root = await signed_in(world, Role.ADMIN, "root")
    assert f'href="{ACCOUNT}"' in (await root.get("/admin/keys")).text
    lifted = {"per_hour": "0", "artifact_bytes": "1.5"}
    assert (await send(root, ACCOUNT, lifted, ACCOUNT)).status_code == 303
    page = (await root.get(ACCOUNT)).text
    assert 'value="0"' in page
    assert 'value="1.5"' in page
    assert "1.5\u202fGB" in (await ada.get("/quota")).text
    for _ in range(3):
        assert (await send(ada, "/submissions/new", FORM)).status_code == 303
    assert (await send(root, ACCOUNT, {}, ACCOUNT)).status_code == 303
    assert (await send(ada, "/submissions/new", FORM)).status_code == 429


@pytest.mark.parametrize("wrong", ["-1", "lots", "1e400", "nan"])
async def test_limit_that_is_no_number_is_reported_at_its_field(
    world: WebWorld, wrong: str
) -> None:
    await signed_in(world, Role.DEVELOPER, "ada")
    root = await signed_in(world, Role.ADMIN, "root")
    for field in ("live", "artifact_bytes"):
        answer = await send(root, ACCOUNT, {field: wrong}, ACCOUNT)
        assert answer.status_code == 422
        assert f'id="{field}-problem"' in answer.text


async def test_only_admins_see_accounts_and_unknown_ones_are_404(world: WebWorld) -> None:
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    assert (await ada.get(ACCOUNT)).status_code == 403
    assert (await send(ada, ACCOUNT, {"live": "0"})).status_code == 403
    root = await signed_in(world, Role.ADMIN, "root")
    assert (await root.get("/admin/accounts/nobody")).status_code == 404


async def test_hub_token_of_a_form_is_encrypted_and_never_shown(world: WebWorld) -> None:
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    form = (await ada.get("/submissions/new")).text
    assert 'name="hub_token" type="password"' in form
    wrong = await send(ada, "/submissions/new", {"repo": "nonsense", "hub_token": TOKEN})
    assert wrong.status_code == 422
    assert TOKEN not in wrong.text
    bad = await send(ada, "/submissions/new", {**FORM, "hub_token": "a b\u00e9"})
    assert bad.status_code == 422
    assert 'id="hub_token-problem"' in bad.text
    made = await send(ada, "/submissions/new", {**FORM, "hub_token": TOKEN})
    path = made.headers["location"]
    assert TOKEN not in (await ada.get(path)).text
    async with world.database.read() as session:
        (sealed,) = list(await session.scalars(text("SELECT sealed FROM hub_tokens")))
    assert TOKEN.encode().hex() not in sealed
    assert (await send(ada, f"{path}/cancel", {}, f"{path}/cancel")).status_code == 303
    async with world.database.read() as session:
        assert list(await session.scalars(text("SELECT sealed FROM hub_tokens"))) == []
    again = await send(ada, f"{path}/redeploy", {"hub_token": TOKEN}, f"{path}/redeploy")
    assert again.status_code == 303
    async with world.database.read() as session:
        assert len(list(await session.scalars(text("SELECT sealed FROM hub_tokens")))) == 1
