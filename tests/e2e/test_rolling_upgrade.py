"""Two releases with different schemas on one PostgreSQL, old, new and old again, while users chat and rate."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import NullPool, create_engine, text

from guanaco import Client
from guanaco.accounts import Role
from guanaco.submissions import Status
from tests.fixtures.deployed import hold_any_number
from tests.fixtures.next_release import NextRelease
from tests.fixtures.roles import RoleProcess, Roles
from tests.fixtures.up import eventually

# Eight starts of processes: half a minute on a machine of two cores, minutes on one that is shared.
pytestmark = [pytest.mark.engine, pytest.mark.postgres, pytest.mark.timeout(600)]

USERS = 3
PAUSE_S = 0.1  # of a user between two rounds
ROUNDS = 2  # that each user goes through before the next change
LASTING: dict[str, object] = {"lifeline_grace_s": 60}
SPRING = {
    "name": "Spring",
    "starts_at": "2000-01-01T00:00:00Z",
    "assignment": {"kind": "by_mood", "seed": 7},
}


@dataclass
class Target:
    """An API process that takes requests; a new one knows moods."""

    process: RoleProcess
    is_new: bool


@dataclass
class Load:
    """The load of users: what they were told was done, and each answer that they should not have got."""

    http: httpx.Client
    targets: list[Target] = field(default_factory=list)
    turns: set[tuple[str, str]] = field(default_factory=set)
    replies: set[str] = field(default_factory=set)
    ratings: set[str] = field(default_factory=set)
    moods: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    has_spring: bool = False
    rounds: dict[int, int] = field(default_factory=dict)
    is_stopped: threading.Event = field(default_factory=threading.Event)

    def chat(self, user: int) -> None:
        """Go on with one conversation for all the time, and rate a new one in each round."""
        lasting = self._open(user, 0)
        number = 0
        while not self.is_stopped.wait(PAUSE_S) and not self.faults:
            number += 1
            self._say(lasting, f"round {number}")
            short = self._open(user, number)
            self._say(short, "Hello")
            self._say(short, "And now?")
            rated = self._post(f"/conversations/{short}/feedback", {"thumbs_up": number % 2 == 0})
            self.ratings.add(rated["feedback_id"])
            self.rounds[user] = number

    def wait_for_rounds(self, count: int) -> None:
        wanted = {user: self.rounds.get(user, 0) + count for user in range(USERS)}
        eventually(
            lambda: self.faults or all(self.rounds.get(u, 0) >= n for u, n in wanted.items()),
            f"{count} rounds of each user",
        )
        assert self.faults == []

    def _open(self, user: int, number: int) -> str:
        body = {
            "user_id": f"user-{user}-{number}",
            "bot": {"name": "Luna", "memory": "Luna keeps a lighthouse."},
            "consent": True,
            "competition": "spring" if self.has_spring and number % 2 else "open",
        }
        opened = self._post("/conversations", body, bot_of_new={"mood": "calm"})
        return str(opened["conversation_id"])

    def _say(self, conversation: str, content: str) -> None:
        reply = self._post(f"/conversations/{conversation}/messages", {"content": content})
        self.turns.add((conversation, content))
        self.replies.add(reply["message_id"])

    def _post(
        self, path: str, body: dict[str, Any], bot_of_new: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Send it as an app behind a load balancer does: what never reached a process goes to another one."""
        while True:
            target = random.choice(self.targets)
            has_mood = bot_of_new is not None and target.is_new
            sent = {**body, "bot": {**body["bot"], **(bot_of_new or {})}} if has_mood else body
            try:
                answer = self.http.post(f"{target.process.base_url}/api/v1{path}", json=sent)
            except httpx.ConnectError:
                continue
            except httpx.HTTPError as error:
                raise self._fault(f"{path}: {error!r}") from error
            if not answer.is_success:
                raise self._fault(f"{path}: {answer.status_code} {answer.text}")
            found: dict[str, Any] = answer.json()
            if has_mood:
                self.moods.add(found["conversation_id"])
            return found

    def _fault(self, what: str) -> AssertionError:
        self.faults.append(what)
        return AssertionError(what)


