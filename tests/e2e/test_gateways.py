"""Several gateway processes on one port, over one PostgreSQL: any of them serves any turn, and no turn is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import TypeVar

import psutil
import pytest

from guanaco import Client
from guanaco.accounts import Role
from guanaco.chat import Bot
from guanaco.errors import ConversationBusy, ServerUnreachable
from guanaco.submissions import Status
from tests.fixtures.deployed import hold_any_number
from tests.fixtures.roles import RoleProcess, Roles
from tests.fixtures.up import eventually

pytestmark = [pytest.mark.engine, pytest.mark.postgres]
BOT = Bot(name="Luna", memory="Luna keeps a lighthouse.")
T = TypeVar("T")


def gateways_of(platform: RoleProcess) -> list[psutil.Process]:
    """The processes beside the platform's own."""
    return [child for child in psutil.Process(platform.process.pid).children() if is_gateway(child)]


def is_gateway(process: psutil.Process) -> bool:
    try:
        return any("gateway_process" in part for part in process.cmdline())
    except psutil.Error:  # it has just ended
        return False


def persistently(call: Callable[[], T]) -> T:
    """Send a request as an app does: again, for as long as its gateway dies or a dead one's lease has not run out."""
    while True:
        try:
            return call()
        except (ServerUnreachable, ConversationBusy):
            continue


def test_turns_go_on_while_gateways_are_killed(roles: Roles) -> None:
    roles.migrate()
    platform = roles.start("api", "api-0", gateways=3)
    roles.start("worker", "worker-0")
    client = roles.client(platform)
    submission = client.submit("acme/tiny")
    assert client.wait(submission.id).status is Status.DEPLOYED
    hold_any_number(roles.database_url)
    with Client(platform.base_url, roles.admin_key) as admin:
        key = admin.create_key("app", Role.BACKEND).key
    eventually(lambda: len(gateways_of(platform)) == 2, "gateways")
    stop = threading.Event()

    def talk(user: int) -> tuple[str, list[str]]:
        """Says one thing after another; what was acknowledged."""
        acknowledged: list[str] = []
        with Client(platform.base_url, key) as app:
            conversation = persistently(
                lambda: app.open_conversation(f"user-{user}", BOT, consent=True)
            ).conversation_id
            while not stop.is_set() or not acknowledged:
                message = f"message {len(acknowledged)}"
                persistently(partial(app.send, conversation, message))
                acknowledged.append(message)
        return conversation, acknowledged

    with ThreadPoolExecutor(6) as pool:
        talks = [pool.submit(talk, user) for user in range(6)]
        for _ in range(3):
            victim = gateways_of(platform)[0]
            victim.send_signal(signal.SIGKILL)
            victim.wait(60)
            eventually(lambda: len(gateways_of(platform)) == 2, "gateway in its place")
        stop.set()
        said = [talk.result(timeout=120) for talk in talks]

    with Client(platform.base_url, key) as app:
        for conversation, acknowledged in said:
            messages = app.conversation(conversation).messages
            users = [message.content for message in messages if message.sender == "user"]
            # A turn that was stored when its gateway died before it said so was said again: it is there twice.
            assert [content for content, _ in groupby(users)] == acknowledged
            assert len(messages) >= 2 * len(acknowledged)
    children = gateways_of(platform)
    platform.kill()
    eventually(lambda: not any(child.is_running() for child in children), "end of the gateways")


def test_the_gateways_of_a_platform_that_stops_end_well(roles: Roles) -> None:
    roles.migrate()
    platform = roles.start("api", "api-0", gateways=2)
    eventually(lambda: len(gateways_of(platform)) == 1, "gateway")
    (child,) = gateways_of(platform)
    eventually(lambda: roles.log("api-0").count("Started server process") == 2, "start of both")
    assert platform.stop() == 0
    assert not child.is_running()
    assert "Fatal" not in roles.log("api-0")
