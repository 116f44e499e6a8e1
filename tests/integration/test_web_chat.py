"""The chat page over HTTP: consent first, blind, and each visitor's own; on both databases."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from pathlib import Path

import httpx
import pytest

from guanaco.accounts import Role
from guanaco.competitions import CompetitionRequest
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.web.access.guards import CHAT_COOKIE
from guanaco_server.web.chat import ongoing
from guanaco_server.web.chat.beta_chat import Visitor
from guanaco_server.web.chat.bots import read_bots
from guanaco_server.web.chat.ongoing import FinishedReply, OngoingReplies, Piece
from guanaco_server.web.pages.chat import CONSENTS, CONSENTS_A_DAY, DAY_S, WITHIN_S
from tests.fixtures.cards import V2, card_png
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import HERE, agreed, browser, chatting, send, signed_in, token
from tests.fixtures.world import eventually

TURN = "5a" * 16  # how a page names its turn


@pytest.fixture
def world(database: Database) -> WebWorld:
    return WebWorld(database)


async def test_nothing_is_stored_of_a_beta_user_before_she_agrees(world: WebWorld) -> None:
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    client = browser(world)
    page = await client.get("/chat")
    assert "I agree" in page.text
    assert not page.cookies
    refused = await client.post("/chat/open", data={"bot": "marlowe"})
    assert refused.status_code == 403
    assert (await client.post("/chat/consent", data={"consent": "no"})).headers[
        "location"
    ] == "/chat"
    assert not client.cookies
    agreed = await client.post("/chat/consent", data={"consent": "yes"})
    assert {"HttpOnly", "Path=/chat"} <= set(agreed.headers["set-cookie"].split("; "))


async def test_one_network_has_a_daily_limit_of_votes(world: WebWorld) -> None:
    def of(address: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(world.app, client=(address, 1)),
            base_url="http://guanaco",
            headers=HERE,
        )

    async def consents(number: int, times: int) -> set[int]:
        one = of(f"2001:db8::{number}")
        answers = [await one.post("/chat/consent", data={"consent": "yes"}) for _ in range(times)]
        return {answer.status_code for answer in answers}

    given = 0
    while given < CONSENTS_A_DAY:
        times = min(CONSENTS, CONSENTS_A_DAY - given)
        assert await consents(given, times) == {303}
        given += times
        world.clock.advance(WITHIN_S + 1)
    assert await consents(given, 1) == {429}
    assert (await of("2001:db8:0:1::").post("/chat/consent", data={"consent": "yes"})).is_redirect
    world.clock.advance(DAY_S)
    assert await consents(given, 1) == {303}


async def test_a_chat_without_javascript_and_without_the_models_name(world: WebWorld) -> None:
    await world.publish(await world.account(Role.DEVELOPER, "ada"), "secret-name_v1")
    client, path = await chatting(world)
    seen = []
    for action, fields in (
        ("messages", {"content": "Ahoy"}),
        ("regenerate", {}),
        ("rating", {"thumb": "up", "text": "Fun"}),
    ):
        answer = await send(client, f"{path}/{action}", fields, path)
        assert answer.status_code == 303, answer.text
        seen += [answer.text, str(answer.headers), (await client.get(path)).text]
    assert "Hello from memory." in seen[-1]
    assert "Thank you" in seen[-1]
    seen += [(await client.get("/chat")).text]
    again = await send(client, f"{path}/rating", {"thumb": "down"}, path)
    assert again.status_code == 303, "it may be changed"
    assert (
        'value="down" title="I did not like it" aria-pressed="true"'
        in (await client.get(path)).text
    )
    world.clock.advance(2 * DAY_S)
    again = await send(client, f"{path}/rating", {"thumb": "up"}, path)
    assert again.status_code == 409
    assert "can no longer be changed" in again.text
    assert "Leaderboard" not in again.text, "the chat is blind, and so are its errors"
    for word in ("secret-name", "acme", "tiny", ">ada<"):
        assert word not in "".join([*seen, again.text])


async def test_a_streamed_reply_tells_text_and_nothing_else(world: WebWorld) -> None:
    await world.publish(await world.account(Role.DEVELOPER, "ada"), "secret-name_v1")
    client, path = await chatting(world)
    fields = {"content": "Ahoy", "form_token": await token(client, path)}
    stream = {"Accept": "text/event-stream"}
    answer = await client.post(f"{path}/messages", data=fields, headers=stream)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *tokens, done = [
        json.loads(line[6:]) for line in answer.text.splitlines() if line[:6] == "data: "
    ]
    assert "".join(token["text"] for token in tokens) == "Hello from memory."
    assert done == {"text": "Hello from memory.", "id": done["id"], "rate": False}
    followed = await client.get(f"{path}/reply", params={"after": "another"}, headers=stream)
    assert json.loads(followed.text.split("data: ")[1])["id"] == done["id"]
    world.model_server.scripts = [Script(pieces=("Hel",), fault="secret-name_v1 fell over")]
    broken = await client.post(f"{path}/messages", data=fields, headers=stream)
    assert "event: error" in broken.text
    assert "secret-name" not in broken.text
    world.deployments.note_replicas("secret-name_v1", ())
    await world.routing.refresh()
    for headers in (stream, {}):
        gone = await client.post(f"{path}/messages", data=fields, headers=headers)
        assert "secret-name" not in gone.text


async def test_a_developers_chat_with_their_model_counts_nowhere(
    world: WebWorld,
) -> None:
    for name in ("ada", "bob"):
        await world.publish(await world.account(Role.DEVELOPER, name), f"{name}-model_v1")
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    link = "/chat?model=ada-model_v1"
    assert link in (await ada.get("/submissions/ada-model_v1")).text
    assert link not in (await browser(world).get("/submissions/ada-model_v1")).text
    assert 'name="model" value="ada-model_v1"' in (await ada.get(link)).text, "consent comes first"
    consent = {"consent": "yes", "model": "ada-model_v1"}
    assert (await ada.post("/chat/consent", data=consent)).headers["location"] == link
    assert "counts in no ranking" in (await ada.get(link)).text
    for who, model, status in (
        (ada, "bob-model_v1", 404),
        (ada, "nobody_v1", 404),
        (await agreed(world), "ada-model_v1", 403),
    ):
        assert (await who.get("/chat", params={"model": model})).status_code == status
        refused = await send(who, "/chat/open", {"bot": "marlowe", "model": model}, "/chat")
        assert refused.status_code == status
    opened = await send(ada, "/chat/open", {"bot": "marlowe", "model": "ada-model_v1"}, link)
    path = opened.headers["location"]
    await send(ada, f"{path}/messages", {"content": "Ahoy"}, path)
    words = {"thumb": "up", "text": "Splendid", "may_be_quoted": "yes"}
    assert (await send(ada, f"{path}/rating", words, path)).status_code == 303
    page = (await ada.get(path)).text
    assert "You chose the model" in page
    assert "may be shown on the model" not in page, "its developer could quote themselves"
    await world.copies.make()
    await world.scores.loop.run_once()
    (row,) = [one for one in (await world.leaderboard.leaderboard("open")).rows if one.submission_id == "ada-model_v1"]  # fmt: skip
    assert (row.thumbs_up, row.conversation_count, row.feedback_count) == (0, 0, 0)
    assert "Splendid" in (await ada.get("/submissions/ada-model_v1/feedback")).text
    assert "Splendid" not in (await browser(world).get("/submissions/ada-model_v1")).text


async def test_everybody_chooses_a_model_where_the_operator_allows_it(database: Database) -> None:
    world = WebWorld(database, may_choose_models=True)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), "ada-model_v1")
    guest = await agreed(world)
    assert "/chat?model=ada-model_v1" in (await guest.get("/submissions/ada-model_v1")).text
    opened = await send(guest, "/chat/open", {"bot": "marlowe", "model": "ada-model_v1"}, "/chat")
    path = opened.headers["location"]
    assert "You chose the model" in (await guest.get(path)).text
    blind = await send(guest, "/chat/open", {"bot": "marlowe"}, "/chat")
    assert "ada-model_v1" not in (await guest.get(blind.headers["location"])).text


async def test_no_chat_page_links_to_the_leaderboard(world: WebWorld) -> None:
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    pages = [await browser(world).get("/chat")]
    client, path = await chatting(world)
    for where in ("/chat", path, "/chat/forget", "/chat/nothing", f"{path}/picture"):
        pages.append(await client.get(where))
    pages.append(await client.post(f"{path}/messages", data={"content": "Ahoy"}))
    pages.append(await send(client, f"{path}/rating", {"thumb": ""}, path))
    pages.append(await send(client, "/chat/forget", page="/chat"))
    assert [page.status_code for page in pages] == [200, 200, 200, 200, 404, 404, 403, 422, 200]
    assert not [page.url for page in pages if re.search(r'href="/(?!chat|static)', page.text)]


async def test_a_changed_thumb_keeps_the_words_and_their_consent(world: WebWorld) -> None:
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    client, path = await chatting(world)
    await send(client, f"{path}/messages", {"content": "Ahoy"}, path)
    words = {"text": "She knows the way.", "may_be_quoted": "yes"}
    alone = await send(client, f"{path}/rating", words, path)
    assert alone.status_code == 422
    assert 'id="words-problem" role="alert">Choose thumbs up or thumbs down' in alone.text
    assert ">She knows the way.</textarea>" in alone.text, "nothing is lost"
    await send(client, f"{path}/rating", {"thumb": "up", **words}, path)
    page = (await client.get(path)).text
    assert ">She knows the way.</textarea>" in page
    assert 'value="yes" checked' in page
    await send(client, f"{path}/rating", {"thumb": "down"}, path)
    rating = (await world.web.chat.read(*await _visitor(world, client, path))).rating
    assert rating is not None
    assert (rating.thumbs_up, rating.text, rating.may_be_quoted) == (False, words["text"], True)
    await send(client, f"{path}/rating", {"thumb": "", "text": "Less so."}, path)
    rating = (await world.web.chat.read(*await _visitor(world, client, path))).rating
    assert rating is not None
    assert (rating.thumbs_up, rating.text, rating.may_be_quoted) == (False, "Less so.", False)


async def test_a_chat_is_its_visitors_alone(world: WebWorld) -> None:
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    _, path = await chatting(world)
    other = await agreed(world)
    assert (await other.get(path)).status_code == 404
    fields = {"content": "Let me in", "form_token": await token(other, "/chat")}
    fields |= {"judged": "up msg_1", "message": "msg_1"}
    for action in ("messages", "regenerate", "rating", "edit", "stop", "choice", "judgement"):
        answer = await other.post(f"{path}/{action}", data={**fields, "thumb": "up"})
        assert answer.status_code == 404
    assert (await browser(world).get(path)).headers["location"] == "/chat"


async def test_withdrawing_erases_and_shuts_the_door(world: WebWorld) -> None:
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    client, path = await chatting(world)
    cookie = client.cookies[CHAT_COOKIE]
    answer = await send(client, "/chat/forget", page="/chat")
    assert "are erased" in answer.text
    (noted,) = (await world.audit.list(10)).items
    assert (noted.account, noted.action) == ("web-chat", "erase user")
    client.cookies.set(CHAT_COOKIE, cookie, path="/chat")
    assert "I agree" in (await client.get("/chat")).text
    assert (await client.get(path)).headers["location"] == "/chat"


async def test_a_stopped_reply_keeps_what_was_written(world: WebWorld) -> None:
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    world.model_server.scripts = [Script(("Ahoy,", " there"), go_on=asyncio.Event()), Script()]
    client, path = await chatting(world)
    begun = await _begin(client, path)
    await eventually(partial(_has_written, world, path, "Ahoy,"))
    await _stop(client, path)
    assert "Ahoy," in (await begun).text
    assert world.model_server.cancelled == 1, "the model server writes no more"
    (_, reply) = (await world.web.chat.read(*await _visitor(world, client, path))).messages
    assert reply.content == "Ahoy,"
    answer = await send(client, f"{path}/messages", {"content": "Go on"}, path)
    assert answer.status_code == 303
    assert "Ahoy," in world.model_server.generations[-1].prompt, "the model goes on from it"


async def test_a_reply_that_another_process_writes_is_stopped_too(
    world: WebWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ongoing, "LOOK_S", 0.01)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    world.model_server.scripts = [Script(("Ahoy,", " there"), go_on=asyncio.Event())]
    client, path = await chatting(world)
    begun = await _begin(client, path)
    await eventually(partial(_has_written, world, path, "Ahoy,"))
    monkeypatch.setattr(OngoingReplies, "of", lambda *_: None)
    stop, here = OngoingReplies.stop, []

    def elsewhere(self: OngoingReplies, conversation_id: str, turn: str) -> bool:
        """The first call is that of a process that does not write the reply."""
        here.append(conversation_id)
        return len(here) > 1 and stop(self, conversation_id, turn)

    monkeypatch.setattr(OngoingReplies, "stop", elsewhere)
    await _stop(client, path)
    assert "Ahoy," in (await begun).text
    whose = await _visitor(world, client, path)
    (_, reply) = (await world.web.chat.read(*whose)).messages
    assert reply.content == "Ahoy,"
    go_on = asyncio.Event()
    world.model_server.scripts = [Script(("Ahoy,", " there"), go_on=go_on)]
    monkeypatch.undo()
    monkeypatch.setattr(ongoing, "LOOK_S", 0.01)
    again = await world.web.chat.regenerate(*whose)
    await eventually(partial(_has_written, world, path, "Ahoy,"))
    go_on.set()
    assert [piece async for piece in again.follow()][-1].text == "Ahoy, there", "the order is over"


async def test_unstarted_reply_is_not_stored_and_can_be_repeated(
    world: WebWorld,
) -> None:
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    world.model_server.silent = {"http://model"}
    world.deployments.note_replicas("acme-tiny_v1", ("http://model",))
    client, path = await chatting(world)
    begun = await _begin(client, path)
    await eventually(partial(_is_asked, world))
    await _stop(client, path)
    await begun
    (asked,) = (await world.web.chat.read(*await _visitor(world, client, path))).messages
    assert asked.content == "Hello"
    world.model_server.silent = set()
    assert (await send(client, f"{path}/regenerate", {}, path)).status_code == 303
    assert "Hello from memory." in (await client.get(path)).text


async def test_replies_are_swiped_judged_and_answered_anew(world: WebWorld) -> None:
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    world.model_server.scripts = [Script((text,)) for text in ("One.", "Two.", "Three.")]
    client, path = await chatting(world)
    await send(client, f"{path}/messages", {"content": "Count"}, path)
    await send(client, f"{path}/regenerate", {}, path)
    page = (await client.get(path)).text
    assert "2 of 2" in page
    (first,) = re.findall(r'value="(msg_\w+)" aria-label="Previous reply"', page)
    assert (await send(client, f"{path}/choice", {"message": first}, path)).status_code == 303
    page = (await client.get(path)).text
    assert "1 of 2" in page
    assert "One." in page
    assert "Two." not in page
    judged = {"judged": f"up {first}"}
    assert (await send(client, f"{path}/judgement", judged, path)).status_code == 303
    assert f'value="none {first}"' in (await client.get(path)).text, "it can be taken back"
    assert (await send(client, f"{path}/judgement", {"judged": "x"}, path)).status_code == 422
    (asked,) = re.findall(r'name="message" value="(msg_\w+)"><label', page)
    edit = {"message": asked, "content": "Count on"}
    assert (await send(client, f"{path}/edit", edit, path)).status_code == 303
    page = (await client.get(path)).text
    assert "Three." in page
    assert "One." not in page
    assert " of 2" not in page
    stale = await send(client, f"{path}/edit", edit, path)
    assert stale.status_code == 409
    assert "no longer your last message" in stale.text


async def _begin(
    client: httpx.AsyncClient, path: str, action: str = "messages"
) -> asyncio.Task[httpx.Response]:
    """Send a message; the answer comes when the reply has ended."""
    fields = {"content": "Hello", "turn": TURN, "form_token": await token(client, path)}
    stream = {"Accept": "text/event-stream"}
    return asyncio.create_task(client.post(f"{path}/{action}", data=fields, headers=stream))


async def _stop(client: httpx.AsyncClient, path: str) -> None:
    assert (await send(client, f"{path}/stop", {"turn": TURN}, path)).status_code == 303


async def _has_written(world: WebWorld, path: str, text: str) -> bool:
    reply = world.web.ongoing.of(path.rpartition("/")[2])
    return reply is not None and sorted(reply.text) == sorted(text)


async def _is_asked(world: WebWorld) -> bool:
    return bool(world.model_server.generations)


async def _visitor(world: WebWorld, client: httpx.AsyncClient, path: str) -> tuple[Visitor, str]:
    visitor = await world.web.chat.visitor(client.cookies[CHAT_COOKIE])
    assert visitor is not None
    return visitor, path.rpartition("/")[2]


async def with_battles(world: WebWorld, *names: str) -> None:
    ada = await world.account(Role.DEVELOPER, "ada")
    for name in names:
        await world.publish(ada, name)
    await world.competitions.put(
        "open",
        CompetitionRequest.model_validate(
            {"name": "Open", "starts_at": "2000-01-01T00:00:00Z", "duels": {"battles": True}}
        ),
    )
    await world.routing.refresh()


async def test_two_answers_are_compared_blindly_and_the_better_continues(world: WebWorld) -> None:
    world.model_server.scripts = [Script(("Left words.",)), Script(("Right words.",))]
    await with_battles(world, "secret-one_v1", "secret-two_v1")
    client, path = await chatting(world)
    page = (await client.get(path)).text
    assert f'formaction="{path}/battle"' in page
    answer = await send(client, f"{path}/battle", {"content": "Ahoy"}, path)
    assert answer.status_code == 303
    page = (await client.get(path)).text
    assert "secret" not in page
    assert page.count("words.</div>") == 2
    shown = re.findall(r'dir="auto">(\w+ words\.)', page)
    (battle,) = re.findall(r'data-id="(battle_\w+)"', page)
    nothing = await send(
        client, f"{path}/vote", {"battle": battle, "outcome": "the left one"}, path
    )
    assert nothing.status_code == 422
    assert (
        await send(client, f"{path}/vote", {"battle": "battle_x", "outcome": "a"}, path)
    ).status_code == 404
    assert (
        await send(client, f"{path}/vote", {"battle": battle, "outcome": "b"}, path)
    ).status_code == 303
    page = (await client.get(path)).text
    assert shown[1] in page
    assert shown[0] not in page
    assert "Which is better?" not in page
    assert "secret" not in page


async def test_a_battle_is_followed_by_two_pages_from_its_beginning(world: WebWorld) -> None:
    go_on = asyncio.Event()
    world.model_server.scripts = [Script((letter, "."), go_on=go_on) for letter in "LR"]
    await with_battles(world, "secret-one_v1", "secret-two_v1")
    client, path = await chatting(world)
    begun = await _begin(client, path, "battle")
    await eventually(partial(_has_written, world, path, "LR"))
    visitor, conversation_id = await _visitor(world, client, path)
    followed = await world.web.chat.follow(visitor, conversation_id, "")
    go_on.set()
    *pieces, finished = [event async for event in followed]
    texts = {"a": "", "b": ""}
    for piece in pieces:
        assert isinstance(piece, Piece)
        assert piece.side is not None
        texts[piece.side] += piece.text
    assert sorted(texts.values()) == ["L.", "R."]
    assert isinstance(finished, FinishedReply)
    assert finished.is_battle
    answer = (await begun).text
    assert '"side"' in answer
    assert '"battle"' in answer


async def test_a_stopped_battle_keeps_what_both_have_written(world: WebWorld) -> None:
    scripts = [Script((f"{letter}eft,", " there"), go_on=asyncio.Event()) for letter in "LR"]
    world.model_server.scripts = [*scripts]
    await with_battles(world, "secret-one_v1", "secret-two_v1")
    client, path = await chatting(world)
    begun = await _begin(client, path, "battle")
    await eventually(partial(_has_written, world, path, "Left,Reft,"))
    await _stop(client, path)
    assert '"battle":true' in (await begun).text.replace(" ", "")
    page = (await client.get(path)).text
    assert "Which is better?" in page
    assert ">Left,</div>" in page
    assert ">Reft,</div>" in page


async def test_a_stopped_battle_does_not_wait_for_a_silent_side(world: WebWorld) -> None:
    world.model_server.silent = {"http://silent"}
    await with_battles(world, "secret-one_v1", "secret-two_v1")
    world.model_server.scripts = [Script(("Ahoy,", " there"), go_on=asyncio.Event())]
    client, path = await chatting(world)
    world.deployments.note_replicas("secret-two_v1", ("http://silent",))
    await world.routing.refresh()
    begun = await _begin(client, path, "battle")
    await eventually(partial(_has_written, world, path, "Ahoy,"))
    await _stop(client, path)
    await begun
    messages = (await world.web.chat.read(*await _visitor(world, client, path))).messages
    assert [message.content for message in messages] in (["Hello", "Ahoy,"], ["Hello"])
    assert "Which is better?" not in (await client.get(path)).text


async def test_without_a_rival_a_battle_is_an_ordinary_reply(world: WebWorld) -> None:
    await with_battles(world, "secret-one_v1")
    client, path = await chatting(world)
    assert (await send(client, f"{path}/battle", {"content": "Ahoy"}, path)).status_code == 303
    page = (await client.get(path)).text
    assert "Which is better?" not in page
    assert "A good reply" in page


async def test_no_battle_where_the_competition_has_none(world: WebWorld) -> None:
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    client, path = await chatting(world)
    assert "/battle" not in (await client.get(path)).text
    answer = await send(client, f"{path}/battle", {"content": "Ahoy"}, path)
    assert answer.status_code == 409
    assert "Two answers at once are not on here." in answer.text
    assert (await send(client, f"{path}/battle", {"content": "  "}, path)).status_code == 422


async def test_two_answers_are_streamed_and_carried_to_their_end(world: WebWorld) -> None:
    world.model_server.scripts = [Script(("Left ", "words.")), Script(("Right ", "words."))]
    await with_battles(world, "secret-one_v1", "secret-two_v1")
    client, path = await chatting(world)
    fields = {"content": "Ahoy", "form_token": await token(client, path)}
    stream = {"Accept": "text/event-stream"}
    answer = await client.post(f"{path}/battle", data=fields, headers=stream)
    told: dict[str, str] = {"a": "", "b": ""}
    for data in re.findall(r"event: token\ndata: (.*)", answer.text):
        piece = json.loads(data)
        assert set(piece) == {"side", "text"}
        told[piece["side"]] += piece["text"]
    assert sorted(told.values()) == ["Left words.", "Right words."]
    assert "event: done" in answer.text
    assert "secret" not in answer.text
    assert "Which is better?" in (await client.get(path)).text


async def test_a_battle_that_fails_says_so_in_its_stream(world: WebWorld) -> None:
    world.model_server.scripts = [Script((), fault="the server is gone")]
    await with_battles(world, "secret-one_v1", "secret-two_v1")
    client, path = await chatting(world)
    fields = {"content": "Ahoy", "form_token": await token(client, path)}
    stream = {"Accept": "text/event-stream"}
    answer = await client.post(f"{path}/battle", data=fields, headers=stream)
    assert "event: error" in answer.text
    assert "Nobody can answer right now." in answer.text
    assert "secret" not in answer.text


async def test_a_stored_character_has_its_picture_and_greeting(
    world: WebWorld, tmp_path: Path
) -> None:
    backend = await world.http(Role.BACKEND)
    card = card_png(V2, "chara", width=5)
    made = (await backend.post("/characters?public=true", content=card)).json()
    hidden = (await backend.post("/characters", content=card)).json()
    file = tmp_path / "bots.toml"
    file.write_text(f'[kept]\ncharacter = "{made["id"]}"\n[hidden]\ncharacter = "{hidden["id"]}"\n')
    world.bots = read_bots(file)
    world.restart()
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    backend = await world.http(Role.BACKEND)
    await world.routing.refresh()
    client = await agreed(world)
    home = (await client.get("/chat")).text
    assert home.count('name="bot"') == 1, "a private one is not offered"
    picture = await client.get("/chat/pictures/kept")
    assert picture.headers["content-type"] == "image/png"
    assert "sandbox" in picture.headers["content-security-policy"]
    assert (await client.get("/chat/pictures/hidden")).status_code == 404
    opened = await send(client, "/chat/open", {"bot": "kept"}, "/chat")
    assert opened.status_code == 303, opened.text[-900:]
    path = opened.headers["location"]
    page = (await client.get(path)).text
    assert f'src="{path}/picture"' in page
    assert "Welcome aboard, You!" in page
    assert (await client.get(f"{path}/picture")).content == picture.content
    other = await agreed(world)
    assert (await other.get(f"{path}/picture")).status_code == 404
    await backend.patch(f"/characters/{made['id']}", json={"is_public": False})
    assert (await client.get(path)).text.count("<img") == 0
    refused = await send(client, "/chat/open", {"bot": "kept"}, path)
    assert refused.status_code == 404
