from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from guanaco import errors
from guanaco.bots import BOTS
from guanaco.calls import accounts, chat, competitions, feedback, submissions, sweeps
from guanaco.calls.wire import Call, StreamCall, nothing
from guanaco.chat import Bot, Reply, Token, Turn
from guanaco.client import AsyncClient, Client
from guanaco.competitions import CompetitionRequest
from guanaco.contract import unknown_members
from guanaco.experiments import ExperimentRequest, Variant
from guanaco.plans import PlanRequest
from guanaco.recipes import RecipeOverride
from guanaco.submissions import SubmissionRequest
from guanaco.sweeps import SweepRequest
from tests.fixtures.wire import (
    NEW_WORD,
    Broken,
    Script,
    event_json,
    feedback_json,
    of_next_version,
    refused,
    reply_json,
    sse,
    submission_events,
    submission_json,
)

URL = "http://guanaco.test"
BOT = BOTS["ada"]
START = datetime(2026, 1, 1, tzinfo=UTC)
WARM, COLD = Variant(name="warm"), Variant(name="cold")

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "create_key": ("alice", "developer"),
    "revoke_key": ("k1",),
    "submit": ("org/model",),
    "submit_sweep": (SweepRequest(variants=(SubmissionRequest(repo="org/model", name="warm"),)),),
    "check": ("org/model",),
    "preview": ("id", BOT),
    "stream_preview": ("id", BOT),
    "send": ("conv_1", "hi"),
    "stream_send": ("conv_1", "hi"),
    "rate": ("conv_1", True),
    "change_rating": ("conv_1", False),
    "choose": ("conv_1", "msg_1"),
    "correct_memory": ("conv_1", "Kim has a stoat."),
    "delete_message": ("conv_1", "msg_1"),
    "edit_message": ("conv_1", "msg_1", "hi"),
    "note_metadata": ("conv_1", {"shelf": "1"}),
    "rate_message": ("conv_1", "msg_1", True),
    "withdraw_message_rating": ("conv_1", "msg_1"),
    "open_conversation": ("user-1", BOT),
    "put_competition": ("spring", CompetitionRequest(name="Spring", starts_at=START)),
    "create_experiment": (ExperimentRequest(name="heat", variants=(WARM, COLD)),),
    "change_experiment": ("heat", ExperimentRequest(name="heat", variants=(WARM, COLD))),
    "set_recipe": ("id", RecipeOverride(gpus=1)),
    "plan": (PlanRequest(model="llama-3-8b"),),
    "render_prompt": ("chatml", BOT),
    "set_alias": ("id", "champion"),
    "set_tags": ("id", ["night"]),
    "show_prompt": ("id",),
    "set_webhook": ("https://example.com/hook",),
}


MODULES = (accounts, chat, competitions, feedback, submissions, sweeps)
BESIDES = {
    "parse_reply_event",
    "feedback_page",
    "export",
}  # feedback_methods.py has more than these
CALLS: dict[str, Callable[..., Any]] = {
    name: function
    for module in MODULES
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if not name.startswith("_") and function.__module__ == module.__name__ and name not in BESIDES
}
KEYWORDS: dict[str, dict[str, Any]] = {
    "open_conversation": {"consent": True},
    "submit": {"idempotency_key": "once"},
}


def call_names() -> list[str]:
    return sorted(CALLS)


def arguments_of(name: str) -> tuple[Any, ...]:
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    parameters = inspect.signature(CALLS[name]).parameters.values()
    return ("some-id",) * any(one.kind is not inspect.Parameter.KEYWORD_ONLY for one in parameters)


def client(*answers: Any) -> tuple[Client, Script]:
    script = Script(*answers)
    return Client(URL, "key", transport=script.transport), script


def async_client(*answers: Any) -> tuple[AsyncClient, Script]:
    script = Script(*answers)
    return AsyncClient(URL, "key", transport=script.transport), script


