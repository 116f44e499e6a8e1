"""A/B experiments over HTTP."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from guanaco.accounts import Role
from guanaco.experiments import ExperimentRequest
from guanaco.submissions import Status
from guanaco_server.chat.tables import ConversationRow
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.experiments.tables import ExposureRow
from guanaco_server.experiments.variants import unit_of, variant_of
from guanaco_server.feedback.tables import FeedbackRow
from guanaco_server.leaderboard.tables import VoteFlagRow
from tests.fixtures.world import WORD_TOKENIZER, World, eventually

TERSE = {
    "memory_template": "{memory}\n",
    "prompt_template": "{prompt}\n",
    "bot_template": "B {message}\n",
    "user_template": "U {message}\n",
    "response_template": "B",
}
TWO_PROMPTS = {
    "name": "prompts",
    "variants": [{"name": "as-it-is"}, {"name": "terse", "formatter": TERSE}],
}


class Trying(World):
    async def begin(self) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
        """An admin and a backend, and two submissions, of which the newer gets every conversation."""
        developer = await self.account(Role.DEVELOPER, "ada")
        await self.publish(developer, "old_v1")
        await self.publish(developer, "new_v1")
        return await self.http(Role.ADMIN), await self.http(Role.BACKEND, "app")

    async def variant(self, conversation: str) -> str | None:
        async with self.database.read() as session:
            row = await session.get(ConversationRow, conversation)
        assert row is not None
        return row.variant


async def make(admin: httpx.AsyncClient, experiment: dict[str, Any], start: bool = True) -> None:
    answer = await admin.post("/experiments", json=experiment)
    assert (answer.status_code, answer.json().get("state")) == (201, "draft"), answer.text
    if start:
        started = await admin.post(f"/experiments/{experiment['name']}/start")
        assert (started.status_code, started.json()["state"]) == (200, "running"), started.text


async def users_of(
    world: Trying, experiment: dict[str, Any], variant: str, count: int
) -> list[str]:
    """Users of the app who are in that variant; which ones depends on the account, whose id is random."""
    account = await world.account(Role.BACKEND, "app")
    request = ExperimentRequest.model_validate(experiment)
    found = (
        user
        for user in map(str, range(1_000))
        if variant_of(request, unit_of(account.id, user)).name == variant
    )
    return list(islice(found, count))


async def user_of(world: Trying, experiment: dict[str, Any], variant: str) -> str:
    return (await users_of(world, experiment, variant, 1))[0]


async def say(http: httpx.AsyncClient, conversation: str, content: str = "Hi") -> None:
    answer = await http.post(f"/conversations/{conversation}/messages", json={"content": content})
    assert answer.status_code == 200, answer.text


async def rate(http: httpx.AsyncClient, conversation: str, thumbs_up: bool) -> None:
    path = f"/conversations/{conversation}/feedback"
    answer = await http.post(path, json={"thumbs_up": thumbs_up})
    assert answer.is_success, answer.text


async def change(http: httpx.AsyncClient, conversation: str, thumbs_up: bool) -> None:
    path = f"/conversations/{conversation}/feedback"
    answer = await http.put(path, json={"thumbs_up": thumbs_up})
    assert answer.is_success, answer.text


async def leave_out(database: Database, conversation: str) -> None:
    async with database.write() as session:
        rating = (
            await session.scalars(
                select(FeedbackRow).where(FeedbackRow.conversation_id == conversation)
            )
        ).one()
        session.add(
            VoteFlagRow(
                feedback_id=rating.id,
                rule="burst",
                submission_id=rating.submission_id,
                competition=rating.competition,
                at=rating.created_at,
                evidence="a test",
            )
        )


async def test_only_an_admin_sees_and_makes_experiments(database: Database) -> None:
    world = World(database)
    for role in (Role.BACKEND, Role.DEVELOPER):
        http = await world.http(role)
        assert (await http.get("/experiments")).status_code == 403
        assert (await http.post("/experiments", json=TWO_PROMPTS)).status_code == 403


async def test_feedback_names_the_variant_of_its_conversation(database: Database) -> None:
    world = Trying(database)
    admin, backend = await world.begin()
    expected: dict[str, str | None] = {await world.open(backend, "somebody"): None}
    await make(admin, TWO_PROMPTS)
    for variant in ("as-it-is", "terse"):
        conversation = await world.open(backend, await user_of(world, TWO_PROMPTS, variant))
        expected[conversation] = variant
    for conversation in expected:
        await say(backend, conversation)
        await rate(backend, conversation, thumbs_up=True)
    developer = await world.http(Role.DEVELOPER, "ada")
    page = await developer.get("/submissions/new_v1/feedback")
    found = {item["conversation_id"]: item["variant"] for item in page.json()["items"]}
    assert found == expected


async def test_a_variant_changes_the_prompt_and_the_parameters(database: Database) -> None:
    world = Trying(database)
    admin, backend = await world.begin()
    experiment = {
        "name": "cold",
        "variants": [
            {"name": "control"},
            {
                "name": "cold",
                "formatter": TERSE,
                "params": {"temperature": 0.1, "max_output_tokens": 4_096, "top_k": 7},
            },
        ],
    }
    await make(admin, experiment)
    for variant, ending, temperature, top_k in (
        ("control", "Luna:", 1.0, 40),
        ("cold", "U Hi\nB", 0.1, 7),
    ):
        user = await user_of(world, experiment, variant)
        conversation = await world.open(backend, user)
        assert await world.variant(conversation) == variant
        await say(backend, conversation)
        asked = world.model_server.generations[-1]
        assert asked.prompt.endswith(ending)
        assert (asked.params.temperature, asked.params.top_k) == (temperature, top_k)
        assert asked.params.max_output_tokens == 64, "no more than the server was sized for"


async def test_a_variant_may_be_another_model(database: Database) -> None:
    world = Trying(database)
    admin, backend = await world.begin()
    experiment = {
        "name": "models",
        "variants": [{"name": "rule"}, {"name": "old", "model": "old_v1"}],
    }
    await make(admin, experiment)
    for variant, submission in (("rule", "new_v1"), ("old", "old_v1"), ("old", "old_v1")):
        user = await user_of(world, experiment, variant)
        conversation = await world.open(backend, user)
        found = (await backend.get(f"/conversations/{conversation}")).json()
        assert found["submission_id"] == submission
    world.deployments.note_replicas("old_v1", ())
    for variant in ("rule", "old"):
        conversation = await world.open(backend, await user_of(world, experiment, variant))
        assert await world.variant(conversation) is None, "nobody takes part, in no variant"


@pytest.mark.parametrize("status", [Status.INACTIVE, Status.DEPLOYED])
async def test_what_would_take_nobody_is_not_started(database: Database, status: Status) -> None:
    world = Trying(database)
    admin, _ = await world.begin()
    developer = await world.account(Role.DEVELOPER, "ada")
    await world.publish(developer, "away_v1", status)
    if status is Status.DEPLOYED:
        world.deployments.note_replicas("away_v1", ())
    models = {"name": "models", "variants": [{"name": "a"}, {"name": "b", "model": "away_v1"}]}
    await make(admin, models, start=False)
    refused = await admin.post("/experiments/models/start")
    assert (refused.status_code, refused.json()["error"]) == (409, "experiment_conflict")
    assert refused.json()["detail"].startswith("away_v1 is not served now")
    assert (await admin.get("/experiments/models")).json()["state"] == "draft"


@pytest.mark.both_databases
async def test_user_keeps_their_variant_and_conversations_are_logged_once(
    database: Database,
) -> None:
    world = Trying(database)
    admin, backend = await world.begin()
    await make(admin, TWO_PROMPTS)
    opened = [await world.open(backend, "sam") for _ in range(3)]
    assert len({await world.variant(conversation) for conversation in opened}) == 1
    await say(backend, opened[0])
    async with database.read() as session:
        exposures = (await session.scalars(select(ExposureRow))).all()
    assert {one.conversation_id for one in exposures} == set(opened)
    assert {one.variant for one in exposures} == {await world.variant(opened[0])}
    assert "sam" not in exposures[0].unit


async def test_what_is_stopped_takes_nobody_new_and_keeps_its_conversations(
    database: Database,
) -> None:
    world = Trying(database)
    admin, backend = await world.begin()
    await make(admin, TWO_PROMPTS)
    user = await user_of(world, TWO_PROMPTS, "terse")
    before = await world.open(backend, user)
    stopped = await admin.post("/experiments/prompts/stop")
    assert stopped.json()["state"] == "stopped"
    after = await world.open(backend, user)
    assert (await world.variant(before), await world.variant(after)) == ("terse", None)
    for conversation, ending in ((before, "\nB"), (after, "Luna:")):
        await say(backend, conversation)
        assert world.model_server.generations[-1].prompt.endswith(ending)
    await admin.post("/experiments/prompts/start")
    assert await world.variant(await world.open(backend, user)) == "terse"


async def test_another_process_serves_the_conversation_in_its_variant(database: Database) -> None:
    world = Trying(database)
    admin, backend = await world.begin()
    other = Trying(database)
    other.deployments.note_replicas("new_v1", ("memory://new_v1",))
    await other.store_artifact("a" * 64, {"tokenizer.json": WORD_TOKENIZER})
    await other.running.refresh()
    await make(admin, TWO_PROMPTS)
    conversation = await world.open(backend, await user_of(world, TWO_PROMPTS, "terse"))
    await say(await other.http(Role.BACKEND, "app"), conversation)
    assert other.model_server.generations[-1].prompt.endswith("\nB")
    assert await other.running.enter("a", "b", "open") is not None, "it has looked"


@pytest.mark.slow
async def test_every_process_learns_by_itself_that_one_has_started(database: Database) -> None:
    world = Trying(database)
    admin, _ = await world.begin()
    other = Trying(database)
    await other.running.start()
    await make(admin, TWO_PROMPTS)

    async def takes_part() -> bool:
        return await other.running.enter("app", "sam", "open") is not None

    await eventually(takes_part)
    await other.running.stop()


async def test_experiments_that_share_users_are_refused_with_a_sentence(database: Database) -> None:
    world = Trying(database)
    admin, _ = await world.begin()
    await make(admin, TWO_PROMPTS | {"users_to": 0.5})
    await make(admin, TWO_PROMPTS | {"name": "more", "users_from": 0.4}, start=False)
    refused = await admin.post("/experiments/more/start")
    assert (refused.status_code, refused.json()["error"]) == (409, "experiment_conflict")
    assert "prompts runs with the users from 0 to 0.5" in refused.json()["detail"]
    moved = TWO_PROMPTS | {"name": "more", "users_from": 0.5}
    assert (await admin.put("/experiments/more", json=moved)).status_code == 200
    assert (await admin.post("/experiments/more/start")).status_code == 200
    account = (await world.account(Role.BACKEND, "app")).id
    entered = [await world.running.enter(account, str(user), "open") for user in range(50)]
    assert {one.experiment for one in entered if one} == {"prompts", "more"}
    assert None not in entered


@pytest.mark.both_databases
async def test_of_two_that_start_at_once_one_is_refused(database: Database) -> None:
    world = Trying(database)
    admin, _ = await world.begin()
    for name in ("one", "two"):
        await make(admin, TWO_PROMPTS | {"name": name}, start=False)
    answers = await asyncio.gather(
        *(admin.post(f"/experiments/{name}/start") for name in ("one", "two"))
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409]


async def test_what_has_run_stays_as_it_is(database: Database) -> None:
    world = Trying(database)
    admin, _ = await world.begin()
    await make(admin, TWO_PROMPTS)
    for answer in (
        await admin.put("/experiments/prompts", json=TWO_PROMPTS),
        await admin.post("/experiments", json=TWO_PROMPTS),
    ):
        assert (answer.status_code, answer.json()["error"]) == (409, "experiment_conflict")
    assert (await admin.post("/experiments/none/start")).json()["error"] == "experiment_not_found"
    assert [one["name"] for one in (await admin.get("/experiments")).json()] == ["prompts"]


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"variants": [{"name": "one"}]}, "variants"),
    ({"variants": [{"name": "one"}, {"name": "one"}]}, "a name of its own"),
    ({"users_from": 0.5, "users_to": 0.5}, "users_to must be greater"),
    ({"variants": [{"name": "a"}, {"name": "b", "params": {"heat": 1}}]}, "heat"),
    ({"variants": [{"name": "a"}, {"name": "b", "model": "none_v1"}]}, "No submission none_v1"),
    ({"competition": "none"}, "No competition none"),
]


async def test_a_malformed_experiment_is_refused_with_a_sentence(
    database: Database, subtests: pytest.Subtests
) -> None:
    admin = await World(database).http(Role.ADMIN)
    for change, says in MALFORMED:
        with subtests.test(says):
            answer = await admin.post("/experiments", json=TWO_PROMPTS | change)
            assert answer.status_code in (404, 422)
            assert says in answer.json()["detail"]


@pytest.mark.both_databases
async def test_results_count_each_users_first_rating_with_intervals(database: Database) -> None:
    world = Trying(database, *[Script(("So", " it", " is."))] * 40)
    admin, backend = await world.begin()
    await make(admin, TWO_PROMPTS)
    empty = (await admin.get("/experiments/prompts/results")).json()
    assert [one["users"] for one in empty["variants"]] == [0, 0]
    assert empty["variants"][0]["thumbs_up_ratio"] is None
    votes: dict[str, list[bool]] = {"as-it-is": [], "terse": []}
    for variant, turns in (("as-it-is", 2), ("terse", 1)):
        for number, user in enumerate(await users_of(world, TWO_PROMPTS, variant, 8)):
            conversation = await world.open(backend, user)
            for _ in range(turns):
                await say(backend, conversation)
            likes = variant == "terse" or number % 3 == 0
            votes[variant].append(likes)
            await rate(backend, conversation, likes)
            world.clock.advance(1)
    again = await world.open(backend, await user_of(world, TWO_PROMPTS, "terse"))
    for _ in range(2):
        await say(backend, again)
    await rate(backend, again, False)
    await change(backend, again, True)
    changed = (await users_of(world, TWO_PROMPTS, "as-it-is", 9))[8]
    first = await world.open(backend, changed)
    for _ in range(2):
        await say(backend, first)
    await rate(backend, first, False)
    await change(backend, first, True)
    votes["as-it-is"].append(False)
    flagged = await world.open(backend, (await users_of(world, TWO_PROMPTS, "as-it-is", 10))[9])
    for _ in range(2):
        await say(backend, flagged)
    await rate(backend, flagged, True)
    await leave_out(database, flagged)
    assert (await backend.delete(f"/conversations/{first}/feedback")).is_success

    found = (await admin.get("/experiments/prompts/results")).json()["variants"]
    assert [one["variant"] for one in found] == ["as-it-is", "terse"]
    assert sum(one["users"] for one in found) == 18
    assert sum(one["conversations"] for one in found) == 19
    async with database.read() as session:
        assert await session.scalar(select(func.count()).select_from(ExposureRow)) == 19
    for one in found:
        given = votes[one["variant"]]
        assert (one["thumbs_up"], one["thumbs_down"]) == (sum(given), given.count(False))
        ratio = one["thumbs_up_ratio"]
        assert ratio["low"] < ratio["value"] == sum(given) / len(given) < ratio["high"] + 1e-9
        assert ratio["n"] == len(given)
        length = one["conversation_length"]
        assert length["low"] <= length["value"] <= length["high"]
        assert one["reply_ms"]["value"] > 0
    control, terse = found
    assert control["conversation_length"]["value"] == 4
    assert terse["conversation_length"]["value"] == (7 * 2 + 3) / 8, "one user had two"
    assert control["thumbs_up_difference"] is None
    difference = terse["thumbs_up_difference"]
    assert difference["value"] == pytest.approx(
        terse["thumbs_up_ratio"]["value"] - control["thumbs_up_ratio"]["value"]
    )
    assert difference["low"] < difference["value"] < difference["high"]
    always = terse["thumbs_up_difference_always"]
    assert always["value"] == difference["value"]
    assert always["low"] < difference["low"] < difference["high"] < always["high"]
    assert control["thumbs_up_difference_always"] is None


@pytest.mark.both_databases
async def test_who_is_deleted_leaves_the_results(database: Database) -> None:
    world = Trying(database)
    admin, backend = await world.begin()
    await make(admin, TWO_PROMPTS)
    conversation = await world.open(backend)
    async with database.write() as session:
        await session.delete(await session.get(ConversationRow, conversation))
    found = (await admin.get("/experiments/prompts/results")).json()["variants"]
    assert [one["users"] for one in found] == [0, 0]


@pytest.mark.parametrize(
    ("variants", "detail"),
    [
        (
            [{"name": "a", "share": -1}, {"name": "b"}],
            "variants.0.share: Input should be greater than 0.",
        ),
        (
            [{"name": "a", "share": -1}],
            "variants.0.share: Input should be greater than 0; variants: It should have at least 2 items, and has 1.",
        ),
    ],
)
async def test_only_the_true_faults_of_an_experiment_are_named(
    database: Database, variants: list[dict[str, Any]], detail: str
) -> None:
    admin = await World(database).http(Role.ADMIN)
    refused = await admin.post("/experiments", json={"name": "x", "variants": variants})
    assert (refused.status_code, refused.json()["detail"]) == (422, detail)
