"""Stored prompts over HTTP: versions, labels that submissions follow without a redeploy, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.prompts import PromptFile
from guanaco.submissions import Status
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.submissions.tables import StoredPromptVersionRow, SubmissionRow
from tests.fixtures.world import World

SHORT = {"response_template": "SHORT {bot_name}:"}
LONG = {"response_template": "LONG {bot_name}:"}
BROKEN = {
    "kind": "file",
    "parts": [{"name": "chat", "each": "turn", "content": "{{ 1 / 0 }}"}],
}
HUGE = {"response_template": "w " * 1_500}
FOLLOWER = "acme-bard_v1"


GOOD = "{% for m in messages %}\n- name: m{{ loop.index }}\n  role: user\n  content: '{{ m }}'\n{% endfor %}"


def poet(template: str) -> dict[str, Any]:
    return {"kind": "poet", "template": template}


class Prompts(World):
    developer: httpx.AsyncClient
    backend: httpx.AsyncClient

    async def begin(self) -> Prompts:
        self.model_server.scripts = [Script(("Hi.",))]
        self.ada = await self.account(Role.DEVELOPER, "ada")
        self.developer = await self.http(Role.DEVELOPER, "ada")
        self.backend = await self.http(Role.BACKEND, "app")
        for prompt in (SHORT, LONG):
            await self.push(prompt)
        await self.publish(self.ada, FOLLOWER, prompt="support@production", prompt_version=1)
        assert (await self.label(1)).status_code == 200
        return self

    async def push(self, prompt: dict[str, Any], name: str = "support") -> httpx.Response:
        return await self.developer.post("/prompts", json={"name": name, "prompt": prompt})

    async def label(self, version: int | None = None, label: str = "production") -> httpx.Response:
        body = {} if version is None else {"version": version}
        return await self.developer.put(f"/prompts/support/labels/{label}", json=body)

    async def served(self) -> str:
        """Have the model answer the conversation's next message; return the end of the prompt that it got."""
        await self.routing.refresh()
        if not hasattr(self, "conversation"):
            self.conversation = await self.open(self.backend)
        await self.greet(self.backend, self.conversation)
        return self.model_server.generations[-1].prompt.rpartition("\n")[2]


@pytest.fixture
async def world(database: Database) -> Prompts:
    return await Prompts(database).begin()


async def test_version_never_changes_and_equal_text_makes_no_new_one(world: Prompts) -> None:
    first = await world.developer.get("/prompts/support/versions/1")
    assert first.json()["prompt"]["response_template"] == SHORT["response_template"]
    assert (await world.push(LONG)).json()["version"] == 2
    assert (await world.push(SHORT)).json()["version"] == 3
    found = (await world.developer.get("/prompts/support")).json()
    assert [one["version"] for one in found["versions"]] == [3, 2, 1]
    assert found["labels"][0]["submissions"] == [FOLLOWER]
    (listed,) = (await world.developer.get("/prompts")).json()
    assert (listed["name"], listed["newest"], listed["versions"]) == ("support", 3, [])


@pytest.mark.both_databases
async def test_prompts_of_an_account_take_so_many_bytes(database: Database) -> None:
    world = Prompts(database, prompt_bytes_per_account=6_000)
    await world.begin()
    assert (await world.push({"response_template": "x" * 4_000})).status_code == 201
    refused = await world.push({"response_template": "y" * 4_000})
    assert (refused.status_code, refused.json()["error"]) == (409, "quota_exceeded")
    assert "of the 6,000 that they may take" in refused.json()["detail"]
    assert (await world.push({"response_template": "x" * 4_000})).status_code == 201, "no new one"


@pytest.mark.both_databases
async def test_two_pushes_at_once_get_numbers_of_their_own(world: Prompts) -> None:
    texts = [{"response_template": f"{number} {{bot_name}}:"} for number in range(4)]
    answers = await asyncio.gather(*(world.push(text, "racy") for text in texts))
    numbers = sorted(answer.json().get("version", 0) for answer in answers)
    assert numbers == [1, 2, 3, 4], [answer.text for answer in answers]


