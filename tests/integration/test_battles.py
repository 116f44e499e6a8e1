"""Battles: two submissions answer one message, the user votes, and the conversation goes on with the better reply."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from guanaco.accounts import Role
from guanaco.competitions import (
    OPEN,
    AssignmentKind,
    AssignmentRule,
    CompetitionRequest,
    DuelRule,
)
from guanaco_server.competitions.service import OPEN_COMPETITION
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.routing.policies.posterior import Posterior
from guanaco_server.routing.snapshot import (
    Pool,
    RivalRecord,
    choose_rival,
    policy_of,
    rival_chances,
)
from guanaco_server.statistics.duel_decisions import COUNTED_PER_USER
from tests.fixtures.newer_version import rewrite
from tests.fixtures.talking import contents, parse
from tests.fixtures.world import World

OWN, RIVAL, THIRD = "acme-tiny_v1", "bolt-tiny_v1", "cove-tiny_v1"


async def in_battle(
    database: Database, *scripts: Script, has_rival: bool = True
) -> tuple[World, httpx.AsyncClient, str]:
    """A world in whose open competition there are battles, a backend, and its conversation with OWN."""
    world = World(database, *scripts)
    await world.publish(await world.account(Role.DEVELOPER, "ada"), OWN)
    http = await world.http(Role.BACKEND, "app")
    conversation = await world.open(http)
    if has_rival:
        await world.publish(await world.account(Role.DEVELOPER, "bob"), RIVAL)
    rules = CompetitionRequest(
        name="Open", starts_at=OPEN_COMPETITION.starts_at, duels=DuelRule(battles=True)
    )
    await world.competitions.put(OPEN, rules)
    await world.routing.refresh()
    return world, http, conversation


async def fight(http: httpx.AsyncClient, conversation: str, content: str = "Hello") -> Any:
    answer = await http.post(f"/conversations/{conversation}/battles", json={"content": content})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def vote(http: httpx.AsyncClient, conversation: str, battle: str, **fields: Any) -> Any:
    path = f"/conversations/{conversation}/battles/{battle}/vote"
    return await http.put(path, json=fields)


async def own_side(database: Database, battle: str) -> str:
    """Return the side of the conversation's own submission, which no answer tells."""
    async with database.read() as session:
        statement = text("SELECT own_side FROM battles WHERE id = :id")
        return str(await session.scalar(statement, {"id": battle}))


def other(side: str) -> str:
    return "b" if side == "a" else "a"


async def test_a_battle_has_two_replies_and_names_nobody(database: Database) -> None:
    _, http, conversation = await in_battle(database, Script(("One",)), Script(("Two",)))
    battle = await fight(http, conversation)
    assert {battle["a"]["content"], battle["b"]["content"]} == {"One", "Two"}
    assert OWN not in str(battle)
    assert RIVAL not in str(battle)
    stands = battle[battle["continues_from"]]["content"]
    assert await contents(http, conversation) == [("user", "Hello", False), ("bot", stands, False)]


async def test_the_conversation_goes_on_with_the_better_reply(database: Database) -> None:
    world, http, conversation = await in_battle(
        database, Script(("One",)), Script(("Two",)), Script(("Later",))
    )
    battle = await fight(http, conversation)
    rivals = other(battle["continues_from"])
    voted = (await vote(http, conversation, battle["battle_id"], outcome=rivals)).json()
    assert (voted["outcome"], voted["continues_from"], voted["revision"]) == (rivals, rivals, 1)
    better = battle[rivals]["content"]
    assert (await contents(http, conversation))[-1] == ("bot", better, False)
    await world.greet(http, conversation)
    assert better in world.model_server.generations[-1].prompt
    late = await vote(
        http, conversation, battle["battle_id"], outcome="tie", continue_from=other(rivals)
    )
    assert (late.status_code, late.json()["error"]) == (422, "invalid_input")
    changed = (await vote(http, conversation, battle["battle_id"], outcome="tie")).json()
    assert (changed["outcome"], changed["continues_from"]) == ("tie", rivals)


async def test_nothing_tells_which_side_is_the_conversations_own(database: Database) -> None:
    _, http, conversation = await in_battle(database)
    stood = set()
    for number in range(24):  # of which all go on with the same one once in 8 million times
        battle = await fight(http, conversation, f"Hello {number}")
        own = await own_side(database, battle["battle_id"])
        stood.add(battle["continues_from"] == own)
        found = (await http.get(f"/conversations/{conversation}")).json()["messages"][-1]
        assert found["content"] == battle[battle["continues_from"]]["content"]
        assert (found["edited_at"], found["timings"]) == (None, None)
        if number == 0:
            for side in (other(own), own):
                await vote(http, conversation, battle["battle_id"], outcome=side)
                chosen = (await http.get(f"/conversations/{conversation}")).json()["messages"][-1]
                assert chosen["content"] == battle[side]["content"]
                assert (chosen["edited_at"], chosen["timings"]) == (None, None)
    assert stood == {True, False}
    async with database.read() as session:
        measured = await session.execute(
            text(
                "SELECT original, own_side, a_content, b_content FROM messages"
                " JOIN battles ON battles.message_id = messages.id"
            )
        )
    assert all(words == {"a": a, "b": b}[own] for words, own, a, b in measured)


