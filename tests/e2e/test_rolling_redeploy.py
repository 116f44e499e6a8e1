"""A redeploy while sixteen users talk: every turn is answered, and the old model server stops only when it has drained."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial

import pytest

from guanaco import Client
from guanaco.chat import Bot
from guanaco.errors import GuanacoError, NoModelAvailable
from guanaco.submissions import RolloutPhase, Status
from tests.e2e.conftest import StartPlatform
from tests.fixtures.deployed import hold_any_number
from tests.fixtures.up import SCRIPTED_ENGINE, Up, eventually

pytestmark = pytest.mark.engine

USERS = 16
BOT = Bot(name="Luna")


@dataclass
class Crowd:
    """Users who go on talking, each in one conversation, and what went wrong."""

    up: Up
    turns: list[int] = field(default_factory=lambda: [0] * USERS)
    faults: list[str] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        client = self.up.client()
        for user in range(USERS):
            opened = eventually(partial(self._open, client, user), "conversation")
            thread = threading.Thread(target=self._talk, args=(user, opened))
            self.threads.append(thread)
            thread.start()
        self.talk_on()

    def talk_on(self) -> None:
        """Wait until every user has had two more turns."""
        wanted = [turns + 2 for turns in self.turns]
        eventually(
            lambda: (
                self.faults
                or all(now >= then for now, then in zip(self.turns, wanted, strict=True))
            ),
            "turn of each user",
        )

    def end(self) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join()

    def _open(self, client: Client, user: int) -> str | None:
        """Open a conversation; None until the gateway has read how many the model holds."""
        try:
            return client.open_conversation(f"user-{user}", BOT, consent=True).conversation_id
        except NoModelAvailable:
            return None

    def _talk(self, user: int, conversation_id: str) -> None:
        with Client(self.up.base_url, self.up.admin_key) as client:
            while not self.is_over.is_set():
                try:
                    client.send(conversation_id, f"Turn {self.turns[user]}")
                except GuanacoError as error:
                    self.faults.append(f"{user}: {error}")
                self.turns[user] += 1


def test_sixteen_talking_users_notice_nothing(start_platform: StartPlatform) -> None:
    up = start_platform(engine_command=[*SCRIPTED_ENGINE, "--token-delay-ms", "50"])
    client = up.client()
    submission = client.wait(client.submit("acme/tiny").id)
    hold_any_number(str(up.settings.get("database_url", f"sqlite:///{up.data_dir}/guanaco.db")))
    (old,) = up.model_servers()
    crowd = Crowd(up)
    crowd.start()
    try:
        assert client.redeploy(submission.id).status is Status.DEPLOYED
        done = client.wait(submission.id)
        crowd.talk_on()
    finally:
        crowd.end()

    assert crowd.faults == []
    assert done.status is Status.DEPLOYED
    assert done.rollout is not None
    assert (done.run, done.rollout.phase) == (2, RolloutPhase.DONE), done.rollout.failure
    eventually(lambda: len(up.model_servers()) == 1, "end of the old model server")
    (new,) = up.model_servers()
    assert new.pid != old.pid
