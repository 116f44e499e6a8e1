"""Best of several by a reward model: who may name which, what is chosen, and what happens when it does not help."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from guanaco.accounts import Role
from guanaco.prompts import PromptFile, PromptFormatter, PromptPart
from guanaco.submissions import GenerationParams, Status, SubmissionKind
from guanaco_server.chat.gateway.best_of import FAILURES, Choice, ReplyContext
from guanaco_server.chat.tables import MessageRow
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.deployments.model_servers.model_server import (
    Candidate,
    Candidates,
    ModelServerFault,
    NotANumber,
)
from tests.fixtures.world import BOT, World

REWARD = "acme-judge_v1"
CHAT = "acme-tiny_v1"
SHORT, LONG = Script(("Yes.",), logprob=-1.0), Script(("A longer answer.",), logprob=-2.0)
BLANK = Script((" \n",), logprob=-0.1)


class Judged(World):
    """A world with a reward model, which likes long texts, and a chat model that names it."""

    async def set_up(self, *scripts: Script, **columns: Any) -> httpx.AsyncClient:
        """A backend's client."""
        self.ada = await self.account(Role.DEVELOPER, "ada")
        await self.publish(self.ada, REWARD, kind=SubmissionKind.REWARD)
        params = columns.pop("params", GenerationParams(best_of=len(scripts) or 2))
        self.model_server.scripts = list(scripts or (SHORT, LONG))
        await self.publish(self.ada, CHAT, params=params, **({"reward": REWARD} | columns))
        return await self.http(Role.BACKEND, "app")

    async def reply(self, http: httpx.AsyncClient, content: str = "Hi") -> dict[str, Any]:
        conversation = await self.open(http)
        answer = await http.post(
            f"/conversations/{conversation}/messages", json={"content": content}
        )
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()
        return reply

    def chosen_by(self, what: str) -> float:
        name = "guanaco_best_of_choices_total"
        return self.metrics.registry.get_sample_value(name, {"by": what}) or 0


class Hasty(Judged):
    changes = {"reward_timeout_s": 0.2}