async def test_the_same_vote_again_changes_nothing(database: Database) -> None:
    world, http, conversation = await in_battle(database, Script(("One",)), Script(("Two",)))
    battle_id = (await fight(http, conversation))["battle_id"]
    first, again = [await vote(http, conversation, battle_id, outcome="both_bad") for _ in "12"]
    assert first.json() == again.json()
    world.clock.advance(60)
    changed = (await vote(http, conversation, battle_id, outcome="a")).json()
    assert changed["revision"] == 2
    async with database.read() as session:
        votes = await session.execute(text("SELECT revision, outcome FROM duels ORDER BY number"))
    assert [tuple(one) for one in votes] == [(1, "both_bad"), (2, "a")]
    world.clock.advance(timedelta(days=1).total_seconds())
    late = await vote(http, conversation, battle_id, outcome="b")
    assert (late.status_code, late.json()["error"]) == (409, "rating_settled")


async def test_a_rival_that_fails_leaves_an_ordinary_reply(database: Database) -> None:
    world, http, conversation = await in_battle(database, Script(("Hi",)))
    world.model_server.unhealthy.update(world.deployments.replicas(RIVAL))
    battle = await fight(http, conversation)
    own = battle["continues_from"]
    assert (battle["battle_id"], battle[own]["content"]) == (None, "Hi")
    assert battle[other(own)] is None
    assert await contents(http, conversation) == [("user", "Hello", False), ("bot", "Hi", False)]


async def test_a_battle_fails_with_the_conversations_own_submission(database: Database) -> None:
    world, http, conversation = await in_battle(database, Script(("Hi",)))
    world.model_server.unhealthy.update(world.deployments.replicas(OWN))
    path = f"/conversations/{conversation}/battles"
    answer = await http.post(path, json={"content": "Hello"})
    assert (answer.status_code, answer.json()["error"]) == (503, "model_unavailable")
    assert await contents(http, conversation) == [("user", "Hello", False)]
    assert (await http.get(path)).json() == []


async def test_without_a_rival_the_reply_is_ordinary(database: Database) -> None:
    _, http, conversation = await in_battle(database, Script(("Hi",)), has_rival=False)
    battle = await fight(http, conversation)
    shown = [side for side in ("a", "b") if battle[side] is not None]
    assert (battle["battle_id"], shown) == (None, [battle["continues_from"]])
    assert (await http.get(f"/conversations/{conversation}/battles")).json() == []


async def test_both_replies_are_streamed_with_their_side(database: Database) -> None:
    _, http, conversation = await in_battle(
        database, Script(("One", " more")), Script(("Two", " too"))
    )
    path = f"/conversations/{conversation}/battles"
    answer = await http.post(path, json={"content": "Hello", "stream": True})
    *tokens, (last, battle) = parse(answer.text)
    assert (last, {name for name, _ in tokens}) == ("done", {"token"})
    for side in ("a", "b"):
        said = "".join(data["text"] for _, data in tokens if data["side"] == side)
        assert said == battle[side]["content"]


async def test_a_competition_without_battles_refuses_them(database: Database) -> None:
    world, http, conversation = await in_battle(database)
    plain = CompetitionRequest(name="Open", starts_at=OPEN_COMPETITION.starts_at)
    await world.competitions.put(OPEN, plain)
    await world.routing.refresh()
    answer = await http.post(f"/conversations/{conversation}/battles", json={"content": "Hi"})
    assert (answer.status_code, answer.json()["error"]) == (409, "battles_off")
    assert await contents(http, conversation) == []


async def test_a_battle_in_a_frozen_competition_is_refused_as_over(database: Database) -> None:
    world, http, _ = await in_battle(database)
    admin = await world.http(Role.ADMIN)
    rules = CompetitionRequest(
        name="Cup", starts_at=world.clock.now(), duels=DuelRule(battles=True)
    )
    await world.competitions.put("cup", rules)
    body = {"user_id": "u2", "bot": {"name": "Luna"}, "consent": True, "competition": "cup"}
    opened = (await http.post("/conversations", json=body)).json()
    assert (await admin.post("/competitions/cup/freeze")).status_code == 200
    await world.routing.refresh()
    path = f"/conversations/{opened['conversation_id']}/battles"
    answer = await http.post(path, json={"content": "Hi"})
    assert (answer.status_code, answer.json()["error"]) == (409, "battles_off")
    assert "the competition cup is over" in answer.json()["detail"]
    assert "experiment" not in answer.json()["detail"]


