"""Traces, as an OTLP receiver gets them: one tree a request, nothing of what was said, and no turn that waits for them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest

from guanaco.accounts import Role
from guanaco_server.assembly.adapters import build_tracing
from guanaco_server.database.database import Database
from guanaco_server.observability.otlp import QUEUE_SPANS
from guanaco_server.observability.scope import request_ids
from guanaco_server.settings import Settings
from tests.fixtures.otlp_receiver import OtlpReceiver, ReceivedSpan, receiving
from tests.fixtures.ports import free_port
from tests.fixtures.vllm_socket import serving
from tests.fixtures.world import World

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
APP = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
SAMPLED = 1
SAID, ANSWERED, USER = "Whose lighthouse is this?", "Nobody remembers.", "user-7f3a"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with receiving() as receiver:
        yield receiver


class ModelServer:
    """vLLM's side: what each request told of its trace."""

    def __init__(self) -> None:
        self.parents: list[str | None] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.parents.append(request.headers.get("traceparent"))
        details = {"cached_tokens": 3}
        events = (
            {"choices": [{"text": ANSWERED, "finish_reason": "stop"}]},
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 9,
                    "completion_tokens": 2,
                    "prompt_tokens_details": details,
                },
            },
        )
        lines = [*map(json.dumps, events), "[DONE]"]
        return httpx.Response(200, text="".join(f"data: {line}\n\n" for line in lines))


@asynccontextmanager
async def conversation(
    database: Database, endpoint: str, ratio: float = 0.0
) -> AsyncIterator[tuple[httpx.AsyncClient, str, ModelServer, World]]:
    """A conversation on a platform that sends its traces to ``endpoint``."""
    model = ModelServer()
    async with serving(model.answer) as (vllm, address):
        world = World(database, model_server=vllm, otlp_endpoint=endpoint, trace_sample_ratio=ratio)
        name = await world.publish(await world.account(Role.DEVELOPER, "ada"))
        world.deployments.note_replicas(name, (address,))
        async with await world.http(Role.BACKEND, "app") as http:
            yield http, f"/conversations/{await world.open(http, USER)}/messages", model, world
        await world.adapters.tracing.close()


def roots(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
    return [span for span in spans if span.parent_id in ("", PARENT)]


async def test_turn_is_one_trace_from_app_to_model_server(
    database: Database, receiver: OtlpReceiver
) -> None:
    async with conversation(database, receiver.url) as (http, path, model, _):
        answer = await http.post(path, json={"content": SAID}, headers=APP)
        assert answer.json()["content"] == ANSWERED
        assert answer.headers["x-trace-id"] == answer.headers["x-request-id"] == TRACE
    spans = receiver.spans
    assert {span.trace_id for span in spans} == {TRACE}
    (root,) = roots(spans)
    assert root.parent_id == PARENT
    assert root.name == "POST /api/v1/conversations/{conversation_id}/messages"
    assert root.attributes["http.response.status_code"] == 200
    steps = {span.name: span for span in spans if span is not root}
    assert {span.parent_id for span in steps.values()} == {root.span_id}
    assert set(steps) >= {
        "claim the turn",
        "render the prompt",
        "wait for a place",
        "model server",
        "store the turn",
        "database: write",
    }
    asked = steps["model server"]
    assert model.parents == [f"00-{TRACE}-{asked.span_id}-01"]
    assert asked.events == ("first token",)
    assert asked.attributes == {
        "guanaco.submission": "acme-tiny_v1",
        "server.address": "127.0.0.1",
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
    }
    for span in spans:
        assert root.begin_ns <= span.begin_ns <= span.end_ns <= root.end_ns


async def test_no_span_tells_what_was_said_or_by_whom(
    database: Database, receiver: OtlpReceiver
) -> None:
    async with conversation(database, receiver.url, ratio=1) as (http, path, _, _):
        key = http.headers["authorization"].partition(" ")[2]
        await http.post(path, json={"content": SAID, "stream": True})
        await http.post(path, json={"content": ""})
        await http.get(path.removesuffix("/messages"), params={"user_id": USER})
        await http.get("/conversations/conv_none", headers={"X-Request-ID": USER})
    assert len(roots(receiver.spans)) == 5, "with the one that opened the conversation"
    sent = b"".join(receiver.bodies)
    for secret in (SAID, ANSWERED, USER, key, "conv_none", path.split("/")[2], "Nia"):
        assert secret.encode() not in sent


async def test_unsampled_trace_is_not_sent_and_the_server_knows(
    database: Database, receiver: OtlpReceiver
) -> None:
    async with conversation(database, receiver.url) as (http, path, model, _):
        answer = await http.post(path, json={"content": SAID})
        refused = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        await http.post(path, json={"content": "And now?"}, headers=refused)
    assert receiver.spans == []
    own, given = [str(parent).split("-") for parent in model.parents]
    assert own[1] == answer.headers["x-trace-id"]
    assert given[1] == TRACE
    assert [int(parent[3], 16) & SAMPLED for parent in (own, given)] == [0, 0]


async def test_other_requests_are_traced_and_probes_are_not(
    database: Database, receiver: OtlpReceiver
) -> None:
    async with conversation(database, receiver.url) as (http, _, _, world):
        await http.get("/leaderboard", headers=APP)
        async with world.http_with(APP) as stranger:
            await stranger.get("http://guanaco/healthz")
            refused = await stranger.get("/submissions")
            assert (refused.status_code, refused.headers["x-trace-id"]) == (401, TRACE)
    names = [root.name for root in roots(receiver.spans)]
    assert sorted(names) == ["GET /api/v1/leaderboard", "GET /api/v1/submissions"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nobody listens", "never answers", "refuses"])
async def test_a_receiver_that_is_away_fails_no_turn(
    database: Database, receiver: OtlpReceiver, kind: str
) -> None:
    endpoint = receiver.url
    if kind == "nobody listens":
        endpoint = f"http://127.0.0.1:{free_port()}"
    elif kind == "never answers":
        receiver.may_answer.clear()
    else:
        receiver.status = 503
    async with conversation(database, endpoint, ratio=1) as (http, path, _, _):
        for number in range(20):
            answer = await http.post(path, json={"content": f"{SAID} {number}"})
            assert answer.status_code == 200


@pytest.mark.slow
async def test_a_full_queue_drops_spans_and_holds_up_nobody(receiver: OtlpReceiver) -> None:
    receiver.may_answer.clear()
    tracing = build_tracing(Settings(otlp_endpoint=receiver.url, trace_sample_ratio=1))
    for _ in range(3 * QUEUE_SPANS):
        request = tracing.begin(request_ids(""), "GET")
        assert request is not None
        request.end("/", 200)
    receiver.may_answer.set()
    await tracing.close()
    assert 0 < len(receiver.spans) < 2 * QUEUE_SPANS