async def test_label_moves_in_mid_conversation_and_back(world: Prompts) -> None:
    assert (await world.served()).startswith("SHORT")
    moved = (await world.label(2)).json()
    assert (moved["version"], moved["previous"], moved["submissions"]) == (2, 1, [FOLLOWER])
    assert (await world.served()).startswith("LONG")
    status = (await world.developer.get(f"/submissions/{FOLLOWER}")).json()
    assert (status["prompt"], status["prompt_version"]) == ("support@production", 2)
    assert (status["run"], status["rollout"]) == (1, None), "nothing was deployed again"
    back = (await world.label()).json()
    assert (back["version"], back["previous"]) == (1, 2)
    assert (await world.served()).startswith("SHORT")
    admin = await world.http(Role.ADMIN)
    noted = [one["subject"] for one in (await admin.get("/audit")).json()["items"]]
    assert noted[:3] == ["support@production of ada: 1", "support@production of ada: 2", "support@production of ada: 1"]  # fmt: skip
    assert "support@2" in noted
    events = (await world.developer.get(f"/submissions/{FOLLOWER}/events?follow=false")).text
    assert "Its prompt support@production is version 2 now; it was 1." in events


async def test_a_label_is_not_moved_to_what_cannot_be_served(world: Prompts) -> None:
    version = (await world.push(HUGE)).json()["version"]
    refused = await world.label(version)
    assert (refused.status_code, refused.json()["error"]) == (422, "invalid_input")
    assert f"{FOLLOWER} could not be served with it" in refused.json()["detail"]
    assert "tokens" in refused.json()["detail"]
    assert (await world.served()).startswith("SHORT")


LOOP = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        (BROKEN, "The prompt file's part 'chat' cannot be rendered: division by zero."),
        (poet("{{ nope }}"), "what it makes is no list of parts."),
        (poet("{% include 'x' %}"), "it includes 'x', which is none of its sections."),
        (poet("{% for"), "cannot be rendered"),
        (poet(LOOP), "it takes more than 500,000 steps."),
    ],
)
async def test_a_prompt_that_makes_none_is_not_stored(
    world: Prompts, prompt: dict[str, Any], why: str
) -> None:
    refused = await world.push(prompt)
    assert (refused.status_code, refused.json()["error"]) == (422, "bad_prompt"), refused.text
    assert why in refused.json()["detail"]
    assert (await world.developer.get("/prompts/support")).json()["newest"] == 2


async def test_broken_prompt_of_an_earlier_release_is_not_labelled(world: Prompts) -> None:
    async with world.database.write() as session:
        row = await session.get(StoredPromptVersionRow, (world.ada.id, "support", 2))
        assert row is not None
        row.prompt = PromptFile.model_validate(BROKEN)
    read = await world.developer.get("/prompts/support/versions/2")
    assert read.json()["prompt"]["parts"][0]["content"] == "{{ 1 / 0 }}"
    for label in ("production", "followed-by-nobody"):
        refused = await world.label(2, label)
        assert (refused.status_code, refused.json()["error"]) == (422, "bad_prompt")
        assert "division by zero" in refused.json()["detail"]
    assert (await world.served()).startswith("SHORT")


async def test_prompt_for_chat_templates_is_stored_without_a_model(world: Prompts) -> None:
    file = {"kind": "file", "render": "chat_template", "parts": [{"name": "chat", "each": "turn", "content": "{{ message }}"}]}  # fmt: skip
    for prompt in (file, {"kind": "chat_template"}, poet(GOOD) | {"render": "chat_template"}):
        answer = await world.push(prompt, "by-template")
        assert answer.status_code == 201, answer.text


async def test_a_submission_names_a_version_or_a_label(world: Prompts) -> None:
    async def submit(prompt: str, **more: object) -> httpx.Response:
        body = {"repo": "acme/tiny", "prompt": prompt} | more
        return await world.developer.post("/submissions", json=body)

    labelled, pinned = await submit("support@production"), await submit("support@2")
    assert (labelled.status_code, pinned.status_code) == (202, 202), labelled.text
    assert labelled.json()["prompt_version"] == 1
    assert pinned.json()["formatter"]["response_template"] == LONG["response_template"]
    assert (await world.label(2)).json()["submissions"] == [FOLLOWER, labelled.json()["id"]]
    follower = (await world.developer.get(f"/submissions/{labelled.json()['id']}")).json()
    assert follower["formatter"]["response_template"] == LONG["response_template"]
    for prompt, status, error in (
        ("support@9", 404, "prompt_not_found"),
        ("support@staging", 404, "prompt_not_found"),
        ("nothing@1", 404, "prompt_not_found"),
        ("support", 404, "prompt_not_found"),
        ("support@99999999999", 404, "prompt_not_found"),
    ):
        answer = await submit(prompt)
        assert (answer.status_code, answer.json()["error"]) == (status, error), answer.text
    both = await submit("support@1", formatter=SHORT)
    assert "a formatter or a stored prompt, not both" in both.json()["detail"]
    check = await world.developer.post("/checks", json={"repo": "acme/tiny", "prompt": "no@1"})
    assert check.json()["error"] == "prompt_not_found"


