"""Tests what an operator's pages must not do by mistake, and behind which proxy visitors are told apart; on both databases."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from pydantic import ValidationError

from guanaco.accounts import Role
from guanaco.competitions import CompetitionRequest
from guanaco.errors import Blame
from guanaco.experiments import ExperimentRequest, Variant
from guanaco.submissions import Failure, Status
from guanaco_server.database.database import Database
from guanaco_server.deployments.model_servers.memory import Script
from guanaco_server.settings import Settings
from guanaco_server.submissions.tables import SubmissionRow
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import HERE, agreed, send, signed_in

FORM = {"name": "Spring", "starts_at": "2026-01-01T00:00"}
PROXY = "10.1.2.3"


class ProxiedWorld(WebWorld):
    changes = {"trusted_proxies": ("10.0.0.0/8",)}


@pytest.fixture
def world(database: Database) -> WebWorld:
    return WebWorld(database)


async def test_a_new_competition_overwrites_none(world: WebWorld) -> None:
    root = await signed_in(world, Role.ADMIN, "root")
    assert (await send(root, "/admin/competitions", {**FORM, "id": "spring"})).status_code == 303
    for known in ("spring", "open"):
        again = await send(root, "/admin/competitions", {**FORM, "id": known, "name": "Other"})
        assert again.status_code == 422
        assert "There is a competition with this id already" in again.text
    assert [found.name for found in await world.competitions.list_all()] == ["Open", "Spring"]
    missing = await send(root, "/admin/competitions/summer", {**FORM, "id": "summer"})
    assert missing.status_code == 404


async def test_a_competition_may_be_called_new(world: WebWorld) -> None:
    root = await signed_in(world, Role.ADMIN, "root")
    assert (await send(root, "/admin/competitions", {**FORM, "id": "new"})).status_code == 303
    assert "Spring" in (await root.get("/admin/competitions/new")).text


async def test_the_open_competition_is_given_no_end(world: WebWorld) -> None:
    root = await signed_in(world, Role.ADMIN, "root")
    page = await send(root, "/admin/competitions/open", {**FORM, "ends_at": "2026-02-01T00:00"})
    assert page.status_code == 422
    assert "always runs" in page.text


async def test_saving_a_competition_keeps_times_to_the_microsecond(world: WebWorld) -> None:
    starts_at = datetime(2026, 1, 1, 10, 11, 12, 345_678, tzinfo=UTC)
    ends_at = datetime(2026, 2, 1, 10, 11, 0, 999, tzinfo=UTC)
    rules = CompetitionRequest(name="Spring", starts_at=starts_at, ends_at=ends_at)
    await world.competitions.put("spring", rules)
    root = await signed_in(world, Role.ADMIN, "root")
    page = (await root.get("/admin/competitions/spring")).text
    assert 'value="2026-01-01T10:11:12"' in page
    fields = {"name": "Renamed", "starts_at": "2026-01-01T10:11:12", "ends_at": "2026-02-01T10:11"}
    assert (await send(root, "/admin/competitions/spring", fields)).status_code == 303
    found = await world.competitions.find("spring")
    assert (found.name, found.starts_at, found.ends_at) == ("Renamed", starts_at, ends_at)
    later = {**fields, "ends_at": "2026-02-01T10:11:30"}
    assert (await send(root, "/admin/competitions/spring", later)).status_code == 303
    moved = (await world.competitions.find("spring")).ends_at
    assert moved == ends_at.replace(microsecond=0) + timedelta(seconds=30)


async def test_freezing_is_asked_about_on_a_page_of_its_own(world: WebWorld) -> None:
    root = await signed_in(world, Role.ADMIN, "root")
    await send(root, "/admin/competitions", {**FORM, "id": "spring"})
    path = "/admin/competitions/spring/freeze"
    assert f'href="{path}"' in (await root.get("/admin/competitions/spring")).text
    assert "This cannot be undone" in (await root.get(path)).text
    assert (await world.competitions.find("spring")).frozen_at is None
    assert (await send(root, path, page=path)).status_code == 303
    assert (await world.competitions.find("spring")).frozen_at is not None
    for unfreezable in (path, "/admin/competitions/open/freeze"):
        assert (await root.get(unfreezable)).status_code == 404


async def test_withdrawing_is_asked_about_on_a_page_of_its_own(world: WebWorld) -> None:
    client = await agreed(world)
    assert 'href="/chat/forget"' in (await client.get("/chat")).text
    assert "This cannot be undone" in (await client.get("/chat/forget")).text
    assert "I agree" not in (await client.get("/chat")).text
    assert "are erased" in (await send(client, "/chat/forget", page="/chat/forget")).text
    assert (await client.get("/chat/forget")).headers["location"] == "/chat"


def through(world: WebWorld, proxy: str, visitor: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(world.app, client=(proxy, 4711))
    headers = {"Accept": "text/html", "X-Forwarded-For": visitor, **HERE}
    return httpx.AsyncClient(transport=transport, base_url="http://guanaco", headers=headers)


async def wrong_keys(client: httpx.AsyncClient, times: int) -> int:
    """The last one's status."""
    answers = [await client.post("/signin", data={"key": "gk_no"}) for _ in range(times)]
    return answers[-1].status_code


