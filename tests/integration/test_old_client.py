"""The old client's protocol over the same services; on both databases, and with the real old client."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from guanaco.accounts import Role
from guanaco.prompts import ChatTemplatePrompt, PromptFile, PromptPart
from guanaco.submissions import GenerationParams, Status, SubmissionKind
from guanaco_server.accounts.service import Account
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.leaderboard.flags.rules import DEVOTED_RATINGS
from tests.fixtures.old_client import old_client_python, session
from tests.fixtures.rating import rate, rate_all
from tests.fixtures.serving import serving
from tests.fixtures.world import World

pytestmark = pytest.mark.slow

__all__ = ["old_client_python"]

WAITED_FOR = re.compile(r"/models/(?P<id>acme-\w+formatter_v\d+)")
FORMATTER = {
    "memory_template": "{memory}\n",
    "prompt_template": "{prompt}\n",
    "bot_template": "{bot_name}: {message}\n",
    "user_template": "{user_name}: {message}\n",
    "response_template": "{bot_name}:",
}


class OldWorld(World):
    """A world whose developer, ada, comes with the old client."""

    ada_key = ""

    def old(self, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app),
            base_url="http://guanaco",
            headers=headers if headers is not None else {"Authorization": f"Bearer {self.ada_key}"},
        )

    async def publish_every_kind(self, developer: Account) -> list[str]:
        """One of each kind of prompt, a reward model and what it judges, and a LoRA adapter."""
        turn = PromptPart(name="turn", content="{{ name }}: {{ message }}\n", each="turn")
        file = PromptFile(parts=(turn, PromptPart(name="end", content="{{ bot_name }}:")))
        columns: dict[str, dict[str, Any]] = {
            "acme-template_v1": {"formatter": ChatTemplatePrompt()},
            "acme-file_v1": {"formatter": file},
            "acme-judge_v1": {"kind": SubmissionKind.REWARD},
            "acme-judged_v1": {"params": GenerationParams(best_of=2), "reward": "acme-judge_v1"},
            "acme-lora_v1": {"base_repo": "acme/base"},
        }
        return [await self.publish(developer, name, **given) for name, given in columns.items()]

    def cancelling(self, developer: Account) -> ASGIApp:
        """The app; it cancels each submission of a formatter's name when its logs have been read once."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await self.app(scope, receive, send)
            if scope["type"] == "http" and (read := WAITED_FOR.fullmatch(scope["path"])):
                found = await self.submissions.require_visible(developer, read["id"])
                if found.status.is_in_progress:
                    await self.submissions.cancel(developer, found.id)

        return app

    async def rate(self, user: str, thumbs_up: bool, *messages: str) -> None:
        backend = await self.http(Role.BACKEND)
        conversation = await self.open(backend, user)
        for message in messages:
            self.clock.advance(2 + len(message) / 5)
            await backend.post(f"/conversations/{conversation}/messages", json={"content": message})
        body = {"thumbs_up": thumbs_up, "text": f"said {user}"}
        self.clock.advance(1)
        answer = await backend.post(f"/conversations/{conversation}/feedback", json=body)
        assert answer.status_code == 201, answer.text


@pytest.fixture
async def world(database: Database) -> OldWorld:
    replies = [Script(("I am reply number", f" {n}" + "!" * n)) for n in range(10)]
    world = OldWorld(database, *replies, Script())
    world.ada_key = await world.key(Role.DEVELOPER, "ada")
    await world.publish(await world.accounts.authenticate(world.ada_key))
    return world


async def test_prompt_unknown_to_the_old_client_is_left_out(world: OldWorld) -> None:
    ada = await world.accounts.authenticate(world.ada_key)
    await world.publish(ada, "acme-chat_v1", formatter=ChatTemplatePrompt())
    async with world.old() as old:
        listed = (await old.get("/models/")).json()
        info = (await old.get("/models/acme-chat_v1")).json()
    assert listed["acme-tiny_v1"]["formatter"]["memory_template"]
    assert listed["acme-chat_v1"]["formatter"] is info["formatter"] is None