async def test_others_prompts_are_not_found_and_admins_name_their_developer(world: Prompts) -> None:
    other = await world.http(Role.DEVELOPER, "bob")
    assert (await other.get("/prompts/support")).status_code == 404
    assert (await other.get("/prompts/support?developer=ada")).status_code == 403
    body = {"repo": "acme/tiny", "prompt": "support@1"}
    assert (await other.post("/submissions", json=body)).json()["error"] == "prompt_not_found"
    admin = await world.http(Role.ADMIN)
    path = "/prompts/support/labels/production?developer=ada"
    assert (await admin.put(path, json={"version": 2})).json()["moved_by"] == "admin"
    assert (await world.served()).startswith("LONG")
    assert (await admin.get("/prompts?developer=nobody")).status_code == 404
    backend = await world.http(Role.BACKEND, "app")
    assert (await backend.get("/prompts")).status_code == 403


async def test_what_is_followed_stays(world: Prompts) -> None:
    for path in ("/prompts/support", "/prompts/support/labels/production"):
        answer = await world.developer.delete(path)
        assert (answer.status_code, answer.json()["error"]) == (409, "conflict"), answer.text
    assert (await world.label(1, "staging")).json()["submissions"] == []
    assert (await world.developer.delete("/prompts/support/labels/staging")).status_code == 204
    assert (await world.developer.delete("/prompts/support/labels/staging")).status_code == 404
    async with world.database.write() as session:
        row = await session.get(SubmissionRow, FOLLOWER)
        assert row is not None
        row.prompt = "support@1"
    assert (await world.developer.delete("/prompts/support")).status_code == 204
    assert (await world.developer.get("/prompts/support")).status_code == 404
    assert (await world.served()).startswith("acme") is False


async def test_wrong_labels_and_names_are_one_sentence(world: Prompts) -> None:
    assert "cannot be a label" in (await world.label(1, "7")).json()["detail"]
    assert "nothing to go back to" in (await world.label(None, "staging")).json()["detail"]
    assert (await world.label(9)).json()["error"] == "prompt_not_found"
    assert (await world.push(SHORT, "Not A Name")).status_code == 422
    assert (await world.push({"kind": "poem"})).status_code == 422


async def test_an_experiment_keeps_the_version_that_its_label_named(world: Prompts) -> None:
    admin = await world.http(Role.ADMIN)
    ours = await admin.post("/prompts", json={"name": "ours", "prompt": SHORT})
    assert ours.status_code == 201
    await admin.post("/prompts", json={"name": "ours", "prompt": LONG})
    await admin.put("/prompts/ours/labels/production", json={"version": 1})
    variants = [{"name": "control"}, {"name": "short", "prompt": "ours@production"}]
    made = await admin.post("/experiments", json={"name": "words", "variants": variants})
    assert made.status_code == 201, made.text
    await admin.put("/prompts/ours/labels/production", json={"version": 2})
    _, short = (await admin.get("/experiments/words")).json()["variants"]
    assert short["prompt"] == "ours@1"
    assert short["formatter"]["response_template"] == SHORT["response_template"]
    unknown = [{"name": "control"}, {"name": "x", "prompt": "ours@9"}]
    answer = await admin.post("/experiments", json={"name": "more", "variants": unknown})
    assert answer.json()["error"] == "prompt_not_found"


@pytest.mark.both_databases
async def test_failed_or_deleted_submission_follows_no_label(
    world: Prompts,
) -> None:
    async with world.database.write() as session:
        row = await session.get(SubmissionRow, FOLLOWER)
        assert row is not None
        row.status, row.deleted_at = Status.FAILED, world.clock.now()
    assert (await world.label(2)).json()["submissions"] == []
    assert (await world.developer.delete("/prompts/support")).status_code == 204