async def submit(http: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await http.post("/submissions", json={"repo": "acme/chat", **body})


@pytest.mark.both_databases
async def test_choice_and_score_of_the_reward_model_are_kept(
    database: Database,
) -> None:
    world = Judged(database)
    http = await world.set_up(SHORT, LONG, SHORT)
    reply = await world.reply(http)
    assert reply["content"] == "A longer answer."
    assert reply["usage"] == {"prompt_tokens": 7, "completion_tokens": 3}, "of all candidates"
    ((endpoint, texts),) = world.model_server.classified
    assert endpoint == f"memory://{REWARD}"
    (asked,) = {one.cache_salt for one in world.model_server.generations}
    assert world.model_server.classified_salts == [asked], (
        "of the developer of the chat model, and the app"
    )
    assert asked
    (prompt,) = {one.prompt for one in world.model_server.generations}
    assert texts == (f"{prompt}Yes.", f"{prompt}A longer answer.", f"{prompt}Yes.")
    async with database.read() as session:
        row = await session.scalar(select(MessageRow).where(MessageRow.id == reply["message_id"]))
    assert row is not None
    assert row.reward_score == reply["reward_score"] == len(texts[1])
    assert world.chosen_by("reward") == 1


async def test_of_several_labels_the_last_ones_log_odds_choose(database: Database) -> None:
    world = Judged(database)
    http = await world.set_up(LONG, SHORT)
    world.model_server.rewards = lambda text: (9.0, 9.0) if "longer" in text else (1.0, 2.0)
    reply = await world.reply(http)
    assert (reply["content"], reply["reward_score"]) == ("Yes.", 1.0)


async def test_a_candidate_without_text_is_neither_scored_nor_chosen(database: Database) -> None:
    world = Judged(database)
    http = await world.set_up(BLANK, SHORT, BLANK)
    world.model_server.rewards = lambda text: (-5.0,)
    assert (await world.reply(http))["content"] == "Yes."
    assert [len(texts) for _, texts in world.model_server.classified] == [1]


@pytest.mark.parametrize("params", [{}, {"best_of": 3, "temperature": 0}])
async def test_one_candidate_or_greedy_ones_are_not_scored(
    database: Database, params: dict[str, Any]
) -> None:
    world = Judged(database)
    http = await world.set_up(SHORT, params=GenerationParams(**params))
    assert (await world.reply(http))["reward_score"] is None
    assert world.model_server.classified == []


def refuse(fault: ModelServerFault) -> Any:
    def rewards(text: str) -> tuple[float, ...]:
        raise fault

    return rewards


@pytest.mark.parametrize("why", ["timeout", "fault", "not_a_number", "not_running"])
async def test_a_reward_model_that_does_not_help_is_not_felt(
    database: Database, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = (Hasty if why == "timeout" else Judged)(database)
    http = await world.set_up(LONG, SHORT)
    match why:
        case "timeout":
            world.model_server.reward_delay_s = 60
        case "fault":
            world.model_server.rewards = refuse(ModelServerFault("It is broken."))
        case "not_a_number":
            world.model_server.rewards = refuse(NotANumber("It computed NaN."))
        case "not_running":
            world.deployments.note_replicas(REWARD, ())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            world.model_server.scripts = [LONG, SHORT]
            reply = await world.reply(http)
            assert (reply["content"], reply["reward_score"]) == ("Yes.", None), "by log-probability"
    assert world.chosen_by(why) == 2
    warnings = [
        record for record in caplog.records if "picked by log-probability" in record.message
    ]
    assert len(warnings) == 1, "once a minute"


async def test_repeatedly_failing_reward_model_is_left_alone(
    database: Database,
) -> None:
    world = Judged(database)
    http = await world.set_up()
    world.model_server.unhealthy.add(f"memory://{REWARD}")
    for _ in range(FAILURES + 2):
        await world.reply(http)
    assert len(world.model_server.classified) == FAILURES
    assert world.chosen_by("resting") == 2


async def test_candidates_that_come_late_are_not_the_reward_models_fault(
    database: Database,
) -> None:
    world = Judged(database)
    await world.set_up()
    live = await world.routing.target(CHAT)
    found = Candidates((Candidate("a", "stop", -2.0), Candidate("b", "stop", -1.0)), 1, 2)
    for _ in range(FAILURES):
        choice = await world.best_of.choose(
            live.serving, ReplyContext(BOT, "You", (), "", "salt"), found, 0.0
        )
        assert choice == Choice(1)
    assert world.chosen_by("timeout") == FAILURES
    assert world.deployments.take_suspects() == set()
    choice = await world.best_of.choose(
        live.serving, ReplyContext(BOT, "You", (), "", "salt"), found, 30.0
    )
    assert choice == Choice(0, 1.0), "it is asked again at once"


async def test_a_second_replica_scores_where_the_nearest_fails(database: Database) -> None:
    world = Judged(database)
    http = await world.set_up()
    world.deployments.note_replicas(REWARD, ("memory://down", f"memory://{REWARD}"))
    world.model_server.unhealthy.add("memory://down")
    assert (await world.reply(http))["content"] == "A longer answer."


class WithDefault(Judged):
    changes = {"default_reward_submission": REWARD}


@pytest.mark.parametrize(("reward", "content"), [(None, "A longer answer."), ("none", "Yes.")])
async def test_the_platforms_reward_model_chooses_where_none_is_named(
    database: Database, reward: str | None, content: str
) -> None:
    world = WithDefault(database)
    http = await world.set_up(SHORT, LONG, reward=reward)
    assert (await world.reply(http))["content"] == content


async def test_without_any_reward_model_log_probability_chooses(database: Database) -> None:
    world = Judged(database)
    http = await world.set_up(LONG, SHORT, reward=None)
    assert (await world.reply(http))["content"] == "Yes."
    assert world.chosen_by("logprob") == 1


@pytest.mark.parametrize("whose", ["chat", "reward"])
async def test_reward_model_sees_the_conversation_in_its_own_form(
    database: Database, whose: str
) -> None:
    form = PromptFormatter(
        memory_template="<{memory}> ",
        prompt_template="{prompt}",
        user_template="[{user_name}] {message} ",
        bot_template="[{bot_name}] {message} ",
        response_template="[{bot_name}]",
    )
    world = Judged(database)
    columns = {"reward_formatter": form} if whose == "chat" else {}
    http = await world.set_up(SHORT, LONG, **columns)
    if whose == "reward":
        await world.publish(
            world.ada, "acme-judge_v2", kind=SubmissionKind.REWARD, reward_formatter=form
        )
        await world.publish(
            world.ada, "acme-tiny_v2", params=GenerationParams(best_of=2), reward="acme-judge_v2"
        )
    await world.reply(http)
    ((_, texts),) = world.model_server.classified
    assert texts[0] == "<Luna keeps a lighthouse.> [Luna] Ahoy! [You] Hi [Luna]Yes."


FAILING = PromptFile(
    parts=(
        PromptPart(name="turns", content="{{ message }}", each="turn"),
        PromptPart(name="end", content="{{ 1 // (memory | length - 24) }}"),
    )
)


async def test_a_form_that_fails_is_not_felt(database: Database) -> None:
    world = Judged(database)
    http = await world.set_up(LONG, SHORT, reward_formatter=FAILING)
    assert (await world.reply(http))["content"] == "Yes.", "by log-probability"
    assert world.chosen_by("fault") == 1


async def test_too_long_a_conversation_is_left_to_the_reward_server(
    database: Database,
) -> None:
    world = Judged(database)
    http = await world.set_up(reward_formatter=PromptFormatter())
    await world.publish(
        world.ada,
        "acme-judge_v3",
        kind=SubmissionKind.REWARD,
        params=GenerationParams(max_input_tokens=16),
    )
    await world.publish(
        world.ada,
        "acme-tiny_v3",
        params=GenerationParams(best_of=2),
        reward="acme-judge_v3",
        reward_formatter=PromptFormatter(),
    )
    content = "word " * 40
    assert (await world.reply(http, content.strip()))["content"] == "A longer answer."
    ((_, texts),) = world.model_server.classified
    assert content.strip() in texts[0]


CANNOT_BE_JUDGED: list[tuple[dict[str, Any], str]] = [
    ({"reward": "nobody_v1"}, "nobody_v1 cannot be the reward model: there is no such reward model of yours."),
    ({"reward": "bobs_v1"}, "there is no such reward model of yours"),
    ({"reward": CHAT}, "it is a chat model"),
    ({"reward": "acme-judge_v2"}, "it is inactive"),
    ({"reward": REWARD, "params": {}}, "params.best_of must be 2 or more"),
    ({"reward_formatter": {}, "params": {}}, "params.best_of must be 2 or more"),
    ({"kind": "reward", "reward": REWARD}, "leave out reward"),
    ({"kind": "reward", "quantization": "fp8"}, "served unquantized"),
    ({"kind": "reward", "formatter": {"memory_template": "{memory}"}}, "takes reward_formatter"),
    ({"kind": "judge"}, "kind"),
]  # fmt: skip


async def test_what_cannot_be_judged_so_is_refused_with_a_sentence(
    database: Database, subtests: pytest.Subtests
) -> None:
    world = Judged(database)
    await world.set_up()
    await world.publish(world.ada, "acme-judge_v2", Status.INACTIVE, kind=SubmissionKind.REWARD)
    bob = await world.account(Role.DEVELOPER, "bob")
    await world.publish(bob, "bobs_v1", kind=SubmissionKind.REWARD)
    http = await world.http(Role.DEVELOPER, "ada")
    for body, says in CANNOT_BE_JUDGED:
        with subtests.test(says):
            answer = await submit(http, **({"params": {"best_of": 2}} | body))
            assert answer.status_code == 422, answer.text
            assert says in answer.json()["detail"]
            assert "\n" not in answer.json()["detail"]


async def test_ones_own_and_the_platforms_reward_models_may_be_named(database: Database) -> None:
    world = WithDefault(database)
    await world.set_up()
    for name in ("ada", "bob"):
        http = await world.http(Role.DEVELOPER, name)
        answer = await submit(http, reward=REWARD, params={"best_of": 4})
        assert answer.status_code == 202, answer.text
        assert (answer.json()["kind"], answer.json()["reward"]) == ("chat", REWARD)


async def test_a_reward_model_is_submitted_like_any_other(database: Database) -> None:
    world = Judged(database)
    http = await world.http(Role.DEVELOPER, "ada")
    form = {"memory_template": "{memory}."}
    answer = await submit(http, kind="reward", reward_formatter=form)
    assert answer.status_code == 202, answer.text
    found = (await http.get(f"/submissions/{answer.json()['id']}")).json()
    assert (found["kind"], found["reward_formatter"]["memory_template"]) == ("reward", "{memory}.")


@pytest.mark.both_databases
async def test_a_reward_model_in_use_is_not_torn_down(database: Database) -> None:
    world = Judged(database)
    await world.set_up()
    await world.publish(world.ada, "waiting_v1", Status.QUEUED, reward=REWARD)
    http = await world.http(Role.DEVELOPER, "ada")
    answer = await http.post(f"/submissions/{REWARD}/teardown")
    assert (answer.status_code, answer.json()["error"]) == (409, "reward_in_use")
    assert answer.json()["detail"] == (
        f"{REWARD} picks the replies of 2 live submissions, so it cannot be torn down."
    )
    assert (await http.get(f"/submissions/{REWARD}")).json()["status"] == "deployed"
    assert (await http.post("/submissions/waiting_v1/cancel")).status_code == 200
    assert (await http.post(f"/submissions/{CHAT}/teardown")).status_code == 200
    assert (await http.post(f"/submissions/{REWARD}/teardown")).status_code == 200


@pytest.mark.slow
async def test_reward_model_is_never_assigned_ranked_or_talked_to(
    database: Database,
) -> None:
    world = Judged(database)
    await world.set_up()
    app, ada = await world.http(Role.BACKEND, "app"), await world.http(Role.DEVELOPER, "ada")
    board = (await app.get("/leaderboard")).json()["rows"]
    assert [row["submission_id"] for row in board] == [CHAT]
    await ada.post(f"/submissions/{CHAT}/deactivate")
    await world.routing.refresh()
    opened = {"user_id": "u", "bot": {"name": "Luna"}, "consent": True}
    assert (await app.post("/conversations", json=opened)).status_code == 503
    answer = await ada.post(f"/submissions/{REWARD}/preview", json={"bot": {"name": "Luna"}})
    assert answer.status_code == 422
    assert "is a reward model, which writes no replies" in answer.json()["detail"]


async def test_a_preview_shows_the_score(database: Database) -> None:
    world = Judged(database)
    await world.set_up()
    ada = await world.http(Role.DEVELOPER, "ada")
    answer = await ada.post(f"/submissions/{CHAT}/preview", json={"bot": {"name": "Luna"}})
    assert answer.json()["content"] == "A longer answer."
    assert answer.json()["reward_score"] > 0