async def test_the_real_old_client_submits_chats_and_reads(
    world: OldWorld, old_client_python: Path, tmp_path: Path
) -> None:
    await world.rate("u_1", True, "Hello there", "And now?")
    await world.rate("u_1", False, "Hello again")
    await world.rate("u-2", False, "Good evening", "What is that?", "Really?", "I see, thank you")
    await world.rate("u-3", True, "Tell me about the lighthouse", "Oh", "And the sea?")
    ada = await world.accounts.authenticate(world.ada_key)
    kinds = await world.publish_every_kind(ada)
    async with serving(world.cancelling(ada)) as url:
        seen = await session(old_client_python, tmp_path, url, world.ada_key, "acme-tiny_v1")

    assert seen["logged_in"][:-1] == sorted(["acme-tiny_v1", *kinds])
    assert "chai-guanaco login" in seen["logged_in"][-1]
    assert seen["submitted"] == "acme-old_v1"
    waited = {f"acme-{name.lower()}_v1" for name in seen["waited"]}
    assert set(seen["mine"]) == {"acme-old_v1", "acme-tiny_v1", *kinds, *waited}
    for name, shown in seen["waited"].items():
        assert f"Model Submission ID: acme-{name.lower()}_v1" in shown
        assert "Model deployment failed" in shown, "it ends as soon as the submission has ended"
        assert f"INFO:Submitted acme/{name}." in shown
    for name in kinds:
        one = seen["every"][name]
        assert one["status"] == "deployed"
        assert (one["formatter"] is None) is (name in ("acme-template_v1", "acme-file_v1"))
        assert one["said"], name
    assert seen["every"]["acme-judged_v1"]["reward_repo"] == "acme/tiny"
    assert "reward model" in seen["every"]["acme-judge_v1"]["said"]
    assert "Where am I?" in seen["talked"]
    assert "Vampire Queen: Hello from memory." in seen["talked"]
    assert "vampire_queen" in seen["bots"]
    assert "### Conversation ###" in seen["sampled"]
    assert seen["own_metrics"] == seen["metrics"]
    assert [board.count("Leaderboard") for board in seen["boards"]] == [1, 1]
    assert "tiny" in seen["boards"][0]
    assert "memory_template must contain {memory}" in seen["refused"][0]
    assert seen["refused"][1] == "The API key is missing, wrong or revoked."
    assert (seen["info"]["status"], seen["info"]["developer_uid"]) == ("deployed", "ada")
    assert seen["chat"]["model_output"] == "Hello from memory."
    assert seen["chat"]["model_input"].startswith("Vampire Queen's Persona: She is gentle.")
    assert seen["chat"]["model_input"].endswith("You: Where am I?\nVampire Queen:")

    assert [one["thumbs_up"] for one in seen["feedback"]] == [True, False, False, True]
    first, second, third, _fourth = seen["feedback"]
    assert first["user_id"] == second["user_id"] != third["user_id"]
    assert len({one["bot_id"] for one in seen["feedback"]}) == 1
    assert first["conversation"].startswith("User: Hello there\nLuna: I am reply")
    assert seen["metrics"]["thumbs_up_ratio"] == pytest.approx(2 / 3)
    assert seen["metrics"]["total_feedback_count"] == 3  # one a user
    assert seen["metrics"]["mcl"] == pytest.approx((4 + 8 + 6) / 3)
    assert seen["metrics"]["repetition"] == pytest.approx(
        4 / 6
    )  # of their words, consecutive replies share 4
    assert seen["unknown"] == {"feedback": {}, "thumbs_up": 0, "thumbs_down": 0}
    rows = {row["submission_id"]: row for row in seen["leaderboard"]}
    assert set(rows) >= {"acme-tiny_v1", "acme-lora_v1"}
    assert rows["acme-tiny_v1"]["thumbs_up_ratio"] == pytest.approx(2 / 3)
    assert (seen["deactivated"], seen["torn_down"]) == ("inactive", "torndown")


