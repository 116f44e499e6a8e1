"""Tests which submission a new conversation gets, over HTTP and on both databases."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from guanaco.accounts import Role
from guanaco.chat import Bot
from guanaco.submissions import GenerationParams
from guanaco_server.chat.queries import by_id
from guanaco_server.chat.tables import ConversationRow
from guanaco_server.database.database import Database
from guanaco_server.deployments.deployment import Deployment
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.world import BOT, World, eventually

NAMES = ("old_v1", "mid_v1", "new_v1")


class Assigning(World):
    async def publish_all(self, *names: str) -> None:
        developer = await self.account(Role.DEVELOPER, "ada")
        for name in names:
            await self.publish(developer, name)

    async def limit(self, submission_id: str, capacity: int, replicas: int = 1) -> None:
        """Set what its stress check showed a replica to hold."""
        await self.deployments.wish(Deployment(submission_id, 1, "a" * 64, 1_088))
        await self.deployments.mark_ready(submission_id, f"memory://{submission_id}")
        await self.deployments.note(submission_id, capacity=capacity, applied_replicas=replicas)
        await self.routing.refresh()

    async def rule(self, competition: str = "open", **rules: Any) -> None:
        body = {
            "name": "A competition",
            "starts_at": (self.clock.now() - timedelta(days=1)).isoformat(),
            **rules,
        }
        admin = await self.http(Role.ADMIN)
        answer = await admin.put(f"/competitions/{competition}", json=body)
        assert answer.status_code == 200, answer.text

    async def begin(
        self, http: httpx.AsyncClient, user_id: str, competition: str = "open"
    ) -> tuple[str, str]:
        """A new conversation and its submission."""
        body = {
            "user_id": user_id,
            "bot": BOT.model_dump(),
            "consent": True,
            "competition": competition,
        }
        answer = await http.post("/conversations", json=body)
        assert answer.status_code == 201, answer.text
        self.clock.advance(1)
        return answer.json()["conversation_id"], answer.json()["submission_id"]


@pytest.fixture
async def world(database: Database) -> Assigning:
    world = Assigning(database)
    await world.publish_all(*NAMES)
    return world


async def test_without_a_submission_there_is_nothing_to_assign(database: Database) -> None:
    http = await World(database).http(Role.BACKEND)
    nobody = await http.get("/assignment")
    assert (nobody.status_code, nobody.json()["error"]) == (503, "no_model_available")


async def test_the_newest_has_its_ratings_first_then_the_next(world: Assigning) -> None:
    await world.rule(assignment={"kind": "newest", "newest_until": 2})
    http = await world.http(Role.BACKEND)
    given = []
    for number in range(7):
        conversation, submission = await world.begin(http, f"user-{number}")
        await world.greet(http, conversation)
        await http.post(f"/conversations/{conversation}/feedback", json={"thumbs_up": True})
        await world.count()
        given.append(submission)
    newest_first = ["new_v1", "new_v1", "mid_v1", "mid_v1", "old_v1", "old_v1", "new_v1"]
    assert given == newest_first


@pytest.mark.both_databases
async def test_user_gets_each_submission_once_then_the_oldest_again(world: Assigning) -> None:
    http = await world.http(Role.BACKEND)
    given = [(await world.begin(http, "sam"))[1] for _ in range(5)]
    assert given == ["new_v1", "mid_v1", "old_v1", "new_v1", "mid_v1"]
    assert (await world.begin(http, "kim"))[1] == "new_v1"
    other_app = await world.http(Role.BACKEND, "another-app")
    assert (await world.begin(other_app, "sam"))[1] == "new_v1", "another's user of the same name"


@pytest.mark.both_databases
async def test_the_bare_assignment_leaves_out_what_the_user_had(world: Assigning) -> None:
    http = await world.http(Role.BACKEND)
    await world.begin(http, "sam")
    asked = await http.get("/assignment", params={"user_id": "sam"})
    assert asked.json() == {"submission_id": "mid_v1"}
    assert (await http.get("/assignment")).json() == {"submission_id": "new_v1"}
    for params, code in (
        ({"competition": "none"}, "competition_not_found"),
        ({"competition": "No Slug"}, "invalid_input"),
        ({"user_id": "x" * 129}, "invalid_input"),
    ):
        assert (await http.get("/assignment", params=params)).json()["error"] == code


async def test_each_competition_has_its_own_rule_and_entries(world: Assigning) -> None:
    await world.rule(
        "pinned", assignment={"kind": "uniform", "weights": {"new_v1": 0, "mid_v1": 0}}
    )
    await world.rule("small", entry={"max_parameters": 1_000})
    await world.rule("one-each", entry={"per_developer": 1})
    async with world.database.write() as session:
        row = await session.get(SubmissionRow, "mid_v1")
        assert row is not None
        row.parameter_count, row.updated_at = 1_000, world.clock.now()
        late = row.created_at
    await world.rule("late", starts_at=late.isoformat(), entry={"submitted_within": True})
    await world.publish(await world.account(Role.DEVELOPER, "bob"), "bob_v1")
    http = await world.http(Role.BACKEND)
    for competition, entries in (
        ("pinned", {"old_v1", "bob_v1"}),
        ("small", {"mid_v1"}),
        ("one-each", {"new_v1", "bob_v1"}),
        ("late", {"mid_v1", "new_v1", "bob_v1"}),
    ):
        given = [await world.begin(http, "sam", competition) for _ in range(4)]
        assert {submission for _, submission in given} == entries


async def test_a_rule_holds_at_once_when_it_is_changed(world: Assigning) -> None:
    http = await world.http(Role.BACKEND)
    assert (await world.begin(http, "a"))[1] == "new_v1"
    await world.rule(assignment={"weights": {"new_v1": 0, "mid_v1": 0}})
    assert (await world.begin(http, "b"))[1] == "old_v1"


async def test_weights_are_held_to_limits(world: Assigning) -> None:
    admin = await world.http(Role.ADMIN)
    for weight in (-1, 1_001):
        body = {
            "name": "x",
            "starts_at": world.clock.now().isoformat(),
            "assignment": {"weights": {"new_v1": weight}},
        }
        answer = await admin.put("/competitions/x", json=body)
        assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")


async def test_weights_of_submissions_that_do_not_exist_are_refused(world: Assigning) -> None:
    admin = await world.http(Role.ADMIN)
    body = {
        "name": "x",
        "starts_at": world.clock.now().isoformat(),
        "assignment": {"weights": {"new_v1": 1, "nobody_v1": 2}},
    }
    answer = await admin.put("/competitions/x", json=body)
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_input")
    assert answer.json()["detail"] == "assignment.weights names no submission: nobody_v1."
    assert (await admin.get("/competitions/x")).status_code == 404


async def test_the_adaptive_rule_gives_new_ones_their_share(world: Assigning) -> None:
    await world.rule(assignment={"kind": "adaptive", "recency_floor": 1.0, "newest_until": 1})
    http = await world.http(Role.BACKEND)
    for user, submission in (("a", "new_v1"), ("b", "mid_v1")):
        while (begun := await world.begin(http, user))[1] != submission:
            pass
        await world.greet(http, begun[0])
        await http.post(f"/conversations/{begun[0]}/feedback", json={"thumbs_up": True})
    await world.count()
    given = Counter([(await world.begin(http, f"user-{n}"))[1] for n in range(8)])
    assert given == {"old_v1": 8}, "the only one without a rating"


async def test_opening_takes_no_capacity_and_is_never_refused_for_it(world: Assigning) -> None:
    for name in NAMES:
        await world.limit(name, 1)
    http = await world.http(Role.BACKEND)
    given = [(await world.begin(http, f"user-{number}"))[1] for number in range(40)]
    assert set(given) == {"new_v1"}, "all by the rule"


@pytest.mark.both_databases
async def test_full_submission_is_chosen_only_when_no_other_has_room(database: Database) -> None:
    go_on = asyncio.Event()
    world = Assigning(database, Script(go_on=go_on))
    await world.publish_all("old_v1", "new_v1")
    for name in ("old_v1", "new_v1"):
        await world.limit(name, 1)
    http = await world.http(Role.BACKEND)
    replies = []
    for number, busy in enumerate(("new_v1", "old_v1")):
        conversation, submission = await world.begin(http, f"user-{number}")
        assert submission == busy
        world.clock.advance(60)
        sent = http.post(f"/conversations/{conversation}/messages", json={"content": "Hi"})
        replies.append(asyncio.create_task(sent))

        async def is_writing(name: str = busy) -> bool:
            return name in await world.activity.open_streams()

        await eventually(is_writing)
        await world.routing.refresh()
    assert (await http.get("/assignment")).json() == {"submission_id": "new_v1"}
    go_on.set()
    assert [(await reply).status_code for reply in replies] == [200, 200]


async def test_submission_without_server_is_skipped_before_the_next_look(world: Assigning) -> None:
    world.deployments.note_replicas("new_v1", ())
    http = await world.http(Role.BACKEND)
    assert (await http.get("/assignment")).json() == {"submission_id": "mid_v1"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["newest", "uniform", "adaptive"])
@pytest.mark.both_databases
async def test_with_a_seed_every_assignment_can_be_made_again(world: Assigning, kind: str) -> None:
    await world.rule(assignment={"kind": kind, "seed": 7, "newest_until": 3})
    await world.limit("mid_v1", 4)
    http = await world.http(Role.BACKEND)
    given: dict[str, str] = {}
    for number in range(8):
        conversation, submission = await world.begin(http, f"user-{number % 5}")
        given[conversation] = submission
        await world.greet(http, conversation)
        await http.post(f"/conversations/{conversation}/feedback", json={"thumbs_up": True})
        if number % 3 == 0:
            await world.count()
    later = Assigning(world.database)  # another process, which knows nothing but the database
    admin = await later.http(Role.ADMIN, "root")
    for conversation, submission in given.items():
        replay = (await admin.get(f"/conversations/{conversation}/assignment")).json()
        assert (replay["submission_id"], replay["replayed"]) == (submission, submission)
        assert replay["is_same"] is True
        assert replay["decision"]["key"] == conversation
        assert replay["decision"]["seed"] == 7


async def test_without_a_seed_nothing_is_recorded_of_a_decision(world: Assigning) -> None:
    conversation, _ = await world.begin(await world.http(Role.BACKEND), "a")
    async with world.database.read() as session:
        row = await by_id(session, conversation)
    assert row is not None
    assert row.decision is None


LONG = Bot(name="Luna", memory="lamp " * 400)


async def sized(world: Assigning, **inputs: int) -> None:
    """Submissions that are given this number of tokens; a word is one token."""
    developer = await world.account(Role.DEVELOPER, "eve")
    for name, tokens in inputs.items():
        await world.publish(developer, name, params=GenerationParams(max_input_tokens=tokens))


async def test_a_persona_goes_only_where_it_fits(database: Database) -> None:
    world = Assigning(database)
    await sized(world, large_v1=1_024, small_v1=256, tight_v1=420)
    http = await world.http(Role.BACKEND)
    assert (await world.begin(http, "a"))[1] == "tight_v1", "the newest has room for a short one"
    for user in ("b", "c"):
        body = {"user_id": user, "bot": LONG.model_dump(), "consent": True}
        opened = (await http.post("/conversations", json=body)).json()
        assert opened["submission_id"] == "large_v1"
        sent = f"/conversations/{opened['conversation_id']}/messages"
        said = await http.post(sent, json={"content": "Are you there? " * 20})
        assert said.status_code == 200, "it can be talked to"


async def test_persona_that_fits_nowhere_is_refused_at_opening(database: Database) -> None:
    world = Assigning(database)
    await sized(world, large_v1=384, small_v1=256)
    http = await world.http(Role.BACKEND)
    body = {"user_id": "a", "bot": LONG.model_dump(), "consent": True}
    refused = await http.post("/conversations", json=body)
    assert (refused.status_code, refused.json()["error"]) == (422, "persona_too_long")
    found = re.fullmatch(
        r"The bot's persona takes (4\d\d) tokens with the prompt around it, and no model that takes"
        r" conversations has room for more than 336\.",
        refused.json()["detail"],
    )
    assert found, refused.json()["detail"]
    async with world.database.read() as session:
        assert not (await session.scalars(select(ConversationRow))).all(), "nothing is stored"


async def test_roomiest_models_are_tried_when_a_persona_fits_few(
    database: Database,
) -> None:
    world = Assigning(database)
    await sized(world, large_v1=1_024, **{f"small-{size}_v1": size for size in range(200, 230)})
    http = await world.http(Role.BACKEND)
    body = {"user_id": "a", "bot": LONG.model_dump(), "consent": True}
    opened = await http.post("/conversations", json=body)
    assert opened.json()["submission_id"] == "large_v1"