async def test_wrong_keys_behind_a_proxy_lock_out_one_visitor_only(
    database: Database,
) -> None:
    world = ProxiedWorld(database)
    assert await wrong_keys(through(world, PROXY, "203.0.113.7"), 11) == 429
    assert await wrong_keys(through(world, PROXY, "203.0.113.8"), 1) == 401
    spoofed = through(world, PROXY, "203.0.113.9, 203.0.113.7")
    assert await wrong_keys(spoofed, 1) == 429, "only what the proxy itself added counts"


async def test_forwarded_address_of_a_stranger_is_not_trusted(database: Database) -> None:
    world = ProxiedWorld(database)
    assert await wrong_keys(through(world, "198.51.100.1", "203.0.113.7"), 11) == 429
    assert await wrong_keys(through(world, "198.51.100.1", "203.0.113.8"), 1) == 429


@pytest.mark.parametrize("wrong", ["proxy.example", "10.0.0.1/8", "*"])
def test_a_trusted_proxy_is_an_address_or_a_network(wrong: str) -> None:
    with pytest.raises(ValidationError, match="neither an address nor a network"):
        Settings(trusted_proxies=(wrong,))


async def operated(world: WebWorld) -> None:
    """A model with a rating, GPUs that cost, an experiment, and a vote that was left out."""
    spring = CompetitionRequest(name="Spring", starts_at=world.clock.now())
    await world.competitions.put("spring", spring)
    submission_id = await world.model("Llama Bard", "ada")
    await world.rate(submission_id, True)
    await world.operate(submission_id)


async def test_what_costs_is_experimented_and_left_out_is_on_pages(world: WebWorld) -> None:
    await operated(world)
    root = await signed_in(world, Role.ADMIN, "root")
    await costs_are_shown_by_month(world, root)
    await an_experiment_is_started_and_stopped(world, root)
    await a_vote_is_let_in(world, root)
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    page = (await ada.get("/submissions/ada-llama-bard_v1")).text
    cost = await world.costs.of_submission("ada-llama-bard_v1", "ada", world.clock.now())
    assert f"{cost.cost:,.2f} {cost.currency}" in page
    await the_error_budget_and_alerts_are_shown(world, root)
    for path in ("/admin/costs", "/admin/reliability", "/admin/experiments", "/admin/votes"):
        assert (await ada.get(path)).status_code == 403


async def costs_are_shown_by_month(world: WebWorld, root: httpx.AsyncClient) -> None:
    now = world.clock.now()
    page = (await root.get("/admin/costs")).text
    assert "ada-llama-bard_v1" in page
    found = await world.costs.costs()
    assert f"{found.cost:,.2f}" in page
    before = f"{now.replace(day=1) - timedelta(days=1):%Y-%m}"
    assert f'href="/admin/costs?month={before}"' in page
    empty = (await root.get("/admin/costs?month=2001-01")).text
    assert "No GPU was held in this month." in empty
    for month, sentence in (("2001-13", "like 2026-11"), ("9000-01", "has not begun")):
        refused = await root.get(f"/admin/costs?month={month}")
        assert refused.status_code == 422
        assert sentence in refused.text