async def exhaust(outcome: Any) -> None:
    if inspect.iscoroutine(outcome):
        await outcome
    else:
        _ = [item async for item in outcome]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from guanaco import transport

    monkeypatch.setattr(transport, "RETRY_DELAYS_S", (0.0, 0.0))
    monkeypatch.setattr(transport, "RESUME_DELAYS_S", (0.0,) * 8)


@pytest.mark.parametrize("name", call_names())
def test_every_call_is_a_documented_method_of_both_clients(name: str) -> None:
    function = CALLS[name]
    assert function.__doc__, "every call says what it gives"
    for kind in (Client, AsyncClient):
        method = getattr(kind, name)
        assert method.__doc__ == function.__doc__
        given = list(inspect.signature(method).parameters.values())[1:]
        assert given == list(inspect.signature(function).parameters.values())


@pytest.mark.parametrize("name", call_names())
async def test_both_clients_send_the_same_request(name: str) -> None:
    keywords, arguments, call = KEYWORDS.get(name, {}), arguments_of(name), CALLS[name]
    refusal = refused(errors.Forbidden("No."), 403)
    sync, sync_script = client(refusal)
    anyway, async_script = async_client(refusal)
    with pytest.raises(errors.Forbidden):
        list(getattr(sync, name)(*arguments, **keywords))
    with pytest.raises(errors.Forbidden):
        await exhaust(getattr(anyway, name)(*arguments, **keywords))
    ours, theirs = sync_script.requests[0], async_script.requests[0]
    assert (ours.method, ours.url, ours.content) == (theirs.method, theirs.url, theirs.content)
    assert ours.headers["Authorization"] == "Bearer key"
    definition = call(*arguments, **keywords)
    assert isinstance(definition, Call | StreamCall)
    assert ours.url.path == definition.path


@pytest.mark.parametrize("name", call_names())
def test_every_answer_of_the_next_version_is_read(name: str) -> None:
    call = CALLS[name](*arguments_of(name), **KEYWORDS.get(name, {}))
    if isinstance(call, StreamCall):
        return  # the two tests below
    if call.parse is nothing:
        return  # 204
    kind = call.parse.__self__.kind  # type: ignore[attr-defined]
    answer = of_next_version(TypeAdapter(kind).json_schema(mode="serialization"))
    found = call.parse(json.dumps(answer).encode())
    assert bool(list(unknown_members(found))) == (NEW_WORD in json.dumps(answer))


def test_events_of_the_next_version_are_given_with_unknown_words() -> None:
    event = event_json(1, kind="note", stage="calibrate", level="notice", mood="calm")
    guanaco, _ = client(httpx.Response(200, content=sse("note", event)))
    (found,) = guanaco.events("some-id", follow=False)
    assert (found.kind.is_unknown, found.stage, found.level) == (True, "calibrate", "notice")


def test_events_of_a_reply_that_are_not_known_are_skipped() -> None:
    events = [
        sse("token", {"text": "Hi", "mood": "calm"}),
        sse("thought", {"why": "?"}),
        sse("done", reply_json("Hi", mood="calm")),
    ]
    guanaco, _ = client(httpx.Response(200, content=b"".join(events)))
    token, reply = guanaco.stream_send("conv_1", "hi")
    assert token == Token(text="Hi")
    assert isinstance(reply, Reply)


def test_submit_sends_the_request_and_a_random_idempotency_key() -> None:
    guanaco, script = client(httpx.Response(202, json=submission_json(status="queued")))
    assert guanaco.submit("org/model", formatter="chatml").status == "queued"
    guanaco.submit("org/model")
    sent = json.loads(script.requests[0].content)
    assert sent["repo"] == "org/model"
    assert sent["formatter"]["memory_template"].startswith("<|im_start|>")
    keys = {request.headers["Idempotency-Key"] for request in script.requests}
    assert len(keys) == 2


def test_submit_repeats_under_its_key_when_the_connection_breaks() -> None:
    guanaco, script = client(httpx.ReadError("broken"), httpx.Response(202, json=submission_json()))
    guanaco.submit("org/model")
    first, second = script.requests
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]