async def test_defaults_are_the_old_servers(world: OldWorld) -> None:
    async with world.old() as http:
        made = await http.post("/models/submit", json={"model_repo": "acme/plain"})
        info = (await http.get(f"/models/{made.json()['submission_id']}")).json()
    params = info["generation_params"]
    assert (params["temperature"], params["top_p"], params["top_k"]) == (1.0, 1.0, 40)
    assert (params["stopping_words"], params["max_input_tokens"]) == (["\n"], 1024)
    assert params["best_of"] == 4
    assert (info["status"], info["model_name"], info["safety_score"]) == ("pending", "plain", None)
    assert [one["entry"] for one in info["logs"]] == ["Submitted acme/plain."]
    assert info["logs"][0]["timestamp"] == info["timestamp"] == "2026-01-01T00:00:01+00:00"


CANNOT_BE_SUBMITTED: list[tuple[dict[str, Any], str]] = [
    ({"model_repo": "no slash"}, "model_repo: It should look like org/name, as on the Hub"),
    ({"generation_params": {"temperature": 9}}, "generation_params.temperature"),
    ({"generation_params": {"magic": 1}}, "generation_params.magic"),
    ({"formatter": FORMATTER | {"prompt_template": "x"}}, "must contain {prompt}"),
    ({"formatter": FORMATTER | {"bot_template": "x"}}, "must contain {message}"),
    ({"formatter": FORMATTER | {"user_template": "{message.__class__}"}}, "user_template"),
    ({"reward_repo": "acme/reward"}, "no live reward model of acme/reward"),
]


async def test_what_cannot_be_submitted_is_refused_in_a_sentence(
    world: OldWorld, subtests: pytest.Subtests
) -> None:
    for change, sentence in CANNOT_BE_SUBMITTED:
        with subtests.test(sentence):
            async with world.old() as http:
                answer = await http.post("/models/submit", json={"model_repo": "acme/x"} | change)
            assert answer.status_code == 422
            assert sentence in answer.json()["detail"]


async def test_a_key_in_the_query_opens_nothing(world: OldWorld) -> None:
    account = await world.accounts.authenticate(world.ada_key)
    for verb in ("deactivate", "teardown", "redeploy", "evaluate"):
        async with world.old({}) as http:
            path = f"/models/acme-tiny_v1/{verb}"
            answer = await http.get(path, params={"developer_key": world.ada_key})
        assert (answer.status_code, answer.json()["error"]) == (401, "unauthenticated")
    assert (await world.submissions.require_visible(account, "acme-tiny_v1")).status == "deployed"


async def test_either_header_carries_the_key_on_every_call(world: OldWorld) -> None:
    for headers in ({"developer_key": world.ada_key}, {"Authorization": f"Bearer {world.ada_key}"}):
        async with world.old(headers) as http:
            for path in ("/models/", "/models/acme-tiny_v1", "/leaderboard", "/feedback/x"):
                assert (await http.get(path)).status_code == 200, (headers, path)
    async with world.old({}) as http:
        assert (await http.get("/leaderboard")).status_code == 401
        assert [one["id"] for one in (await http.get("/competitions")).json()] == ["open"]


async def test_gets_that_change_state_walk_through_the_lifecycle(world: OldWorld) -> None:
    walk = [
        ("deactivate", "inactive"),
        ("redeploy", "deployed"),
        ("evaluate", "deployed"),
        ("teardown", "torndown"),
        ("redeploy", "pending"),
        ("teardown", "failed"),
    ]
    async with world.old() as http:
        for verb, status in walk:
            answer = await http.get(f"/models/acme-tiny_v1/{verb}")
            assert (verb, answer.json()["status"]) == (verb, status)
            assert answer.headers["cache-control"] == "no-store"
        twice = await http.get("/models/acme-tiny_v1/deactivate")
    assert (twice.status_code, twice.json()["error"]) == (409, "illegal_transition")


async def test_another_developers_feedback_looks_like_none(world: OldWorld) -> None:
    await world.rate("u1", True, "Hello")
    other = await world.key(Role.DEVELOPER, "eve")
    async with world.old({"developer_key": other}) as http:
        answer = await http.get("/feedback/acme-tiny_v1")
        assert answer.json() == {"feedback": {}, "thumbs_up": 0, "thumbs_down": 0}
        assert (await http.get("/models/acme-tiny_v1")).status_code == 404
        assert (await http.get("/models/acme-tiny_v1/teardown")).status_code == 404


