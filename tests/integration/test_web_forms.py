"""Tests that a form whose session has ended is given back, carries no secret, and that problems are said at the fields."""

from __future__ import annotations

import re

import pytest

from guanaco.accounts import Role
from guanaco.prompts import CHAT_TEMPLATE, ChatTemplatePrompt
from guanaco_server.database.database import Database
from guanaco_server.submissions.service import SubmissionFilter
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import browser, send, signed_in, token

FORM = {"repo": "acme/wolf", "name": "Grey Wolf", "temperature": "0.3", "formatter": "chatml"}
HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


@pytest.fixture
def world(database: Database) -> WebWorld:
    return WebWorld(database)


async def submitted(world: WebWorld) -> int:
    ada = await world.developer("ada")
    _, total = await world.submissions.page(ada, 1, 10, SubmissionFilter())
    return total


async def test_a_form_is_given_back_after_its_session_ended(world: WebWorld) -> None:
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    fields = FORM | {"hub_token": "hf_secret", "form_token": await token(ada, "/submissions/new")}
    ada.cookies.clear()
    stopped = await ada.post("/submissions/new", data=fields)
    assert stopped.status_code == 401
    assert "Nothing of it was sent." in stopped.text
    assert "hf_secret" not in stopped.text
    assert fields["form_token"] not in stopped.text
    carried = dict(HIDDEN.findall(stopped.text))
    wrong = await ada.post("/signin", data=carried | {"key": "gk_wrong_key"})
    assert wrong.status_code == 401
    assert dict(HIDDEN.findall(wrong.text)) == carried, "kept over a wrong key"
    key = await world.key(Role.DEVELOPER, "ada")
    resumed = await ada.post("/signin", data=carried | {"key": key})
    assert "You are signed in again" in resumed.text
    again = dict(HIDDEN.findall(resumed.text))
    shown = await ada.post("/submissions/new", data=again)
    assert shown.status_code == 200
    for value in ("acme/wolf", "Grey Wolf", "0.3"):
        assert f'value="{value}"' in shown.text
    assert await submitted(world) == 0
    last = dict(HIDDEN.findall(shown.text))
    assert "given_back" not in last
    sent = await ada.post("/submissions/new", data=FORM | last)
    assert sent.status_code == 303


async def test_the_models_own_template_is_chosen(world: WebWorld) -> None:
    page = await signed_in(world, Role.DEVELOPER, "ada")
    sent = await send(page, "/submissions/new", FORM | {"formatter": CHAT_TEMPLATE})
    submission_id = sent.headers["location"].rpartition("/")[2]
    ada = await world.developer("ada")
    found = await world.submissions.require_visible(ada, submission_id)
    assert found.formatter == ChatTemplatePrompt()


async def test_another_sites_form_is_not_kept(world: WebWorld) -> None:
    stranger = browser(world)
    headers = {"Sec-Fetch-Site": "cross-site"}
    answer = await stranger.post("/submissions/new", data=FORM, headers=headers)
    assert answer.status_code == 403
    assert "Grey Wolf" not in answer.text


async def test_form_of_an_older_session_is_shown_again_unsent(world: WebWorld) -> None:
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    fields = FORM | {"form_token": await token(ada, "/submissions/new")}
    newer = await signed_in(world, Role.DEVELOPER, "ada")
    shown = await newer.post("/submissions/new", data=fields)
    assert shown.status_code == 200
    assert 'value="Grey Wolf"' in shown.text
    assert "nothing of it was sent yet" in shown.text
    assert await submitted(world) == 0


async def test_the_page_of_a_form_without_fields_comes_back(world: WebWorld) -> None:
    await world.model("Llama Bard", "ada")
    path = "/submissions/ada-llama-bard_v1/teardown"
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    fields = {"form_token": await token(ada, path)}
    ada.cookies.clear()
    carried = dict(HIDDEN.findall((await ada.post(path, data=fields)).text))
    key = await world.key(Role.DEVELOPER, "ada")
    answer = await ada.post("/signin", data=carried | {"key": key})
    assert answer.headers["location"] == path


@pytest.mark.parametrize(
    ("field", "given", "sentence"),
    [
        ("temperature", "warm", "Write a number, like 0.8."),
        ("top_p", "3", "It must be 1 or less."),
        ("top_k", "1.5", "Write a whole number, like 40."),
        ("repo", "wolf", "It should look like org/name, as on the Hub."),
    ],
)
async def test_a_problem_is_said_at_its_field(
    world: WebWorld, field: str, given: str, sentence: str
) -> None:
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    answer = await send(ada, "/submissions/new", FORM | {field: given}, "/submissions/new")
    assert answer.status_code == 422
    assert f'id="{field}-problem">{sentence}<' in answer.text
    assert "Input should" not in answer.text