def test_a_message_is_never_sent_twice() -> None:
    guanaco, script = client(httpx.ReadError("broken"))
    with pytest.raises(errors.ServerUnreachable):
        guanaco.send("conv_1", "hi")
    assert len(script.requests) == 1


def test_absent_server_is_named_after_three_tries() -> None:
    guanaco, script = client(httpx.ConnectError("refused"))
    with pytest.raises(errors.ServerUnreachable, match=r"guanaco\.test"):
        guanaco.me()
    assert len(script.requests) == 3


@pytest.mark.parametrize("kind", errors.error_classes().values(), ids=lambda kind: kind.code)
def test_every_error_comes_back_as_its_class(kind: type[errors.GuanacoError]) -> None:
    body = {"error": kind.code, "detail": "A sentence.", "hint": "A step."}
    guanaco, _ = client(httpx.Response(400, json=body))
    with pytest.raises(errors.GuanacoError) as caught:
        guanaco.submission("x")
    assert type(caught.value) is kind
    assert (caught.value.detail, caught.value.hint) == ("A sentence.", "A step.")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404, html="<h1>nginx</h1>"),
        httpx.Response(500, json=["no", "object"]),
        httpx.Response(400, json={"error": {"message": "OpenAI's way"}}),
        httpx.Response(307, headers={"Location": "https://elsewhere.test"}),
        httpx.Response(200, html="<h1>a router's login page</h1>"),
        httpx.Response(200, json={"not": "a submission"}),
    ],
)
def test_an_answer_that_is_not_guanacos_is_one_sentence(answer: httpx.Response) -> None:
    guanaco, _ = client(answer)
    with pytest.raises(errors.GuanacoError, match=r"guanaco\.test") as caught:
        guanaco.submission("x")
    assert caught.value.hint


@pytest.mark.parametrize("bad", ["", ".", ".."])
def test_an_id_that_would_name_another_place_is_not_sent(bad: str) -> None:
    guanaco, script = client(httpx.Response(200))
    with pytest.raises(errors.InvalidInput):
        guanaco.submission(bad)
    assert not script.requests


def test_an_id_cannot_escape_its_place_in_the_path() -> None:
    guanaco, script = client(refused(errors.SubmissionNotFound("x"), 404))
    with pytest.raises(errors.SubmissionNotFound):
        guanaco.submission("../keys?x=1@y")
    assert script.requests[0].url.raw_path == b"/api/v1/submissions/..%2Fkeys%3Fx%3D1%40y"


def test_an_id_with_a_slash_has_its_own_sentence() -> None:
    guanaco, script = client(httpx.Response(500))
    for asked, kind in (
        (lambda: guanaco.submission("org/model"), errors.SubmissionNotFound),
        (lambda: guanaco.submission("../keys?x=1"), errors.SubmissionNotFound),
        (lambda: guanaco.competition("a/b"), errors.InvalidInput),
        (lambda: guanaco.prompt_version("support", "a/b"), errors.InvalidInput),
        (lambda: guanaco.submission(None), errors.InvalidInput),  # type: ignore[arg-type]
        (lambda: guanaco.submission("\ud800"), errors.InvalidInput),
    ):
        with pytest.raises(kind):
            asked()
    assert not script.requests


PRIVATE = "Kim's diary"
WRONG: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    ("submit", (PRIVATE,), {}),
    ("submit", ("a/b",), {"kind": PRIVATE}),
    ("submit", ("a/b",), {"idempotency_key": f"é {PRIVATE}"}),
    ("submit", ("a/b",), {"idempotency_key": f"{PRIVATE}\r\nX: y"}),
    ("send", ("conv_1", ""), {}),
    ("send", ("conv_1", f"{PRIVATE} " * 2_000), {}),
    ("send", ("conv_1", None), {}),
    ("send", ("conv_1", f"{PRIVATE} \ud800"), {}),
    ("stream_send", ("conv_1", f"{PRIVATE} " * 2_000), {}),
    ("edit_message", ("conv_1", "msg_1", f"{PRIVATE} " * 2_000), {}),
    ("open_conversation", (f"{PRIVATE} " * 2_000, BOT), {"consent": True}),
    ("open_conversation", ("u", {"name": PRIVATE, "memory": 5}), {"consent": True}),
    ("rate", ("conv_1", True, f"{PRIVATE} " * 2_000), {}),
    ("feedback_page", ("x_v1",), {"rating": PRIVATE}),
    ("feedback_page", ("x_v1",), {"search": f"{PRIVATE} \ud800"}),
    ("conversation_page", (), {"external_id": f"{PRIVATE} \ud800"}),
    ("submission", ("",), {}),
)


