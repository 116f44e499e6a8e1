"""Tests how scores and metrics went: kept by the leaderboard, drawn by the pages."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from guanaco.accounts import Role
from guanaco.chat import Sender
from guanaco.competitions import CompetitionRequest, RankingRule
from guanaco_server.database.database import Database
from guanaco_server.web.views.metric_tiles import METRICS
from guanaco_server.web.views.trends import thinned
from tests.fixtures.rating import converse, rate, rate_all
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import browser, signed_in

TALK = (
    (Sender.USER, "Ahoy, who is there?"),
    (Sender.BOT, "a b c"),
    (Sender.USER, "Tell me more of it."),
    (Sender.BOT, "b c d"),
    (Sender.USER, "Oh."),
)


async def rated(database: Database) -> WebWorld:
    """A submission with conversations and ratings of three days, counted on each, and today a rating more."""
    world = WebWorld(database)
    await world.publish(await world.account(Role.DEVELOPER, "ada"))
    backend = await world.account(Role.BACKEND, "app")
    for day in range(4):
        users = [f"user-{day}-{number}" for number in range(4)]
        for user in users:
            await converse(world, backend, "acme-tiny_v1", user, TALK)
        votes = [("acme-tiny_v1", user, number > day) for number, user in enumerate(users)]
        await rate_all(world, backend, votes)
        await world.scores.loop.run_once()
        world.clock.advance(timedelta(days=1).total_seconds())
    return world


@pytest.mark.slow
async def test_the_history_ends_with_the_present_score(database: Database) -> None:
    world = await rated(database)
    backend = await world.account(Role.BACKEND, "app")
    await rate(world, backend, "acme-tiny_v1", "user-9", True)
    await world.scores.loop.run_once()
    kept = await world.scores.history.of("acme-tiny_v1")
    expected = [3 / 4, 5 / 8, 6 / 12, 6 / 16, 7 / 17]
    assert [point.score for point in kept] == expected
    assert kept[0].metrics.thumbs_up_ratio == 0.75
    assert kept[0].metrics.conversation_count == 8
    told = (await world.leaderboard.history("acme-tiny_v1")).points
    assert [point.score for point in told] == expected
    scores = await world.scores.history.scores(["acme-tiny_v1"])
    assert [point.score for point in scores["acme-tiny_v1"]] == expected


async def test_every_metric_that_is_known_has_a_trend(database: Database) -> None:
    world = await rated(database)
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    page = (await ada.get("/submissions/acme-tiny_v1")).text
    metrics = (await world.leaderboard.leaderboard()).rows[0]
    known = {metric.title for metric in METRICS if metric.read(metrics) is not None}
    assert len(known) >= 8
    captions = re.findall("<figcaption>([^<]+)</figcaption>", page)
    drawn = {caption[0].lower() + caption[1:] for caption in captions}
    assert known - drawn == set()
    assert "conversations" in drawn


async def test_a_scored_competition_shows_its_score_everywhere(database: Database) -> None:
    world = WebWorld(database)
    ada = await world.account(Role.DEVELOPER, "ada")
    for name in ("one_v1", "two_v1"):
        await world.publish(ada, name)
    spring = CompetitionRequest(
        name="Spring", starts_at=world.clock.now(), ranking=RankingRule.BRADLEY_TERRY
    )
    await world.competitions.put("spring", spring)
    backend = await world.account(Role.BACKEND, "app")
    for day in range(2):
        votes = [
            (name, f"user-{day}-{number}", is_up)
            for number in range(12)
            for name, is_up in (("one_v1", number > 1), ("two_v1", number <= 1 + day))
        ]
        await rate_all(world, backend, votes, competition="spring")
        await world.scores.loop.run_once()
        world.clock.advance(timedelta(days=1).total_seconds())
    client = browser(world)
    row = (await world.leaderboard.leaderboard("spring")).rows[0]
    ends = f"between {row.score_low:,.0f} and {row.score_high:,.0f}"
    page = (await client.get(f"/submissions/{row.submission_id}?competition=spring")).text
    assert f'<p class="figure">{row.score:,.0f}</p>' in page
    assert page.count(ends) == 3  # in words, as a label and as a tooltip
    assert "Score, with its 95 % interval" in page
    assert "Thumbs-up ratio, with" not in page
    board = (await client.get("/?competition=spring")).text
    assert f"score over time, now {row.score:,.0f}" in board
    own = await signed_in(world, Role.DEVELOPER, "ada")
    mine = (await own.get(f"/submissions/{row.submission_id}?competition=spring")).text
    assert "Score, with its 95 % interval" in mine


@pytest.mark.slow
async def test_shared_ranks_are_marked_and_not_highlighted(database: Database) -> None:
    world = WebWorld(database)
    ada = await world.account(Role.DEVELOPER, "ada")
    backend = await world.account(Role.BACKEND, "app")
    for name, ups in (("one_v1", 40), ("two_v1", 10), ("three_v1", 10)):
        await world.publish(ada, name)
        await rate_all(
            world, backend, ((name, f"user-{number}", number < ups) for number in range(40))
        )
    await world.scores.loop.run_once()
    page = (await browser(world).get("/")).text
    places = re.findall(r'class="place([^"]*)">(=?\d+)<', page)
    assert places == [(" top", "1"), ("", "=2"), ("", "=2")]
    public = (await browser(world).get("/submissions/two_v1")).text
    assert '<p class="figure">=2<' in public


@pytest.mark.both_databases
@pytest.mark.slow
async def test_long_history_draws_a_point_a_day_and_the_newest(database: Database) -> None:
    world = await rated(database)
    kept = await world.scores.history.of("acme-tiny_v1")
    hours = [
        type(one)(one.at + timedelta(hours=hour), one.score, one.low, one.high)
        for one in kept[:1]
        for hour in range(0, 24 * 6, 8)
    ]
    shown = thinned(hours)
    assert [point.at.date() for point in shown[:-1]] == sorted({one.at.date() for one in hours})
    assert shown[-1] == hours[-1]
    assert thinned(hours[:9]) == hours[:9]