class RollOut:
    """One API process and one worker of a release, replaced by those of the other under load."""

    def __init__(self, roles: Roles, new: NextRelease) -> None:
        self.roles = roles
        self.new = new
        self.worker = roles.launch("worker", "worker-0", **LASTING)
        self.api = Target(roles.start("api", "api-0"), is_new=False)
        roles.wait(self.worker)
        self._number = 0

    def replace(self, load: Load, *, is_new: bool) -> None:
        """Both releases take requests at once for a while; then only the other one does."""
        python_path = self.new.python_path if is_new else ""
        self._number += 1
        process = self.roles.start("api", f"api-{self._number}", python_path=python_path)
        before, self.api = self.api, Target(process, is_new)
        load.targets = [before, self.api]
        if is_new and not load.has_spring:
            self._make_spring(load)
        load.wait_for_rounds(ROUNDS)
        load.targets = [self.api]
        assert before.process.stop() == 0
        self.worker.kill()  # its model servers wait for the next one
        self.worker = self.roles.start("worker", "worker-0", python_path=python_path, **LASTING)
        load.wait_for_rounds(ROUNDS)
        assert self.api.process.is_ready()
        assert self.worker.is_ready()

    def _make_spring(self, load: Load) -> None:
        """An admin uses the new release's assignment rule at once, while the old release still runs."""
        made = httpx.put(
            f"{self.api.process.base_url}/api/v1/competitions/spring",
            json=SPRING,
            headers={"Authorization": f"Bearer {self.roles.admin_key}"},
            trust_env=False,
        )
        assert made.status_code == 200, made.text
        load.has_spring = True


@pytest.fixture
def role_settings() -> dict[str, object]:
    return {
        "stress_duration_s": 0.5,
        "stress_requests": 4,
        "failover_s": 60,
        "first_token_timeout_s": 60,
    }


def test_no_turn_is_lost_while_two_releases_take_turns(roles: Roles, tmp_path: Path) -> None:
    new = NextRelease(tmp_path / "next")
    roles.migrate()
    roll_out = RollOut(roles, new)
    client = roles.client(roll_out.api.process)
    submission = client.submit("acme/tiny")
    assert client.wait(submission.id).status is Status.DEPLOYED
    hold_any_number(roles.database_url)
    with Client(roll_out.api.process.base_url, roles.admin_key) as admin:
        key = admin.create_key("app", Role.BACKEND).key
    http = httpx.Client(
        headers={"Authorization": f"Bearer {key}"},
        limits=httpx.Limits(max_keepalive_connections=0),  # none is left to a process that stops
        timeout=60,
        trust_env=False,
    )
    load = Load(http, [roll_out.api])

    with http, ThreadPoolExecutor(USERS) as pool:
        chats = [pool.submit(load.chat, user) for user in range(USERS)]
        try:
            load.wait_for_rounds(ROUNDS)
            roles.migrate(new.python_path)
            load.wait_for_rounds(ROUNDS)
            for is_new in (True, False):
                roll_out.replace(load, is_new=is_new)
        finally:
            load.is_stopped.set()
        for chat in chats:
            chat.result(timeout=60)

    require_all_kept(roles.database_url, load)
    for log in tmp_path.glob("*.log"):
        assert "Traceback" not in log.read_text(), log.read_text()


def require_all_kept(database_url: str, load: Load) -> None:
    """Every turn and rating that was acknowledged is in the database, and so is what only the new release knows."""
    engine = create_engine(database_url, poolclass=NullPool)
    with engine.connect() as tables:
        messages = tables.execute(text("SELECT conversation_id, content, id, sender FROM messages"))
        found = messages.all()
        ratings = set(tables.scalars(text("SELECT id FROM feedback")))
        moods = tables.execute(
            text("SELECT id, mood FROM conversations WHERE bot->>'mood' = 'calm'")
        )
        kept = {row.id for row in moods}
        rules = tables.scalar(text("SELECT rules FROM competitions WHERE id = 'spring'"))
    engine.dispose()
    assert load.turns <= {
        (row.conversation_id, row.content) for row in found if row.sender == "user"
    }
    assert load.replies <= {row.id for row in found if row.sender == "bot"}
    assert load.ratings <= ratings
    assert load.moods
    assert load.moods <= kept
    assert rules["assignment"]["kind"] == "by_mood"