@pytest.mark.parametrize(("method", "arguments", "more"), WRONG)
async def test_wrong_arguments_are_one_sentence_that_quotes_nobody(
    method: str, arguments: tuple[Any, ...], more: dict[str, Any]
) -> None:
    guanaco, script = client(httpx.Response(500))
    with pytest.raises(errors.InvalidInput) as caught:
        list(getattr(guanaco, method)(*arguments, **more))
    waiting, async_script = async_client(httpx.Response(500))
    outcome = getattr(waiting, method)(*arguments, **more)  # which raises nothing yet
    with pytest.raises(errors.InvalidInput) as caught_later:
        await exhaust(outcome)
    assert caught.value.detail == caught_later.value.detail
    for error in (caught.value, caught_later.value):
        logged = "".join(traceback.format_exception(error, chain=True))
        assert PRIVATE not in logged
        assert "input_value" not in logged
    assert not script.requests + async_script.requests


@pytest.mark.parametrize("model", [Bot, Turn])
def test_models_of_users_words_do_not_quote_them(model: type[BaseModel]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate({"name": [PRIVATE], "sender": PRIVATE, "content": [PRIVATE]})
    assert PRIVATE not in str(caught.value)


def test_events_go_on_where_the_connection_broke() -> None:
    guanaco, script = client(
        httpx.Response(200, stream=Broken(submission_events(1, 2) + b"id: 3\nevent: log\ndata: {")),
        httpx.ConnectError("the server restarts"),
        httpx.Response(502, text="the proxy says so too"),
        httpx.Response(200, content=submission_events(3, 4)),
    )
    assert [event.seq for event in guanaco.events("x")] == [1, 2, 3, 4]
    assert [request.headers.get("Last-Event-ID") for request in script.requests] == [
        None,
        "2",
        "2",
        "2",
    ]


def test_events_go_on_when_the_database_is_back() -> None:
    away = refused(errors.DatabaseUnavailable(), 503)
    guanaco, script = client(
        away,
        httpx.Response(200, stream=Broken(submission_events(1))),
        away,
        away,
        away,
        httpx.Response(200, content=submission_events(2)),
    )
    assert [event.seq for event in guanaco.events("x")] == [1, 2]
    assert script.requests[-1].headers["Last-Event-ID"] == "1"


async def test_events_go_on_where_the_connection_broke_in_asyncio_too() -> None:
    guanaco, script = async_client(
        httpx.Response(200, stream=Broken(submission_events(1))),
        httpx.Response(200, content=submission_events(2)),
    )
    assert [event.seq async for event in guanaco.events("x")] == [1, 2]
    assert script.requests[1].headers["Last-Event-ID"] == "1"


def test_events_give_up_on_a_server_that_stays_away() -> None:
    guanaco, script = client(
        httpx.Response(200, stream=Broken(submission_events(1))), httpx.ConnectError("gone")
    )
    with pytest.raises(errors.ServerUnreachable):
        list(guanaco.events("x"))
    assert len(script.requests) == 1 + 8


def test_refusing_server_is_not_asked_for_events_again() -> None:
    guanaco, script = client(refused(errors.SubmissionNotFound("x"), 404))
    with pytest.raises(errors.SubmissionNotFound):
        list(guanaco.events("x"))
    assert len(script.requests) == 1


def test_events_without_following_ask_for_what_is_recorded() -> None:
    guanaco, script = client(httpx.Response(200, content=submission_events(8)))
    assert [event.seq for event in guanaco.events("x", after=7, follow=False)] == [8]
    assert script.requests[0].url.query == b"follow=false"
    assert script.requests[0].headers["Last-Event-ID"] == "7"


def wait_answers() -> list[httpx.Response]:
    """The events end while the submission is still in progress: the server was stopped in good order."""
    return [
        httpx.Response(200, content=submission_events(1, 2)),
        httpx.Response(200, json=submission_json(status="checking")),
        httpx.Response(200, content=submission_events(3)),
        httpx.Response(200, json=submission_json(status="deployed")),
    ]


def test_wait_follows_events_until_the_submission_is_finished() -> None:
    guanaco, script = client(*wait_answers())
    seen: list[int] = []
    assert guanaco.wait("x", lambda event: seen.append(event.seq)).status == "deployed"
    assert seen == [1, 2, 3]
    assert script.requests[2].headers["Last-Event-ID"] == "2"


async def test_wait_does_the_same_in_asyncio() -> None:
    guanaco, _ = async_client(*wait_answers())
    seen: list[int] = []
    assert (await guanaco.wait("x", lambda event: seen.append(event.seq))).status == "deployed"
    assert seen == [1, 2, 3]


def pages() -> list[httpx.Response]:
    return [
        httpx.Response(
            200, json={"items": [feedback_json(1), feedback_json(2)], "next_cursor": "c"}
        ),
        httpx.Response(200, json={"items": [feedback_json(3)], "next_cursor": None}),
    ]


async def test_feedback_walks_through_all_pages() -> None:
    guanaco, script = client(*pages())
    assert [one.id for one in guanaco.feedback("x")] == ["fb_1", "fb_2", "fb_3"]
    assert script.requests[1].url.params["cursor"] == "c"
    anyway, _ = async_client(*pages())
    assert [one.id async for one in anyway.feedback("x")] == ["fb_1", "fb_2", "fb_3"]


def test_a_streamed_reply_is_tokens_and_then_the_reply() -> None:
    body = (
        sse("token", {"text": "Hello"})
        + sse("token", {"text": " there."})
        + sse("done", reply_json())
    )
    guanaco, script = client(httpx.Response(200, content=body))
    *tokens, reply = guanaco.stream_send("conv_1", "hi")
    assert tokens == [Token(text="Hello"), Token(text=" there.")]
    assert isinstance(reply, Reply)
    assert json.loads(script.requests[0].content) == {"content": "hi", "stream": True}


def test_an_error_within_a_stream_is_raised_as_its_class() -> None:
    body = sse("token", {"text": "Hel"}) + sse("error", errors.ModelUnavailable("x").to_wire())
    guanaco, _ = client(httpx.Response(200, content=body))
    with pytest.raises(errors.ModelUnavailable):
        list(guanaco.stream_preview("x", BOT))


@pytest.mark.parametrize("is_broken", [True, False])
async def test_a_reply_that_is_cut_off_is_no_reply(is_broken: bool) -> None:
    body = sse("token", {"text": "Hel"})

    def answer(_request: httpx.Request) -> httpx.Response:
        return (
            httpx.Response(200, stream=Broken(body))
            if is_broken
            else httpx.Response(200, content=body)
        )

    guanaco, script = client(answer)
    with pytest.raises(errors.Unavailable, match="before the reply was complete"):
        list(guanaco.stream_regenerate("conv_1"))
    assert len(script.requests) == 1
    anyway, _ = async_client(answer)
    with pytest.raises(errors.Unavailable, match="before the reply was complete"):
        _ = [item async for item in anyway.stream_regenerate("conv_1")]


async def test_clients_are_context_managers() -> None:
    script = Script(httpx.Response(200, json={"name": "alice", "role": "developer"}))
    with Client(URL, "key", transport=script.transport) as guanaco:
        assert guanaco.me().name == "alice"
    async with AsyncClient(URL, "key", transport=script.transport) as anyway:
        assert (await anyway.me()).name == "alice"


def test_local_server_is_reached_without_the_environments_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from guanaco.transport import Address

    assert not Address("http://127.0.0.1:8300", None).options()["trust_env"]
    assert Address("https://guanaco.example.com", None).options()["trust_env"]