async def test_a_repeated_battle_gets_the_same_answer(database: Database) -> None:
    world, http, conversation = await in_battle(database, Script(("One",)), Script(("Two",)))
    path, key = f"/conversations/{conversation}/battles", {"Idempotency-Key": "battle-1"}
    first, again = [await http.post(path, json={"content": "Hi"}, headers=key) for _ in "12"]
    assert first.json() == again.json()
    assert len(world.model_server.generations) == 2
    assert len((await http.get(path)).json()) == 1


async def test_a_developer_reads_duels_with_the_other_side_anonymous(database: Database) -> None:
    world, http, conversation = await in_battle(
        database, Script(("Mail a@example.org",)), Script(("Two",))
    )
    battle = await fight(http, conversation)
    own = await own_side(database, battle["battle_id"])
    await vote(http, conversation, battle["battle_id"], outcome=own)
    ada, bob = await world.http(Role.DEVELOPER, "ada"), await world.http(Role.DEVELOPER, "bob")
    await world.scores.loop.run_once()
    won = (await ada.get(f"/submissions/{OWN}/duels")).json()
    lost = (await bob.get(f"/submissions/{RIVAL}/duels")).json()
    assert (won["score"]["won"], won["items"][0]["result"]) == (1, "won")
    assert (lost["score"]["lost"], lost["items"][0]["result"]) == (1, "lost")
    assert RIVAL not in str(won)
    assert OWN not in str(lost)
    assert "a@example.org" not in str(won) + str(lost)
    assert won["items"][0]["reply"] == lost["items"][0]["other_reply"]
    assert (await ada.get(f"/submissions/{RIVAL}/duels")).status_code == 404
    admin = await world.http(Role.ADMIN)
    (pair,) = (await admin.get(f"/competitions/{OPEN}/duels")).json()
    assert (pair["first"], pair["second"], pair["score"]["won"]) == (OWN, RIVAL, 1)
    assert 0 <= pair["score"]["low"] < 0.5 < pair["score"]["high"] <= 1


@pytest.mark.both_databases
async def test_unknown_outcome_is_shown_and_never_counted(
    database: Database,
) -> None:
    world, http, conversation = await in_battle(database, Script(("One",)), Script(("Two",)))
    battle_id = (await fight(http, conversation))["battle_id"]
    await vote(http, conversation, battle_id, outcome="a")
    for table, key in (("battles", {"id": battle_id}), ("duels", {"battle_id": battle_id})):
        await rewrite(database, table, key, outcome="both_good")
    (listed,) = (await http.get(f"/conversations/{conversation}/battles")).json()
    admin = await world.http(Role.ADMIN)
    page = (await admin.get(f"/submissions/{OWN}/duels")).json()
    pairs = await admin.get("/competitions/open/duels")
    assert (listed["outcome"], page["items"][0]["result"]) == ("both_good", "both_good")
    assert [page["score"][name] for name in ("won", "lost", "tie", "both_bad")] == [0, 0, 0, 0]
    assert (pairs.status_code, pairs.json()) == (200, [])
    changed = (await vote(http, conversation, battle_id, outcome="tie")).json()
    assert (changed["outcome"], changed["revision"]) == ("tie", 2)


@pytest.mark.both_databases
async def test_results_leave_out_what_the_verdict_leaves_out(database: Database) -> None:
    world, http, conversation = await in_battle(database)
    votes = 0
    while votes <= COUNTED_PER_USER:
        battle = await fight(http, conversation, f"Hello {votes}")
        assert (await vote(http, conversation, battle["battle_id"], outcome="tie")).is_success
        votes += 1
    ada = await world.http(Role.DEVELOPER, "ada")
    await world.scores.loop.run_once()
    page = (await ada.get(f"/submissions/{OWN}/duels")).json()
    assert len(page["items"]) == votes
    score = page["score"]
    assert (score["won"], score["lost"], score["tie"]) == (0, 0, COUNTED_PER_USER)
    admin = await world.http(Role.ADMIN)
    (pair,) = (await admin.get(f"/competitions/{OPEN}/duels")).json()
    assert pair["score"]["tie"] == COUNTED_PER_USER