async def the_error_budget_and_alerts_are_shown(world: WebWorld, root: httpx.AsyncClient) -> None:
    alerts, tally = world.platform.rooms.alerts, world.metrics.tally
    assert "None fires." in (await root.get("/admin/reliability")).text
    tally.take()
    for number in range(1_000):
        tally.note_reply(number % 50 != 0)
    await alerts.recorder.write()
    world.clock.advance(60)
    await alerts.loop.run_once()
    await alerts.service.test()
    page = (await root.get("/admin/reliability")).text
    assert "98.000\u202f%" in page
    assert "20 of 1,000 replies failed within an hour" in page
    anchors = re.findall(r'href="/docs/runbooks#(\w+)"', page)
    assert "budget_burns_fast" in anchors
    runbooks = (await root.get("/docs/runbooks")).text
    assert [one for one in anchors if f'id="{one}"' not in runbooks] == []
    assert "test" in page


async def an_experiment_is_started_and_stopped(world: WebWorld, root: httpx.AsyncClient) -> None:
    assert "/admin/experiments/warmth" in (await root.get("/admin/experiments")).text
    for move, state in (("start", "running"), ("stop", "stopped")):
        path = f"/admin/experiments/warmth/{move}"
        page = (await root.get("/admin/experiments/warmth")).text
        assert f'href="{path}"' in page
        assert "temperature 1.2" in page
        assert f"{move.capitalize()} warmth?" in (await root.get(path)).text
        assert (await send(root, path, page=path)).status_code == 303
        assert (await world.experiments.find("warmth")).state == state
    assert (await root.get("/admin/experiments/warmth/stop")).status_code == 404
    assert (await root.get("/admin/experiments/none")).status_code == 404


async def test_the_page_of_an_experiment_that_takes_nobody_says_why(world: WebWorld) -> None:
    await operated(world)
    root = await signed_in(world, Role.ADMIN, "root")
    models = [Variant(name="rule"), Variant(name="bard", model="ada-llama-bard_v1")]
    request = ExperimentRequest(name="models", variants=tuple(models))
    await world.experiments.create(await world.account(Role.ADMIN, "root"), request)
    await world.experiments.start("models")
    assert "takes nobody now" not in (await root.get("/admin/experiments")).text
    assert "It takes nobody now" not in (await root.get("/admin/experiments/models")).text
    await world.submissions.deactivate(
        await world.account(Role.DEVELOPER, "ada"), "ada-llama-bard_v1"
    )
    await world.routing.refresh()
    assert "takes nobody now" in (await root.get("/admin/experiments")).text
    page = (await root.get("/admin/experiments/models")).text
    assert "It takes nobody now" in page
    assert "bard: ada-llama-bard_v1 is inactive." in page


async def test_a_page_offers_no_freeze_before_the_beginning(world: WebWorld) -> None:
    root = await signed_in(world, Role.ADMIN, "root")
    begins = world.clock.now() + timedelta(days=1)
    await world.competitions.put("next", CompetitionRequest(name="Next", starts_at=begins))
    assert "/next/freeze" not in (await root.get("/admin/competitions/next")).text
    asked = await root.get("/admin/competitions/next/freeze")
    assert asked.status_code == 409
    assert "begins on" in asked.text


async def a_vote_is_let_in(world: WebWorld, root: httpx.AsyncClient) -> None:
    (flag,) = await world.flags.newest("spring", "ada-llama-bard_v1", 10)
    path = f"/admin/votes/{flag.feedback_id}/allow"
    page = (await root.get("/admin/votes?competition=spring")).text
    assert flag.evidence in page
    assert f'href="{path}"' in page
    assert "Let this rating count?" in (await root.get(path)).text
    assert (await send(root, path, page=path)).status_code == 303
    assert "allowed by root" in (await root.get("/admin/votes")).text
    assert "No vote matches" in (await root.get("/admin/votes?submission=no-such_v1")).text
    assert (await root.get("/admin/votes/fb_none/allow")).status_code == 404


