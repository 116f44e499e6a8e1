"""The pages over HTTP: who may see what, what a form must carry, and that nobody's text becomes markup; on both databases."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from guanaco.accounts import Role
from guanaco.chat import Bot
from guanaco.submissions import Status
from guanaco_server.database.database import Database
from guanaco_server.submissions.tables import SubmissionRow
from guanaco_server.web.access.guards import SESSION_COOKIE
from guanaco_server.web.rendering import SECURITY_HEADERS
from tests.fixtures.web import WebWorld
from tests.fixtures.web_client import browser, send, signed_in, token

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}'


@pytest.fixture
def world(database: Database) -> WebWorld:
    return WebWorld(database)


async def test_every_page_says_on_purpose_who_may_see_it(world: WebWorld) -> None:
    pages = [route for route in api_routes(world.app.routes) if not route.include_in_schema]
    assert len(pages) > 25
    for route in pages:
        guards = [
            call
            for call in dependencies(route.dependant)
            if hasattr(call, "roles") or hasattr(call, "is_public")
        ]
        assert len(guards) == 1, route.path
        if route.path.startswith("/admin"):
            assert guards[0].roles == {Role.ADMIN}, route.path  # type: ignore[attr-defined]


async def test_an_alias_leads_to_its_submissions_page(world: WebWorld) -> None:
    submission_id = await world.model("Llama Bard", "ada")
    ada = await world.developer("ada")
    alias = (await world.submissions.aliases.set(ada, submission_id, "champion")).alias
    for client in (browser(world), await signed_in(world, Role.DEVELOPER, "ada")):
        for address in (alias, alias.replace("/", "%2F")):
            answer = await client.get(f"/submissions/{address}")
            assert answer.status_code == 303
            assert answer.headers["location"] == f"/submissions/{submission_id}"
        unknown = await client.get("/submissions/org/model@none")
        assert unknown.status_code == 404
        assert "model@none" in unknown.text
    root = await signed_in(world, Role.ADMIN, "root")
    votes = (await root.get("/admin/votes", params={"submission": alias})).text
    assert "No vote matches" in votes


async def test_signing_in_keeps_the_key_out_of_the_browser(world: WebWorld) -> None:
    key = await world.key(Role.DEVELOPER, "ada")
    client = browser(world, "https://guanaco")
    answer = await client.post("/signin", data={"key": key, "next": "/submissions?q=a"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/submissions?q=a")
    cookie = answer.headers["set-cookie"]
    assert key not in cookie
    assert {"HttpOnly", "SameSite=lax", "Secure"} <= set(cookie.split("; "))
    assert "My submissions" in (await client.get("/submissions")).text
    plain = await browser(world).post("/signin", data={"key": key})
    assert "Secure" not in plain.headers["set-cookie"]


@pytest.mark.parametrize("place", ["https://evil.example", "//evil.example", "/\\evil.example", "/signin", "", "/a\nb"])  # fmt: skip
async def test_signing_in_leads_to_a_page_of_ours_only(world: WebWorld, place: str) -> None:
    key = await world.key(Role.DEVELOPER, "ada")
    answer = await browser(world).post("/signin", data={"key": key, "next": place})
    assert answer.headers["location"] == "/submissions"


@pytest.mark.both_databases
async def test_session_ends_by_revoked_key_time_or_signing_out(world: WebWorld) -> None:
    ada, bob, eve = [await signed_in(world, Role.DEVELOPER, name) for name in ("ada", "bob", "eve")]
    kept = eve.cookies[SESSION_COOKIE]
    assert (await send(eve, "/signout")).headers["location"] == "/"
    eve.cookies.set(SESSION_COOKIE, kept)
    keys = {key.name: key.id for key in await world.accounts.list_keys()}
    await world.accounts.revoke_key(keys["ada"], await world.account(Role.ADMIN, "root"))
    for client in (ada, eve):
        answer = await client.get("/submissions")
        assert (answer.status_code, answer.headers["location"]) == (
            303,
            "/signin?next=/submissions",
        )
    assert (await bob.get("/submissions")).status_code == 200
    world.clock.advance(7 * 86_400 + 1)
    assert (await bob.get("/submissions")).status_code == 303


@pytest.mark.both_databases
async def test_wrong_keys_are_counted_and_then_refused(world: WebWorld) -> None:
    client = browser(world)
    statuses = [(await client.post("/signin", data={"key": "gk_00_11"})).status_code for _ in range(11)]  # fmt: skip
    assert statuses == [401] * 10 + [429]
    refused = await client.post("/signin", data={"key": await world.key(Role.ADMIN)})
    assert (refused.status_code, SESSION_COOKIE in refused.cookies) == (429, False)


@pytest.mark.parametrize(
    ("headers", "is_taken"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Origin": "http://guanaco"}, True),
        ({"Origin": "http://guanaco.evil.example"}, False),
        ({"Origin": "null"}, False),
        ({}, False),
    ],
)
async def test_a_form_is_taken_from_our_own_pages_only(
    world: WebWorld, headers: dict[str, str], is_taken: bool
) -> None:
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    fields = {"form_token": await token(ada)}
    del ada.headers["Sec-Fetch-Site"]
    answer = await ada.post("/signout", data=fields, headers=headers)
    assert answer.status_code == (303 if is_taken else 403)
    key = await world.key(Role.DEVELOPER, "ada")
    stranger = browser(world)
    del stranger.headers["Sec-Fetch-Site"]
    for path, form in (("/signin", {"key": key}), ("/chat/consent", {"consent": "yes"})):
        answer = await stranger.post(path, data=form, headers=headers)
        assert answer.status_code == (303 if is_taken else 403)


async def test_a_form_needs_the_token_of_its_own_session(world: WebWorld) -> None:
    ada, bob = [await signed_in(world, Role.DEVELOPER, name) for name in ("ada", "bob")]
    for wrong in ("", "0" * 64, await token(bob), "ü"):
        answer = await ada.post("/signout", data={"form_token": wrong})
        assert answer.status_code == 403
        assert "did not come from a page of yours" in answer.text
    assert (await ada.get("/submissions")).status_code == 200


async def test_the_public_and_other_developers_see_the_public_facts_only(world: WebWorld) -> None:
    ada = await world.account(Role.DEVELOPER, "ada")
    await world.publish(ada, "ada-model_v1")
    await world.publish(ada, "ada-hidden_v1", Status.FAILED)
    bob = await signed_in(world, Role.DEVELOPER, "bob")
    for client in (browser(world), bob):
        page = await client.get("/submissions/ada-model_v1")
        assert page.status_code == 200
        for word in ("Stages", "temperature", "Tear down", ada.id):
            assert word not in page.text, word
        assert (await client.get("/submissions/ada-hidden_v1")).status_code == 404
    for path in ("feedback", "feedback/fb_1", "feedback.jsonl", "teardown", "events"):
        assert (await bob.get(f"/submissions/ada-model_v1/{path}")).status_code == 404
    own = await signed_in(world, Role.DEVELOPER, "ada")
    page = await own.get("/submissions/ada-model_v1")
    assert "Stages" in page.text
    assert "Tear down" in page.text


async def test_admin_pages_are_for_admins(world: WebWorld) -> None:
    developer = await signed_in(world, Role.DEVELOPER, "ada")
    root = await signed_in(world, Role.ADMIN, "root")
    backend = await signed_in(world, Role.BACKEND, "app")
    for path in ("", "/deployments", "/keys", "/competitions", "/users", "/audit"):
        assert (await root.get(f"/admin{path}")).status_code == 200
        assert (await developer.get(f"/admin{path}")).status_code == 403
        assert (await browser(world).get(f"/admin{path}")).status_code == 303
    assert (await backend.get("/submissions")).status_code == 403


async def test_a_page_offers_what_the_lifecycle_allows_and_does_it(world: WebWorld) -> None:
    account = await world.account(Role.DEVELOPER, "ada")
    await world.publish(account, "ada-model_v1")
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    base = "/submissions/ada-model_v1"
    for action, status in (
        ("deactivate", Status.INACTIVE),
        ("reactivate", Status.DEPLOYED),
        ("teardown", Status.TORN_DOWN),
        ("redeploy", Status.QUEUED),
        ("cancel", Status.CANCELLED),
    ):
        assert f"{base}/{action}" in (await ada.get(base)).text
        assert (await ada.get(f"{base}/{action}")).status_code == 200
        assert (await send(ada, f"{base}/{action}")).headers["location"] == base
        assert (await world.submissions.require_visible(account, "ada-model_v1")).status is status
        assert (await ada.get(f"{base}/{action}")).status_code == 409
    assert (await send(ada, f"{base}/explode")).status_code == 404


@pytest.mark.both_databases
async def test_form_submits_a_model_once_and_returns_mistakes(
    world: WebWorld,
) -> None:
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    page = (await ada.get("/submissions/new")).text
    fields = {
        "repo": "acme/tiny",
        "temperature": "0.7",
        "stopping_words": "\\n\r\nYou:",
        "once": re.search(r'name="once" value="([^"]+)"', page)[1],  # type: ignore[index]
    }
    wrong = await send(ada, "/submissions/new", {**fields, "repo": "nonsense", "top_p": "7"})
    assert wrong.status_code == 422
    assert 'value="nonsense"' in wrong.text
    assert 'id="repo-problem"' in wrong.text
    assert 'id="top_p-problem"' in wrong.text
    places = {(await send(ada, "/submissions/new", fields)).headers["location"] for _ in range(2)}
    assert places == {"/submissions/acme-tiny_v1"}
    other = await send(ada, "/submissions/new", {**fields, "repo": "acme/other"})
    assert other.headers["location"] == "/submissions/acme-other_v1", "Back, and another repo"
    account = await world.account(Role.DEVELOPER, "ada")
    made = await world.submissions.require_visible(account, "acme-tiny_v1")
    assert (made.params.temperature, made.params.stopping_words) == (0.7, ["\n", "You:"])


async def test_what_strangers_wrote_stays_text(world: WebWorld) -> None:
    account = await world.account(Role.DEVELOPER, "ada")
    await world.publish(account, "ada-model_v1")
    async with world.database.write() as session:
        row = await session.get(SubmissionRow, "ada-model_v1")
        assert row is not None
        row.name = row.repo = HOSTILE
    await world.log("ada-model_v1", HOSTILE)
    backend = await world.http(Role.BACKEND)
    body = {"user_id": "u", "bot": Bot(name=HOSTILE[:60]).model_dump(), "consent": True}
    conversation = (await backend.post("/conversations", json=body)).json()["conversation_id"]
    await backend.post(f"/conversations/{conversation}/messages", json={"content": HOSTILE})
    await backend.post(
        f"/conversations/{conversation}/feedback", json={"thumbs_up": True, "text": HOSTILE}
    )
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    base = "/submissions/ada-model_v1"
    for path in ("/", "/submissions", base, f"{base}/feedback", f"{base}/teardown", f"/?q={HOSTILE}"):  # fmt: skip
        page = await ada.get(path)
        assert page.status_code == 200
        assert "alert(1)" in page.text
        assert "<script>alert" not in page.text
        assert "<img" not in page.text


async def test_every_page_forbids_scripts_of_others_and_framing(world: WebWorld) -> None:
    for path in ("/", "/signin", "/chat", "/nowhere", "/submissions"):
        headers = (await browser(world).get(path)).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        for rule in ("form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
            assert rule in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-opener-policy"] == "same-origin"


async def test_people_get_pages_and_programs_get_json(world: WebWorld) -> None:
    page = await browser(world).get("/no/such/page")
    assert (page.status_code, page.headers["content-type"][:9]) == (404, "text/html")
    assert "There is no such page." in page.text
    answer = await browser(world).get("/api/v1/nothing")
    assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
    answer = await browser(world).get("/no/such/page", headers={"Accept": "*/*"})
    assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
    wrong = await browser(world).get("/?sort=sideways")
    assert (wrong.status_code, "sort:" in wrong.text) == (422, True)
    assert (await browser(world).get("/?competition=none")).status_code == 404


@pytest.mark.slow
async def test_reference_lists_every_api_call_and_no_page(world: WebWorld) -> None:
    page = (await browser(world).get("/docs")).text
    for route in api_routes(world.app.routes):
        is_listed = any(
            f"<code>{method} {route.path_format}</code>" in page for method in route.methods
        )
        assert is_listed is route.include_in_schema, route.path


async def test_the_leaderboard_is_sorted_and_searched_by_links(world: WebWorld) -> None:
    ada = await world.account(Role.DEVELOPER, "ada")
    for name in ("zebra_v1", "aardvark_v1"):
        await world.publish(ada, name)
        async with world.database.write() as session:
            row = await session.get(SubmissionRow, name)
            assert row is not None
            row.name = name.removesuffix("_v1")

    async def order(query: str) -> list[str]:
        page = (await browser(world).get(f"/?{query}")).text
        return re.findall(r'href="/submissions/(\w+)_v1"', page)

    assert await order("sort=name") == ["aardvark", "zebra"]
    assert await order("sort=newest") == ["aardvark", "zebra"]
    assert await order("sort=name&q=ZEB") == ["zebra"]
    assert await order("sort=name&page=9") == ["aardvark", "zebra"]
    assert await order("q=nobody") == []


@pytest.mark.slow
@pytest.mark.both_databases
async def test_the_feedback_viewer_filters_and_exports(world: WebWorld) -> None:
    account = await world.account(Role.DEVELOPER, "ada")
    await world.publish(account, "ada-model_v1")
    backend = await world.http(Role.BACKEND)
    for number in range(30):
        conversation = await world.open(backend, f"user-{number}")
        body = {"thumbs_up": number % 3 > 0, "text": f"opinion {number:02}"}
        await world.greet(backend, conversation)
        await backend.post(f"/conversations/{conversation}/feedback", json=body)
        world.clock.advance(1)
        await world.routing.refresh()
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    base = "/submissions/ada-model_v1/feedback"
    first = (await ada.get(base)).text
    assert len(re.findall('data-id="', first)) == 25
    assert "30 ratings" in first
    assert re.search(r"20 up.*10 down", first, re.DOTALL)
    assert re.search(r'<option value="\w+">30 ratings</option>', first)
    more = re.search(r'href="([^"]+cursor=[^"]+)">More', first)
    assert more
    second = (await ada.get(more[1].replace("&amp;", "&"))).text
    assert len(re.findall('data-id="', second)) == 5
    down = (await ada.get(f"{base}?rating=down&text=OPINION")).text
    assert len(re.findall('data-id="', down)) == 10
    assert "10 of 30 match" in down
    assert "<mark>opinion</mark> 27" in down
    exported = await ada.get(f"{base}.jsonl?rating=down")
    assert len(exported.text.splitlines()) == 10
    assert "attachment" in exported.headers["content-disposition"]
    assert exported.headers["cache-control"] == "no-store"
    assert {name.lower() for name in SECURITY_HEADERS} <= set(exported.headers)
    one = re.search(r'data-id="(fb_\w+)"', down)
    assert one
    assert "opinion 27" in (await ada.get(f"{base}/{one[1]}")).text
    assert (await ada.get(f"{base}?since=2027-01-01")).text.count("data-id=") == 0
    for wrong in (
        "rating=maybe",
        "since=today",
        "length=many",
        "up_to=-1",
        "length=5&up_to=4",
        "order=best",
        "cursor=nonsense",
    ):
        assert (await ada.get(f"{base}?{wrong}")).status_code == 422


async def test_a_key_is_made_shown_once_and_revoked_by_pages(world: WebWorld) -> None:
    root = await signed_in(world, Role.ADMIN, "root")
    made = await send(root, "/admin/keys", {"name": "ada", "role": "developer"})
    found = re.search(r"gk_\w+", made.text)
    assert found
    assert made.headers["cache-control"] == "no-store"
    assert found[0] not in (await root.get("/admin/keys")).text
    key_id = found[0].split("_")[1]
    assert (await send(root, f"/admin/keys/{key_id}/revoke")).status_code == 303
    assert (await browser(world).post("/signin", data={"key": found[0]})).status_code == 401
    assert (await root.get("/admin/keys/none/revoke")).status_code == 404
    for fields in ({"name": "a b", "role": "developer"}, {"name": "ada", "role": "backend"}):
        wrong = await send(root, "/admin/keys", fields)
        assert wrong.status_code in (409, 422)
        assert 'role="alert"' in wrong.text


async def test_competitions_are_made_changed_and_frozen_by_pages(world: WebWorld) -> None:
    root = await signed_in(world, Role.ADMIN, "root")
    fields = {"id": "spring", "name": "Spring", "starts_at": "2026-01-01T00:00", "per_developer": "2"}  # fmt: skip
    assert (await send(root, "/admin/competitions", fields)).status_code == 303
    changed = {**fields, "name": "Spring Cup", "ends_at": "2026-03-01T12:00"}
    assert (await send(root, "/admin/competitions/spring", changed)).status_code == 303
    found = await world.competitions.find("spring")
    assert (found.name, found.entry.per_developer) == ("Spring Cup", 2)
    backwards = {**fields, "ends_at": "2025-01-01T00:00"}
    wrong = await send(root, "/admin/competitions/spring", backwards)
    assert (wrong.status_code, 'id="ends_at-problem"' in wrong.text) == (422, True)
    wrong = await send(root, "/admin/competitions", {**fields, "id": "Not A Slug"})
    assert (wrong.status_code, 'id="id-problem"' in wrong.text) == (422, True)
    assert (await send(root, "/admin/competitions/spring/freeze")).status_code == 303
    assert (await world.competitions.find("spring")).frozen_at is not None
    late = await send(root, "/admin/competitions/spring", fields)
    assert (late.status_code, "spring is frozen" in late.text) == (409, True)


async def test_a_user_is_erased_only_when_named_twice(world: WebWorld) -> None:
    root = await signed_in(world, Role.ADMIN, "root")
    await world.publish(await world.developer("ada"))
    await world.open(await world.http(Role.BACKEND), "alice")
    once = await send(root, "/admin/users/erase", {"user_id": "alice", "again": "alise"})
    assert (once.status_code, (await world.audit.list(10)).items) == (422, [])
    twice = {"user_id": "alice", "again": "alice"}
    assert (
        "1 conversation, 0 messages, 0 ratings"
        in (await send(root, "/admin/users/erase", twice)).text
    )
    typo = await send(root, "/admin/users/erase", {**twice, "backend": "nobody"})
    assert (typo.status_code, 'value="alice"' in typo.text) == (422, True)
    again = await send(root, "/admin/users/erase", twice)
    assert "No conversation of a user with that id was found" in again.text
    assert {(one.account, one.action) for one in (await world.audit.list(10)).items} == {
        ("root", "erase user")
    }


async def test_assets_are_kept_for_ever_under_their_version_only(world: WebWorld) -> None:
    client = browser(world)
    page = (await client.get("/")).text
    for path in re.findall(r'(?:href|src)="(/static/[^"]+)"', page):
        answer = await client.get(path)
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
    old = await client.get("/static/guanaco.css?v=old")
    assert "immutable" not in old.headers["cache-control"]
    for name in ("nothing.css", "..%2fweb.py", "%2e%2e/web.py"):
        assert (await client.get(f"/static/{name}")).status_code == 404


def api_routes(routes: object) -> Iterator[APIRoute]:
    for route in routes:  # type: ignore[attr-defined]
        if isinstance(route, APIRoute):
            yield route
        elif original := getattr(route, "original_router", None):
            yield from api_routes(original.routes)


def dependencies(dependant: Dependant) -> Iterator[object]:
    for inner in dependant.dependencies:
        yield inner.call
        yield from dependencies(inner)


async def test_pages_that_people_share_have_a_picture(world: WebWorld) -> None:
    submission_id = await world.model("Llama Bard", "ada")
    stranger = browser(world)
    bare = (await stranger.get("/")).text
    assert "og:image" not in bare, "nobody leads yet"
    assert 'og:title" content="Leaderboard"' in bare
    other = await world.model("Paper Lantern", "bob")
    for one in (submission_id, other):
        for _ in range(12):
            await world.rate(one, thumbs_up=one == submission_id)
    await world.scores.loop.run_once()
    for path, said in (
        (f"/submissions/{submission_id}", "Llama Bard by ada"),
        ("/", "Leaderboard"),
        (f"/compare?with={submission_id}&with={other}", "Llama Bard beside Paper Lantern"),
    ):
        page = (await stranger.get(path)).text
        assert f'og:title" content="{said}"' in page
        shared = re.search(r'og:url" content="http://[^/]+(/[^"]+)"', page)
        assert shared
        assert (await stranger.get(html.unescape(shared[1]))).status_code == 200
        link = re.search(r'og:image" content="http://[^/]+(/[^"]+)"', page)
        assert link
        picture = await stranger.get(html.unescape(link[1]))
        assert picture.headers["content-type"] == "image/png"
        assert picture.content.startswith(b"\x89PNG")
    assert (await stranger.get("/submissions/ada-nothing_v1/card.png")).status_code == 404


async def test_a_prompt_is_public_only_where_its_developer_says_so(world: WebWorld) -> None:
    submission_id = await world.model("Llama Bard", "ada")
    page = f"/submissions/{submission_id}"
    public, ada = browser(world), await signed_in(world, Role.DEVELOPER, "ada")
    bob = await signed_in(world, Role.DEVELOPER, "bob")
    secret = "Persona: {memory}"
    assert secret not in (await public.get(page)).text
    refused = await send(bob, f"{page}/public-page", {"show_prompt": "yes"})
    assert refused.status_code == 404
    for chosen, is_seen in (("yes", True), ("no", False)):
        sent = await send(ada, f"{page}/public-page", {"show_prompt": chosen}, page)
        assert sent.headers["location"] == f"{page}#parameters"
        assert (secret in (await public.get(page)).text) is is_seen
    over_http = await world.http(Role.DEVELOPER, "ada")
    answer = await over_http.put(f"{page}/public-page", json={"show_prompt": True})
    assert answer.json()["show_prompt"] is True
    assert secret in (await public.get(page)).text
    with_prompt = {"repo": "acme/tiny", "show_prompt": "yes"}
    assert "Show it no longer" in (await ada.get(page)).text
    made = (await send(ada, "/submissions/new", with_prompt)).headers["location"]
    assert (await over_http.get(made)).json()["show_prompt"] is True
    poet = {"kind": "poet", "template": "- {name: a, role: user, content: '{{ sea }}'}"}
    asked = {"repo": "acme/tiny", "formatter": poet | {"data": {"sea": "calm today"}}}
    sent = await over_http.post("/submissions", json=asked)
    assert sent.status_code == 202, sent.text
    assert "calm today" in (await ada.get(f"/submissions/{sent.json()['id']}")).text


async def test_pages_are_compressed_where_that_tells_no_secret(world: WebWorld) -> None:
    await world.model("Llama Bard", "ada")
    stranger, ada = browser(world), await signed_in(world, Role.DEVELOPER, "ada")
    for client, path, encoding in (
        (stranger, "/", "gzip"),
        (ada, "/", None),
        (ada, "/submissions", None),
        (stranger, world.web.assets.url("guanaco.css"), "gzip"),
        (ada, world.web.assets.url("guanaco.css"), "gzip"),
        (stranger, "/openapi.json", "gzip"),
        (stranger, "/api/v1/leaderboard", None),
    ):
        plain = await client.get(path, headers={"Accept-Encoding": "identity"})
        found = await client.get(path, headers={"Accept-Encoding": "gzip, br"})
        assert found.status_code == 200, path
        assert found.headers.get("content-encoding") == encoding, path
        assert "content-encoding" not in plain.headers
        if encoding:
            assert "Accept-Encoding" in found.headers["vary"]
            assert int(found.headers["content-length"]) < len(plain.content) / 2
        if path.startswith(("/static/", "/openapi")):
            assert found.content == plain.content


@pytest.mark.parametrize(
    ("query", "field", "sentence"),
    [
        ("since=yesterday", "since", "It is a day, like 2026-01-31."),
        ("since=2026-02-02&until=2026-02-01", "until", "This day is before the first one."),
        ("length=many", "length", "It is a number of messages, up to 10,000."),
        ("length=9&up_to=3", "up_to", "This is less than the least number."),
        ("rating=both", "rating", "It is up or down."),
    ],
)
async def test_senseless_filter_is_reported_at_its_field_and_kept(
    world: WebWorld, query: str, field: str, sentence: str
) -> None:
    submission_id = await world.model("Llama Bard", "ada")
    ada = await signed_in(world, Role.DEVELOPER, "ada")
    base = f"/submissions/{submission_id}/feedback"
    answer = await ada.get(f"{base}?text=kept+words&{query}")
    assert answer.status_code == 422
    assert f'id="{field}-problem" role="alert">{sentence}<' in answer.text
    assert f'aria-describedby="{field}-problem"' in answer.text
    assert 'value="kept words"' in answer.text
    for part in query.split("&"):
        if not part.startswith("rating"):
            assert f'value="{part.partition("=")[2]}"' in answer.text
    refused = await ada.get(f"{base}.jsonl?{query}")
    assert refused.status_code == 422
    assert sentence in refused.text


async def test_the_csv_takes_the_boards_filters_and_order(world: WebWorld) -> None:
    for name, developer in (("Zebra", "ada"), ("Aardvark", "ada"), ("Middle", "grace")):
        await world.model(name, developer)
    client = browser(world)
    answer = await client.get("/leaderboard.csv?developer=ada&sort=name&order=reverse")
    names = [line.split(",")[2] for line in answer.text.splitlines()[1:]]
    assert names == ["Zebra", "Aardvark"]
    page = (await client.get("/?developer=ada&sort=score")).text
    assert 'href="/leaderboard.csv?competition=open&sort=score&developer=ada"' in page
    for path in ("/", "/leaderboard.csv"):
        unknown = await client.get(path, params={"sweep": "zz"})
        assert unknown.status_code == 404
        assert "No variant of a sweep zz is in the competition open." in unknown.text
