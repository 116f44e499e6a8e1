"""docs/characters.md: what it shows is what happens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from guanaco import AsyncClient
from guanaco.accounts import Role
from guanaco_cli.main import GROUPS
from guanaco_server.characters.macros import Names, expand
from guanaco_server.database.database import Database
from guanaco_server.http import api_document
from guanaco_server.settings import Settings
from tests.fixtures.cards import V3, card_png
from tests.fixtures.world import World

PAGE = (Path(__file__).parents[2] / "docs" / "characters.md").read_text()


def block(language: str) -> str:
    return PAGE.split(f"```{language}\n")[1].split("```")[0]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    table = PAGE.split(heading)[1].split("| --- |", 1)[1].split("\n\n")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


async def test_its_form_is_stored_and_its_limits_are_the_settings(database: Database) -> None:
    world = World(database)
    http = await world.http(Role.BACKEND)
    pushed = await http.post("/characters", content=block("json"))
    assert pushed.status_code == 201, pushed.text
    form = json.loads(block("json"))
    assert {name: pushed.json()[name] for name in form} == form
    for _, limit, setting in rows("## Limits"):
        if setting:
            value = Settings.model_fields[setting.strip("`")].default
            number, _, unit = limit.partition(" ")
            factor = {"MiB": 2**20, "GiB": 2**30}.get(unit, 1)
            assert value == int(number.replace(",", "")) * factor


async def test_its_lorebook_tells_what_the_page_says(database: Database) -> None:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    http = await world.http(Role.BACKEND)
    book = json.loads(PAGE.split("```json\n")[2].split("```")[0])
    pushed = (await http.post("/characters", json={"name": "Marlowe"})).json()
    put = await http.put(f"/characters/{pushed['id']}/lorebook", json=book)
    assert put.status_code == 201, put.text
    body = {"user_id": "u", "consent": True, "character": pushed["id"]}
    talk = (await http.post("/conversations", json=body)).json()["conversation_id"]
    for content in ("I saw a goose.", "Where are the islands?"):
        await http.post(f"/conversations/{talk}/messages", json={"content": content})
    prompt = world.model_server.generations[-1].prompt
    contents = [one["content"].replace("{{char}}", "Marlowe") for one in book["entries"]]
    assert prompt.startswith(f"Marlowe's Persona: {contents[3]}\n")
    told = prompt.index(f"{contents[0]}\n{contents[1]}\n")
    assert told < prompt.index("I saw a goose.") < prompt.index(contents[2])
    assert prompt.index(contents[2]) < prompt.index("Where are the islands?")
    messages = (await http.get(f"/conversations/{talk}")).json()["messages"]
    assert [one.get("lore") for one in messages] == [[0, 1], None, [2], None]


def test_its_macros_become_what_the_table_says() -> None:
    chosen = {"one of them": {"fog", "rain", "snow"}, "a number": {str(n) for n in range(1, 13)}}
    checked = 0
    for macros, becomes in rows("## Macros"):
        for macro in re.findall(r"`([^`]+)`", macros):
            said = expand(macro, Names("Marlowe", "Sam"), "seed", "place")
            exact = re.fullmatch(r"`(\w+)`", becomes)
            allowed = next((v for k, v in chosen.items() if becomes.startswith(k)), None)
            if exact:
                assert said == exact[1]
            elif allowed:
                assert said in allowed
            else:
                assert not said.strip()
            checked += 1
    assert checked >= 17


async def test_its_python_runs(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    (tmp_path / "marlowe.png").write_bytes(card_png(V3))
    monkeypatch.chdir(tmp_path)
    transport = httpx.ASGITransport(world.app)
    key = await world.key(Role.BACKEND)
    printed: list[str] = []
    names: dict[str, Any] = {
        "client_of_the_world": lambda: AsyncClient("http://guanaco", key, transport=transport),
        "print": printed.append,
    }
    exec(block("python").replace("AsyncClient()", "client_of_the_world()"), names)
    await names["main"]()
    assert printed[0] == "Mind the rope, Sam."
    assert printed[1]
    assert json.loads((tmp_path / "again.json").read_text())["data"]["name"] == V3["data"]["name"]


def test_its_requests_are_those_of_the_api() -> None:
    paths = api_document.read_file()["paths"]
    there = {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, methods in paths.items()
        if path.startswith("/api/v1/characters")
        for method in methods
    }
    assert {request.strip("`") for request, _ in rows("`client` is an")} == there


def test_its_commands_are_there() -> None:
    group = typer.main.get_command(GROUPS["characters"][0])
    lines = [line for line in PAGE.splitlines() if line.startswith("guanaco characters")]
    named = {line.split()[2]: line for line in lines}
    assert set(named) == set(group.commands)  # type: ignore[attr-defined]
    for name, line in named.items():
        options = {one for p in group.commands[name].params for one in p.opts}  # type: ignore[attr-defined]
        assert set(re.findall(r"--[a-z]+", line)) <= options
