"""Prompts that a developer tries out through the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import yaml

from guanaco.accounts import Role
from guanaco.prompt_cases import PromptCase, PromptCases, check_case
from guanaco.trials import RenderedPrompt
from guanaco_server.database.database import Database
from tests.fixtures.world import BOT, World

HI = [{"sender": "user", "content": "Hi"}]
DOCS = Path(__file__).parents[2] / "docs" / "prompts.md"
FILE = {"parts": [{"name": "chat", "each": "turn", "content": "<{{ sender }}> {{ message }}\n"}]}


async def rendered(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"bot": BOT.model_dump(), "turns": HI, **fields}
    return await http.post("/prompts/render", json=body)


async def test_prompt_is_tried_without_a_model_and_with_ones_own(database: Database) -> None:
    world = World(database)
    ada = await world.account(Role.DEVELOPER, "ada")
    own = await world.publish(ada)
    http = await world.http(Role.DEVELOPER, "ada")
    file = {"kind": "file", **FILE}
    tried = (await rendered(http, formatter=file)).json()
    assert tried["prompt"] == "<bot> Ahoy!\n<user> Hi\n"
    assert (tried["tokens"], tried["max_input_tokens"]) == (9, 1_024)
    await http.put(f"/submissions/{own}/aliases/champion")
    for name in (own, "acme/tiny@champion"):
        found = (await rendered(http, submission=name, max_input_tokens=64)).json()
        assert found["prompt"].endswith("\nYou: Hi\nLuna:")
        assert found["max_input_tokens"] == 64


async def test_what_cannot_be_tried_is_refused_in_a_sentence(database: Database) -> None:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    stranger = await world.http(Role.DEVELOPER, "bob")

    async def refused(**fields: Any) -> tuple[int, str]:
        answer = await rendered(stranger, **fields)
        return answer.status_code, answer.json()["error"]

    assert await refused() == (422, "invalid_input")
    assert await refused(submission="acme-tiny_v1") == (404, "submission_not_found")
    assert await refused(formatter={"kind": "chat_template"}) == (422, "missing_file")
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
    parts = [{"name": "bomb", "content": loop}, *FILE["parts"]]
    assert await refused(formatter={"kind": "file", "parts": parts}) == (422, "bad_prompt")
    assert await refused(formatter={"kind": "file", "parts": []}) == (422, "invalid_input")
    assert await refused(formatter=FILE, max_input_tokens=1) == (422, "invalid_input")
    backend = await world.http(Role.BACKEND, "app")
    assert (await rendered(backend)).status_code == 403


async def test_a_case_holds_against_the_served_prompt(database: Database) -> None:
    world = World(database)
    await world.account(Role.DEVELOPER, "ada")
    http = await world.http(Role.DEVELOPER, "ada")
    turns = [{"sender": ("user", "bot")[n % 2], "content": f"turn {n}"} for n in range(40)]
    parts = [part | {"truncation_priority": 1} for part in FILE["parts"]]
    file = {"kind": "file", "parts": parts}
    fields = {"formatter": file, "turns": turns, "max_input_tokens": 32}
    answer = RenderedPrompt.model_validate((await rendered(http, **fields)).json())

    def problems(**expect: Any) -> list[str]:
        case = {"name": "long", "bot": BOT, "turns": turns, "expect": expect}
        return check_case(PromptCase.model_validate(case), answer).problems

    assert problems(max_tokens=32, contains=["turn 39"], lacks=["turn 0\n"]) == []
    assert problems(contains=["turn 0\n"]) == ["It lacks 'turn 0\\n'."]
    assert problems(golden=answer.prompt) == []


async def test_documented_cases_hold_for_the_documented_prompt(database: Database) -> None:
    world = World(database)
    await world.account(Role.DEVELOPER, "ada")
    http = await world.http(Role.DEVELOPER, "ada")
    blocks = [part.partition("```")[0] for part in DOCS.read_text().split("```yaml\n")[1:]]
    shown = {key: value for block in blocks for key, value in yaml.safe_load(block).items()}
    [case] = PromptCases.model_validate({"cases": shown["cases"]}).cases
    answer = await http.post(
        "/prompts/render",
        json={
            "formatter": {"kind": "file", "parts": shown["parts"]},
            "bot": case.bot.model_dump(),
            "turns": [turn.model_dump(mode="json") for turn in case.turns],
            "max_input_tokens": case.max_input_tokens,
        },
    )
    assert check_case(case, RenderedPrompt.model_validate(answer.json())).problems == []
