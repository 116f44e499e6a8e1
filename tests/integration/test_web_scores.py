"""The figures on the pages: each with how sure it is, and each competition's own."""

from __future__ import annotations

import re

import pytest

from guanaco.accounts import Role
from guanaco.chat import Sender
from guanaco.competitions import CompetitionRequest, RankingRule
from guanaco.estimates import Estimate
from guanaco_server.database.database import Database
from guanaco_server.leaderboard.counting.aggregate import Aggregate
from guanaco_server.leaderboard.ranking.metrics import metrics_of
from guanaco_server.web.views.metric_tiles import METRICS, tiles_of
from tests.fixtures.rating import converse, rate
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import browser, signed_in

TALK = (
    (Sender.USER, "Ahoy, who is there?"),
    (Sender.BOT, "a b c"),
    (Sender.USER, "Tell me more."),
    (Sender.BOT, "b c d"),
)


@pytest.fixture
def world(database: Database) -> WebWorld:
    return WebWorld(database)


def figures(page: str) -> dict[str, list[str]]:
    """Return what each tile of a ``dl`` says, by its name."""
    found = re.findall(r'<div class="tile"><dt class="label">(.*?)</dt>(.*?)</div>', page)
    return {
        re.sub("<[^>]+>", "", name): [
            said.replace("\u202f", " ") for said in re.findall(r"<dd[^>]*>(.*?)</dd>", rest)
        ]
        for name, rest in ((name, re.sub(r"</?span[^>]*>", "", rest)) for name, rest in found)
    }


@pytest.mark.both_databases
async def test_submission_page_shows_every_metric_with_its_certainty(world: WebWorld) -> None:
    await world.publish(await world.account(Role.DEVELOPER, "ada"), "ada-model_v1")
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    path = "/submissions/ada-model_v1"
    before = figures((await ada.get(path)).text)
    assert all(before[metric.name] == ["not enough yet"] for metric in METRICS)

    backend = await world.account(Role.BACKEND, "app")
    await converse(world, backend, "ada-model_v1", "user-0", TALK)
    for number in range(4):
        await rate(world, backend, "ada-model_v1", f"user-{number}", number > 0)
    await world.scores.loop.run_once()
    page = (await ada.get(path)).text
    shown = figures(page)
    assert shown["thumbs up"] == ["75 %", "30 % to 95 %, from 4 users"]
    assert shown["words repeated from reply to reply"] == ["50.0 %", "from 1 conversation"]
    assert shown["replies regenerated"][0] == "0.0 %"
    assert shown["to the first token, median"][1].endswith("from 6 replies")
    assert shown["users back the next day"] == ["not enough yet"]
    meanings = (await browser(world).get("/docs/scores")).text
    for anchor in re.findall(r'href="/docs/scores#([\w-]+)"', page):
        assert f'id="{anchor}"' in meanings


async def test_choosing_a_competition_changes_scores_and_ranks(world: WebWorld) -> None:
    ada = await world.account(Role.DEVELOPER, "ada")
    for name in ("one_v1", "two_v1"):
        await world.publish(ada, name)
    await world.competitions.put(
        "spring",
        CompetitionRequest(
            name="Spring Cup", starts_at=world.clock.now(), ranking=RankingRule.BRADLEY_TERRY
        ),
    )
    backend = await world.account(Role.BACKEND, "app")
    await rate(world, backend, "two_v1", "user-0", True)
    for number in range(3):
        is_one_better = number > 0
        for name, thumbs_up in (("one_v1", is_one_better), ("two_v1", not is_one_better)):
            await rate(world, backend, name, f"user-{number}", thumbs_up, competition="spring")
    await world.scores.loop.run_once()
    client = browser(world)
    opened, spring = [(await client.get(f"/?competition={name}")).text for name in ("open", "spring")]  # fmt: skip
    assert re.findall(r'class="place[^>]*>(=?\d+)<', opened) == ["1"]
    assert ">Score</a>" not in opened
    assert re.findall(r'class="place[^>]*>(=?\d+)<', spring) == ["=1", "=1"], (
        "nothing tells them apart"
    )
    row = next(row for row in (await world.leaderboard.leaderboard("spring")).rows)
    assert row.score is not None
    assert f"{row.score:,.0f}</td>" in spring
    assert f"between {row.score_low:,.0f} and {row.score_high:,.0f}" in spring
    one, two = (spring.index(f"/submissions/{name}_v1?competition=spring") for name in ("one", "two"))  # fmt: skip
    assert one < two, "within a rank by the interval's lower end"
    own = await signed_in(world, Role.DEVELOPER, "ada")
    shown = figures((await own.get("/submissions/one_v1?competition=spring")).text)
    assert (shown["rank"], shown["score"][0]) == (["=1 (shared)"], f"{row.score:,.0f}")
    assert (await own.get("/submissions/one_v1?competition=none")).status_code == 404


def test_an_interval_ends_where_values_do() -> None:
    nothing = metrics_of("one_v1", Aggregate(), 0)
    known = nothing.model_copy(
        update={
            "conversation_length": Estimate(value=2.0, low=-1.5, high=5.5, n=2),
            "repetition": Estimate(value=0.9, low=0.7, high=1.1, n=3),
            "writing_speed": Estimate(value=4.0, low=2.0, high=None, n=5),
        }
    )
    said = [
        tile.certainty.replace("\u202f", " ") for tile in tiles_of(known, METRICS) if tile.value
    ]
    assert said == [
        "0.0 to 5.5, from 2 conversations",
        "70.0 % to 100.0 %, from 3 conversations",
        "at least 2.0, from 5 messages",
    ]
