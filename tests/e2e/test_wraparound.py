"""PostgreSQL's transaction ids go around, from 2^32 to 3, under submissions, chats and ratings: nobody notices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from guanaco import Client
from guanaco.accounts import Role
from guanaco.chat import Bot
from guanaco.submissions import Status
from tests.e2e.conftest import StartPlatform
from tests.fixtures.deployed import hold_any_number
from tests.fixtures.postgres import IDS, PostgresServer, running_server
from tests.fixtures.up import eventually

pytestmark = [pytest.mark.engine, pytest.mark.postgres, pytest.mark.slow]
BOT = Bot(name="Luna", memory="Luna keeps a lighthouse.")
USERS = 4
TURNS_AFTERWARDS = 3  # of each user
IDS_AT_LAST = 60  # of chats and stages, before the ids go around


@pytest.fixture
def old_server() -> Iterator[PostgresServer]:
    """A server that has given nearly all of its ids."""
    with running_server(is_in_memory=True, ids_left=50_000) as server:
        yield server


def test_ids_go_around_under_submissions_chats_and_ratings(
    start_platform: StartPlatform, old_server: PostgresServer
) -> None:
    url = old_server.url(old_server.create())
    up = start_platform(database_url=url)
    developer, key = up.client(Role.DEVELOPER, "ada"), ""
    with Client(up.base_url, up.admin_key) as admin:
        key = admin.create_key("app", Role.BACKEND).key
    first = developer.submit("acme/tiny")
    assert developer.wait(first.id).status is Status.DEPLOYED
    hold_any_number(url)
    is_around, turns = threading.Event(), [0] * USERS

    def talk(user: int) -> tuple[str, list[str]]:
        """Say one thing after another until some turns after the ids went around, then rate; what was acknowledged."""
        said: list[str] = []
        left = TURNS_AFTERWARDS
        with Client(up.base_url, key) as app:
            conversation = app.open_conversation(f"user-{user}", BOT, consent=True).conversation_id
            while left:
                left -= is_around.is_set()
                app.send(conversation, text := f"message {len(said)}")
                said.append(text)
                turns[user] = len(said)
            app.rate(conversation, True, "She is funny.")
        return conversation, said

    with ThreadPoolExecutor(USERS) as pool:
        talks = [pool.submit(talk, user) for user in range(USERS)]
        try:
            eventually(lambda: all(turns), "turn of each user")
            second = developer.submit("acme/tiny")
            old_server.use_up_ids(IDS - IDS_AT_LAST)
            assert old_server.next_id() < IDS
            eventually(lambda: old_server.next_id() > IDS + IDS_AT_LAST, "end of the ids")
        finally:
            is_around.set()
        conversations = [talk.result(timeout=120) for talk in talks]

    assert developer.wait(second.id).status is Status.DEPLOYED
    developer.deactivate(first.id)
    old_server.freeze()
    old_server.stop()
    old_server.restart()
    app = up.client()
    eventually(lambda: app.leaderboard().rows, "platform whose database is back")
    for conversation, said in conversations:
        messages = app.conversation(conversation).messages
        assert [one.content for one in messages if one.sender == "user"] == said
        assert len(messages) == 2 * len(said)
    rated = {feedback.conversation_id for feedback in developer.feedback(first.id)}
    rated |= {feedback.conversation_id for feedback in developer.feedback(second.id)}
    assert rated == {conversation for conversation, _ in conversations}