async def test_a_canary_is_begun_and_rolled_back_by_its_developer(world: WebWorld) -> None:
    await world.model("Llama Bard", "ada")
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    base = "/submissions/ada-llama-bard_v1"
    assert "/rollback" not in (await ada.get(base)).text
    assert (await ada.get(f"{base}/rollback")).status_code == 409
    for percent, minutes in (("0", "60"), ("100", "60"), ("nan", "60"), ("5", "0"), ("", "")):
        fields = {"percent": percent, "minutes": minutes}
        refused = await send(ada, f"{base}/canary", fields, f"{base}/canary")
        assert refused.status_code == 422
        assert "5 % is usual." in refused.text or "60 is usual." in refused.text
        assert 'aria-invalid="true"' in refused.text
    assert f'href="{base}/canary"' in (await ada.get(base)).text
    fields = {"percent": "5", "minutes": "30"}
    assert (await ada.post(f"{base}/canary", data=fields)).status_code == 403, "without the token"
    begun = await send(ada, f"{base}/canary", fields, f"{base}/canary")
    assert begun.status_code == 303, begun.text
    account = await world.developer("ada")
    rollout = (await world.submissions.require_visible(account, "ada-llama-bard_v1")).rollout
    assert rollout is not None
    assert (rollout.share, rollout.canary_s) == (0.05, 1_800)
    page = (await ada.get(base)).text
    assert "A new version is on its way" in page
    assert f'href="{base}/redeploy"' not in page
    assert f'href="{base}/canary"' not in page
    assert (await ada.get(f"{base}/redeploy")).status_code == 409
    assert (await send(ada, f"{base}/rollback", page=f"{base}/rollback")).status_code == 303
    rollout = (await world.submissions.require_visible(account, "ada-llama-bard_v1")).rollout
    assert rollout is not None
    assert rollout.phase == "cancelled"
    bob = await signed_in(world, Role.DEVELOPER, "bob")
    assert (await bob.get(f"{base}/canary")).status_code == 404


@pytest.mark.both_databases
async def test_the_overview_draws_replies_ratings_errors_and_cost(world: WebWorld) -> None:
    submission_id = await world.model("Llama Bard", "ada")
    await world.rate(submission_id, True)
    await world.operate(submission_id)
    root = await signed_in(world, Role.ADMIN, "root")
    day = plain(await root.get("/admin"))
    month = plain(await root.get("/admin?period=month"))
    assert "1,965 replies, 133 ratings, 30 errors (1.5 % of replies)" in month
    for name in ("Replies", "Ratings", "Errors", "Cost"):
        assert f"<figcaption>{name} per hour" in day
        assert f"<figcaption>{name} per day" in month
    assert (await root.get("/admin?period=century")).status_code == 422


async def test_a_reply_an_error_and_a_rating_are_counted_once(world: WebWorld) -> None:
    await world.model("Llama Bard", "ada")
    await world.routing.refresh()
    backend = await world.http(Role.BACKEND)
    conversation = await world.open(backend, "user-1")
    await world.greet(backend, conversation)
    world.model_server.scripts = [Script(fault="It died.")]
    failed = await backend.post(f"/conversations/{conversation}/messages", json={"content": "Ahoy"})
    assert failed.status_code >= 500
    body = {"thumbs_up": True, "text": "Fine."}
    await backend.post(f"/conversations/{conversation}/feedback", json=body)
    await world.platform.rooms.alerts.recorder.write()
    root = await signed_in(world, Role.ADMIN, "root")
    shown = plain(await root.get("/admin"))
    assert "1 reply, 1 rating, 1 error (50.0 % of replies)" in shown


async def test_a_long_failure_is_cut_on_the_overview(world: WebWorld) -> None:
    ada = await world.developer("ada")
    await world.publish(ada, "ada-broken_v1", Status.FAILED)
    detail = "The model server ended.\n" + "  a line of a traceback\n" * 500
    async with world.database.write() as session:
        row = await session.get(SubmissionRow, "ada-broken_v1")
        assert row is not None
        row.failure = Failure(code="engine_ended", detail=detail, blame=Blame.PLATFORM)
    root = await signed_in(world, Role.ADMIN, "root")
    shown = plain(await root.get("/admin"))
    assert 'clip">The model server ended.</span><details' in shown


def plain(answer: httpx.Response) -> str:
    assert answer.status_code == 200
    return answer.text.replace("\u202f", " ")
