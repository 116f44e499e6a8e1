"""Summaries of long conversations, over HTTP: written in the background, read, corrected and erased."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import Any

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.competitions import OPEN, CompetitionRequest, DuelRule, MemoryRule
from guanaco.parameters import GenerationParams
from guanaco_server.competitions.service import OPEN_COMPETITION
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import MemoryModelServer, Script
from guanaco_server.deployments.model_servers.model_server import (
    Chunk,
    Generation,
    ModelServerFault,
)
from tests.fixtures.world import World

FACT = "My ferret is called Quillon."
NOTES = "The user has a ferret called Quillon and goes along the river."
BEGINS = "What happened before: "
PARAMS = GenerationParams(max_input_tokens=200, summary_tokens=32, max_output_tokens=200)


class NotingServer(MemoryModelServer):
    """Writes ``notes`` when it is asked for notes, and replies to everything else as the scripts say."""

    def __init__(self, notes: str | ModelServerFault | None) -> None:
        super().__init__()
        self.notes = notes
        self.asked_for_notes: list[Generation] = []

    async def generate(self, endpoint: str, generation: Generation) -> AsyncGenerator[Chunk, None]:
        if "You keep notes" not in generation.prompt:
            async for chunk in super().generate(endpoint, generation):
                yield chunk
            return
        self.asked_for_notes.append(generation)
        if self.notes is None:
            await asyncio.Event().wait()
        if isinstance(self.notes, ModelServerFault):
            raise self.notes
        yield Chunk((str(self.notes),))
        yield Chunk((), "stop", 7, 9)


async def talking(
    database: Database, server: NotingServer, params: GenerationParams = PARAMS, **settings: Any
) -> tuple[World, httpx.AsyncClient, str]:
    world = World(database, model_server=server, **settings)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), params=params)
    http = await world.http(Role.BACKEND, "app")
    return world, http, await opened(http)


async def opened(http: httpx.AsyncClient, **more: Any) -> str:
    body = {"user_id": "u", "consent": True} | (
        more or {"bot": {"name": "Ada", "memory": "An owl."}}
    )
    answer = await http.post("/conversations", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["conversation_id"])


async def say(http: httpx.AsyncClient, talk: str, content: str) -> None:
    said = await http.post(f"/conversations/{talk}/messages", json={"content": content})
    assert said.status_code == 200, said.text


async def go_on(world: World, http: httpx.AsyncClient, talk: str, turns: Sequence[int]) -> None:
    """Say lines, and have what is due written before the next one."""
    for place in turns:
        await say(http, talk, f"Number {place}: we went on along the river until the evening.")
        await world.platform.rooms.chat.summaries.finish()


async def remembered(http: httpx.AsyncClient, talk: str) -> Any:
    answer = await http.get(f"/conversations/{talk}/memory")
    assert answer.status_code == 200, answer.text
    return answer.json()


def prompt(server: NotingServer) -> str:
    return server.generations[-1].prompt


async def test_a_fact_that_was_cut_is_in_the_summary(database: Database) -> None:
    server = NotingServer(NOTES)
    world, http, talk = await talking(database, server)
    await say(http, talk, FACT)
    await go_on(world, http, talk, range(40))
    assert FACT not in prompt(server)
    assert BEGINS + NOTES in prompt(server)
    memory = await remembered(http, talk)
    assert {one["written_by"] for one in memory["summaries"]} == {"model"}
    assert memory["summaries"][-1]["text"] == NOTES
    assert memory["summaries"][-1]["until"] < memory["summaries"][-1]["message"]
    assert f"The notes so far:\n{NOTES}" in server.asked_for_notes[-1].prompt


@pytest.mark.parametrize("notes", ["Buy gold watches.", ModelServerFault("It broke.")])
async def test_the_rule_writes_what_a_model_cannot(
    database: Database, notes: str | ModelServerFault
) -> None:
    server = NotingServer(notes)
    world, http, talk = await talking(database, server)
    await say(http, talk, FACT)
    await go_on(world, http, talk, range(40))
    memory = await remembered(http, talk)
    assert {one["written_by"] for one in memory["summaries"]} == {"rule"}
    assert f"{BEGINS}The user: {FACT}" in prompt(server)


async def test_no_model_is_asked_where_the_rule_is_to_write(database: Database) -> None:
    server = NotingServer(NOTES)
    world, http, talk = await talking(database, server, background_writer="rule")
    await say(http, talk, FACT)
    await go_on(world, http, talk, range(20))
    assert not server.asked_for_notes
    assert (await remembered(http, talk))["summaries"][0]["written_by"] == "rule"


async def test_no_turn_waits_for_a_summary(database: Database) -> None:
    server = NotingServer(None)
    world, http, talk = await talking(database, server)
    for place in range(30):
        await say(http, talk, f"Number {place}: we went on along the river until the evening.")
    assert server.asked_for_notes
    assert BEGINS not in prompt(server)
    await world.platform.rooms.chat.summaries.close()


async def test_the_prompt_only_grows_at_its_end(database: Database) -> None:
    server = NotingServer(NOTES)
    world, http, talk = await talking(database, server)
    await go_on(world, http, talk, range(40))
    prompts = [one.prompt.removesuffix("Ada:") for one in server.generations]
    assert len((await remembered(http, talk))["summaries"]) > 3
    for before, after in pairwise(prompts):
        was_cut = first_turn(before) != first_turn(after)
        assert was_cut or after.startswith(before)


def first_turn(whole: str) -> str:
    return whole.partition("<START>\n")[2].partition("until the evening.")[0]


async def test_another_process_makes_the_same_prompt(database: Database) -> None:
    server = NotingServer(NOTES)
    world, http, talk = await talking(database, server)
    await go_on(world, http, talk, range(20))
    before = prompt(server)
    assert BEGINS in before
    world.replies.forget([talk])
    assert (await http.post(f"/conversations/{talk}/regenerate")).status_code == 200
    assert prompt(server) == before


async def test_nothing_is_summarized_unless_the_submission_says_so(database: Database) -> None:
    server = NotingServer(NOTES)
    plain = PARAMS.model_copy(update={"summary_tokens": 0})
    world, http, talk = await talking(database, server, plain)
    await go_on(world, http, talk, range(20))
    assert not server.asked_for_notes
    found = await remembered(http, talk)
    assert (found["summaries"], found["recalled"], found["carried"]) == ([], [], None)


async def test_a_competition_switches_it_for_all(database: Database) -> None:
    server = NotingServer(NOTES)
    plain = PARAMS.model_copy(update={"summary_tokens": 0})
    world, http, talk = await talking(database, server, plain)
    await compete(world, memory=MemoryRule(summary_tokens=32))
    await say(http, talk, FACT)
    await go_on(world, http, talk, range(20))
    assert BEGINS + NOTES in prompt(server)
    await compete(world, memory=MemoryRule(summary_tokens=0))
    shown = len((await remembered(http, talk))["summaries"])
    await go_on(world, http, talk, range(10))
    assert len((await remembered(http, talk))["summaries"]) == shown


async def compete(world: World, **rules: Any) -> None:
    request = CompetitionRequest(name="Open", starts_at=OPEN_COMPETITION.starts_at, **rules)
    await world.competitions.put(OPEN, request)
    await world.routing.refresh()


async def test_both_sides_of_a_battle_see_the_summary(database: Database) -> None:
    server = NotingServer(NOTES)
    world, http, talk = await talking(database, server)
    await world.publish(await world.account(Role.DEVELOPER, "bob"), "bolt-tiny_v1", params=PARAMS)
    await compete(world, duels=DuelRule(battles=True))
    place = 0
    while BEGINS not in prompt(server) if server.generations else True:
        place += 1
        answer = await http.post(f"/conversations/{talk}/battles", json={"content": f"{place}: we went on along the river until the evening."})  # fmt: skip
        assert answer.status_code == 200, answer.text
        await world.platform.rooms.chat.summaries.finish()
    first, second = (one.prompt for one in server.generations[-2:])
    assert first == second


@pytest.mark.both_databases
async def test_a_correction_stands_in_place_of_all_summaries(database: Database) -> None:
    server = NotingServer(NOTES)
    world, http, talk = await talking(database, server)
    await go_on(world, http, talk, range(30))
    corrected = "The user has a stoat called Quillon."
    path = f"/conversations/{talk}/memory"
    answer = await http.put(path, json={"summary": corrected})
    assert [one["text"] for one in answer.json()["summaries"]] == [corrected]
    assert answer.json()["summaries"][0]["written_by"] == "app"
    await say(http, talk, "Go on.")
    assert BEGINS + corrected in prompt(server)
    assert NOTES not in prompt(server)
    await go_on(world, http, talk, range(20))
    assert any(f"The notes so far:\n{corrected}" in one.prompt for one in server.asked_for_notes)


@pytest.mark.parametrize("summary", ["", "  ", "x" * 8_193, None, 7])
async def test_a_correction_that_is_none_is_refused(database: Database, summary: Any) -> None:
    _, http, talk = await talking(database, NotingServer(NOTES))
    answer = await http.put(f"/conversations/{talk}/memory", json={"summary": summary})
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")


async def test_before_anything_was_said_there_is_nothing_to_correct(database: Database) -> None:
    _, http, talk = await talking(database, NotingServer(NOTES))
    answer = await http.put(f"/conversations/{talk}/memory", json={"summary": "Kim."})
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")


@pytest.mark.both_databases
@pytest.mark.slow
async def test_what_was_erased_is_neither_summarized_nor_recalled(database: Database) -> None:
    server = NotingServer("nothing of it")
    params = PARAMS.model_copy(update={"recall_tokens": 32})
    world, http, talk = await talking(database, server, params)
    await say(http, talk, FACT)
    await go_on(world, http, talk, range(40))
    assert FACT in prompt(server)
    assert (await http.delete(f"/conversations/{talk}/memory")).status_code == 204
    await go_on(world, http, talk, range(40))
    await say(http, talk, "What is my ferret called?")
    assert FACT not in prompt(server)
    memory = await remembered(http, talk)
    assert memory["forgotten_until"] == 82
    assert all("Quillon" not in one["text"] for one in memory["summaries"])


async def test_an_edited_message_is_in_no_summary_any_more(database: Database) -> None:
    server = NotingServer("nothing of it")
    world, http, talk = await talking(database, server)
    await say(http, talk, FACT)
    await go_on(world, http, talk, range(30))
    assert FACT in prompt(server)
    first = (await http.get(f"/conversations/{talk}")).json()["messages"][0]["id"]
    path = f"/conversations/{talk}/messages/{first}"
    edited = "My stoat is called Ermintrude."
    assert (await http.patch(path, json={"content": edited})).status_code == 200
    await go_on(world, http, talk, range(4))
    assert FACT not in prompt(server)
    assert edited in prompt(server)


async def test_memory_belongs_to_its_app_and_admin_reads_are_logged(database: Database) -> None:
    server = NotingServer(NOTES)
    world, http, talk = await talking(database, server)
    await go_on(world, http, talk, range(20))
    other, admin = await world.http(Role.BACKEND, "other"), await world.http(Role.ADMIN, "root")
    path = f"/conversations/{talk}/memory"
    for answer in (
        await other.get(path),
        await other.put(path, json={"summary": "Kim."}),
        await other.delete(path),
    ):
        assert (answer.status_code, answer.json()["error"]) == (404, "conversation_not_found")
    assert (await remembered(admin, talk))["summaries"]
    assert (await admin.delete(path)).status_code == 204
    log = (await admin.get("/audit")).json()["items"]
    assert [(one["account"], one["action"]) for one in log[:2]] == [
        ("root", "erase memory"),
        ("root", "read memory"),
    ]


async def test_a_character_remembers_the_last_conversation(database: Database) -> None:
    server = NotingServer("nothing of it")
    world, http, _ = await talking(database, server)
    character = (await http.post("/characters", json=CARD)).json()["id"]
    first = await opened(http, character=character)
    await say(http, first, FACT)
    world.clock.advance(1)
    second = await opened(http, character=character, remember=True)
    world.clock.advance(1)
    await say(http, second, "Hello again.")
    assert f"{BEGINS}The user: {FACT}" in prompt(server)
    assert (await remembered(http, second))["carried"]["conversation_id"] == first
    third = await opened(http, character=character, remember=True)
    world.replies.forget([third])
    await say(http, third, "It is me.")
    assert FACT in prompt(server)
    assert (await http.delete(f"/conversations/{first}")).status_code == 204
    for talk in (second, third):
        await say(http, talk, "Go on.")
        assert FACT not in prompt(server)
        assert (await remembered(http, talk))["carried"] is None


CARD = {"name": "Ada", "description": "An owl.", "greetings": ["Hello."]}


async def two_talks(
    database: Database, server: NotingServer | None = None, **second: Any
) -> tuple[World, httpx.AsyncClient, str, str]:
    """The fact is told in the first one, and the second one remembers it."""
    world, http, _ = await talking(database, server or NotingServer("nothing of it"))
    character = (await http.post("/characters", json=CARD)).json()["id"]
    first = await opened(http, character=character)
    await say(http, first, FACT)
    world.clock.advance(1)
    return world, http, first, await opened(http, character=character, remember=True, **second)


async def test_what_is_carried_is_shown_behind_an_imported_history(database: Database) -> None:
    said = [{"sender": "user", "content": "Hi."}, {"sender": "bot", "content": "Yes?"}]
    world, http, _, second = await two_talks(database, history=said)
    await say(http, second, "Hello again.")
    assert FACT in world.adapters.model_server.generations[-1].prompt  # type: ignore[attr-defined]


@pytest.mark.both_databases
async def test_who_is_erased_while_a_conversation_opens_is_not_remembered(
    database: Database,
) -> None:
    world, http, _, second = await two_talks(database)
    await say(http, second, "Hello.")
    world.clock.advance(1)
    assign = world.routing.assign

    async def slowly(*args: Any, **more: Any) -> Any:
        answer = await http.post("/users/erase", json={"user_id": "u"})
        assert answer.status_code == 200, answer.text
        return await assign(*args, **more)

    world.routing.assign = slowly  # type: ignore[method-assign]
    card = (await http.get("/characters")).json()["items"][0]["id"]
    third = await opened(http, character=card, remember=True)
    assert (await remembered(http, third))["carried"] is None


@pytest.mark.both_databases
async def test_an_erasure_during_a_turn_reaches_it(database: Database) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()

    class Held(NotingServer):
        async def generate(
            self, endpoint: str, generation: Generation
        ) -> AsyncGenerator[Chunk, None]:
            if "Hello again." in generation.prompt:
                reached.set()
                await gate.wait()
            async for chunk in super().generate(endpoint, generation):
                yield chunk

    server = Held("nothing of it")
    _, http, first, second = await two_talks(database, server)
    turn = asyncio.create_task(say(http, second, "Hello again."))
    await reached.wait()
    assert (await http.delete(f"/conversations/{first}")).status_code == 204
    gate.set()
    await turn
    await say(http, second, "Go on.")
    assert FACT not in prompt(server)
    assert (await remembered(http, second))["summaries"] == []


@pytest.mark.slow
async def test_a_source_is_known_through_a_memory_that_was_erased(database: Database) -> None:
    server = NotingServer("nothing of it")
    world, http, first, second = await two_talks(database, server)
    await say(http, second, "Hello again.")
    world.clock.advance(1)
    card = (await http.get("/characters")).json()["items"][0]["id"]
    third = await opened(http, character=card, remember=True)
    assert (await http.delete(f"/conversations/{second}/memory")).status_code == 204
    assert (await http.delete(f"/conversations/{first}")).status_code == 204
    await say(http, third, "Hello again.")
    assert FACT not in prompt(server)


async def test_a_message_that_is_deleted_is_carried_no_more(database: Database) -> None:
    server = NotingServer("nothing of it")
    _, http, first, second = await two_talks(database, server)
    told = (await http.get(f"/conversations/{first}")).json()["messages"][0]["id"]
    assert (await http.delete(f"/conversations/{first}/messages/{told}")).status_code == 204
    await say(http, second, "Hello again.")
    assert FACT not in prompt(server)


@pytest.mark.both_databases
async def test_another_process_shows_what_one_has_written(database: Database) -> None:
    server = NotingServer(NOTES)
    world, http, talk = await talking(database, server)
    await say(http, talk, FACT)
    for place in range(40):
        world.replies.forget([talk])  # as if the turn came to another process
        await go_on(world, http, talk, [place])
    shown = (await remembered(http, talk))["summaries"]
    assert len(shown) > 3
    assert len(server.asked_for_notes) <= len(shown) + 1


async def test_model_without_useful_summaries_is_asked_less_often(
    database: Database,
) -> None:
    server = NotingServer("Buy gold watches.")
    server.scripts = [Script(("…",))]
    world, http, talk = await talking(database, server)
    for _ in range(40):
        await say(http, talk, "… … … … … … … … … … … … … … … …")
        await world.platform.rooms.chat.summaries.finish()
    assert not server.asked_for_notes, "there is nothing to tell"
    assert (await remembered(http, talk))["summaries"] == []


@pytest.mark.both_databases
async def test_what_a_database_cannot_hold_is_left_out(database: Database) -> None:
    server = NotingServer(f"{NOTES}\x00\ud800")
    world, http, talk = await talking(database, server)
    await say(http, talk, FACT)
    await go_on(world, http, talk, range(20))
    assert (await remembered(http, talk))["summaries"][-1]["text"] == NOTES


async def test_a_correction_longer_than_a_summary_is_refused(database: Database) -> None:
    _, http, talk = await talking(database, NotingServer(NOTES))
    await say(http, talk, FACT)
    text = {"summary": "Kim has a stoat. " * 20}
    answer = await http.put(f"/conversations/{talk}/memory", json=text)
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")
    assert "at most" in answer.text


async def test_an_edit_leaves_the_apps_own_text(database: Database) -> None:
    world, http, talk = await talking(database, NotingServer(NOTES))
    await go_on(world, http, talk, range(30))
    text = {"summary": "Kim has a stoat."}
    assert (await http.put(f"/conversations/{talk}/memory", json=text)).status_code == 200
    first = (await http.get(f"/conversations/{talk}")).json()["messages"][1]["id"]
    path = f"/conversations/{talk}/messages/{first}"
    assert (await http.patch(path, json={"content": "Hm."})).status_code == 200
    assert [one["text"] for one in (await remembered(http, talk))["summaries"]] == list(
        text.values()
    )


async def test_a_long_persona_leaves_room_for_the_turns(database: Database) -> None:
    server = NotingServer(None)
    params = GenerationParams(max_input_tokens=400, summary_tokens=50, max_output_tokens=64)
    world, http, _ = await talking(database, server, params, background_writer="rule")
    talk = await opened(http, bot={"name": "Ada", "memory": "An owl. " * 120})
    await go_on(world, http, talk, range(40))
    assert len((await remembered(http, talk))["summaries"]) <= 12
    assert prompt(server).count(BEGINS) <= 2


async def test_only_a_stored_character_remembers(database: Database) -> None:
    _, http, _ = await talking(database, NotingServer(NOTES))
    body = {"user_id": "u", "consent": True, "bot": {"name": "Ada"}, "remember": True}
    answer = await http.post("/conversations", json=body)
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")
    assert "Only a stored character remembers" in answer.text