async def test_the_chance_of_a_rival_can_be_computed_again(database: Database) -> None:
    world, http, conversation = await in_battle(database)
    await world.publish(await world.account(Role.DEVELOPER, "eve"), THIRD)
    rule = AssignmentRule(kind=AssignmentKind.UNIFORM, seed=7, weights={THIRD: 3.0})
    await world.competitions.put(
        OPEN,
        CompetitionRequest(
            name="Open",
            starts_at=OPEN_COMPETITION.starts_at,
            duels=DuelRule(battles=True),
            assignment=rule,
        ),
    )
    await world.routing.refresh()
    keys = []
    for number in range(2):
        battle = await fight(http, conversation, f"Hello {number}")
        keys.append(battle["battle_id"])
        await vote(http, conversation, battle["battle_id"], outcome="a")
    async with database.read() as session:
        found = await session.execute(
            text("SELECT a_submission, b_submission, decision FROM battles ORDER BY created_at, id")
        )
        by_key = {}
        for a, b, stored in found:
            kept = json.loads(stored) if isinstance(stored, str) else stored
            by_key[kept["key"]] = (RivalRecord.model_validate(kept), {a, b})
        (_, one), (decision, two) = by_key[keys[0]], by_key[keys[1]]
        snapshot = await world.routing.recorded(session, decision)
    assert snapshot is not None
    (met,) = one - {OWN}
    assert (decision.seed, decision.own, decision.seen) == (7, OWN, (met,))
    (rival,) = two - {OWN}
    pool = Pool(snapshot, await policy_of(snapshot, Posterior()))
    assert choose_rival(pool, decision) == rival
    fresh = decision.model_copy(update={"seen": ()})
    assert rival_chances(pool, fresh) == pytest.approx({THIRD: 0.75, RIVAL: 0.25})
    assert rival_chances(pool, decision)[rival] == pytest.approx(1), "who was met waits"
    admin = await world.http(Role.ADMIN)
    shown = (await admin.get(f"/conversations/{conversation}/battles/{keys[1]}/rival")).json()
    assert (shown["own"], shown["rival"], shown["chance"]) == (OWN, rival, 1)
    assert (shown["replayed"], shown["is_same"], shown["entries"]) == (rival, True, 3)
    missing = await admin.get(f"/conversations/conv_other/battles/{keys[1]}/rival")
    assert (missing.status_code, missing.json()["error"]) == (404, "battle_not_found")


@pytest.mark.both_databases
async def test_an_erased_user_leaves_no_battle(database: Database) -> None:
    _, http, conversation = await in_battle(database, Script(("One",)), Script(("Two",)))
    battle_id = (await fight(http, conversation))["battle_id"]
    await vote(http, conversation, battle_id, outcome="a")
    assert (await http.post("/users/erase", json={"user_id": "user-1"})).status_code == 200
    async with database.read() as session:
        for table in ("battles", "duels"):
            assert await session.scalar(text(f"SELECT count(*) FROM {table}")) == 0


async def test_a_deleted_reply_leaves_the_vote_without_words(
    database: Database,
) -> None:
    """Whoever deletes the turn has voted all the same, and cannot vote on it again."""
    world, http, conversation = await in_battle(database, Script(("One",)), Script(("Two",)))
    path = f"/conversations/{conversation}"
    for votes in (1, 0):
        battle = await fight(http, conversation)
        if votes:
            await vote(http, conversation, battle["battle_id"], outcome="a")
        assert (await http.delete(f"{path}/messages/{battle['message_id']}")).status_code == 204
        async with database.read() as session:
            found = await session.execute(text("SELECT outcome, a_content, b_content FROM battles"))
            assert found.all() == [("a", "", "")]
            assert await session.scalar(text("SELECT count(*) FROM duels")) == 1
    assert (await http.get(f"{path}/battles")).json() == []
    again = await vote(http, conversation, battle["battle_id"], outcome="b")
    assert again.json()["error"] == "battle_not_found"
    admin = await world.http(Role.ADMIN, "root")
    for submission in await world.submissions.catalog.briefs():
        page = (await admin.get(f"/submissions/{submission.id}/duels")).json()
        assert page["items"] == []


async def test_another_apps_battle_is_not_found(database: Database) -> None:
    world, http, conversation = await in_battle(database, Script(("One",)), Script(("Two",)))
    battle_id = (await fight(http, conversation))["battle_id"]
    stranger = await world.http(Role.BACKEND, "other")
    assert (await vote(stranger, conversation, battle_id, outcome="a")).status_code == 404
    unknown = await vote(http, conversation, "battle_" + "0" * 32, outcome="a")
    assert (unknown.status_code, unknown.json()["error"]) == (404, "battle_not_found")
    wrong = await vote(http, conversation, battle_id, outcome="c")
    assert wrong.status_code == 422