async def test_feedback_has_the_old_form(world: OldWorld) -> None:
    await world.rate("secret_user", True, "Hello")
    async with world.old() as http:
        answer = (await http.get("/feedback/acme-tiny_v1")).json()
    assert (answer["thumbs_up"], answer["thumbs_down"]) == (1, 0)
    [(feedback_id, one)] = answer["feedback"].items()
    conversation, _, second = feedback_id.rpartition("_")
    assert one["conversation_id"] == conversation
    assert second == "1767225605"
    empty, bot, bot_uuid, user, ms = conversation.split("_")
    assert (empty, bot, one["user_id"]) == ("", "bot", user)
    assert ms == "1767225604000"
    said, reply = one["messages"]
    assert said["sent_date"] == "2026-01-01 00:00:04.000"
    assert said["sender"] == {"name": "User", "uid": user}
    assert reply["sender"] == {"name": "Luna", "uid": f"_bot_{bot_uuid}"}
    assert reply["metadata"] == {"model_name": "tiny"}
    assert not any(message["deleted"] for message in one["messages"])
    assert "secret" not in str(answer).replace("said secret_user", "")  # the words are the user's


async def test_the_leaderboards_window_counts_the_thumbs_given_in_it(world: OldWorld) -> None:
    await world.rate("u1", True, "Hello")
    world.clock.advance(86_400)
    await world.rate("u2", False, "Hello")
    await world.count()
    thumbs = {}
    async with world.old() as http:
        for window in ("", "?end_date=2026-01-01", "?start_date=2026-01-02T00:00:00"):
            row = (await http.get(f"/leaderboard{window}")).json()["acme-tiny_v1"]
            thumbs[window] = (row["thumbs_up"], row["thumbs_down"])
        wrong = await http.get("/leaderboard?start_date=yesterday")
    assert list(thumbs.values()) == [(1, 1), (1, 0), (0, 1)]
    assert (wrong.status_code, wrong.json()["detail"][:10]) == (422, "start_date")
    assert row["timestamp"] == "2026-01-01T00:00:00+00:00"
    assert (row["is_custom_reward"], row["reward_repo"]) == (False, None)


async def test_a_window_over_everything_counts_the_votes_of_the_board(world: OldWorld) -> None:
    """Neither what rules leave out nor another competition's."""
    backend = await world.account(Role.BACKEND, "app")
    other = await world.account(Role.BACKEND, "other")
    starts_at = world.clock.now().isoformat()
    admin = await world.http(Role.ADMIN)
    await admin.put("/competitions/cup", json={"name": "Cup", "starts_at": starts_at})
    await world.publish(await world.account(Role.DEVELOPER, "rival"), "rival_v1")
    await rate(world, backend, "rival_v1", "19", True)
    await rate_all(world, backend, [("acme-tiny_v1", "fan", True)] * DEVOTED_RATINGS)
    await rate(world, backend, "acme-tiny_v1", "17", False)
    await rate(world, backend, "acme-tiny_v1", "17", True)
    await rate(world, other, "acme-tiny_v1", "17", False)
    await rate(world, other, "acme-tiny_v1", "18", True, competition="cup")
    await world.count()
    thumbs = []
    async with world.old() as http:
        for window in ("", "?start_date=2020-01-01", "?end_date=2030-01-01"):
            row = (await http.get(f"/leaderboard{window}")).json()["acme-tiny_v1"]
            thumbs.append((row["thumbs_up"], row["thumbs_down"]))
    assert thumbs == [(1, 1)] * 3


async def test_a_model_that_cannot_answer_is_a_sentence(world: OldWorld) -> None:
    account = await world.accounts.authenticate(world.ada_key)
    await world.publish(account, "acme-tiny_v2", status=Status.FAILED)
    async with world.old() as http:
        body = {"bot_name": "Luna", "chat_history": [{"sender": "user", "message": "Hi"}]}
        answer = await http.post("/models/acme-tiny_v2/chat", json=body)
    assert answer.status_code == 503
    assert answer.json()["detail"]
