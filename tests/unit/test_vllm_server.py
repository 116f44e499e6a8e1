from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from guanaco.submissions import GenerationParams
from guanaco_server.deployments.model_server import (
    Chunk,
    Generation,
    ModelServerFault,
    NotANumber,
    ServerLoad,
)
from guanaco_server.deployments.vllm_server import VllmServer

ENDPOINT = "http://127.0.0.1:1"
Answer = Callable[[httpx.Request], httpx.Response]


def generation(**params: Any) -> Generation:
    return Generation("m_v1", "Hi", GenerationParams(**params))


def events(*data: object) -> bytes:
    return b"".join(
        f"data: {item if isinstance(item, str) else json.dumps(item)}\n\n".encode() for item in data
    )


def piece(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[VllmServer]:
    vllm = VllmServer(transport=httpx.MockTransport(answer))
    yield vllm
    await vllm.close()


async def chunks(answer: Answer, wanted: Generation | None = None) -> list[Chunk]:
    async with server(answer) as vllm:
        return [chunk async for chunk in vllm.generate(ENDPOINT, wanted or generation())]


async def fault(content: bytes, status: int = 200) -> str:
    with pytest.raises(ModelServerFault) as caught:
        await chunks(lambda _: httpx.Response(status, content=content))
    return str(caught.value)


async def test_a_reply_comes_in_pieces_and_ends_with_its_token_counts() -> None:
    body = events(piece("Hello"), piece(" you", "stop"), USAGE, "[DONE]")
    assert await chunks(lambda _: httpx.Response(200, content=body)) == [
        Chunk("Hello"),
        Chunk(" you"),
        Chunk("", "stop", 3, 2),
    ]


async def test_tokens_come_with_their_logprobs_and_nan_as_nan() -> None:
    asked: list[dict[str, Any]] = []
    first = piece("Hello")
    first["choices"][0]["logprobs"] = {"tokens": ["Hel", "lo"], "token_logprobs": [-0.5, None]}

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return httpx.Response(200, content=events(first, piece("", "stop"), USAGE))

    greedy = GenerationParams(temperature=0)
    received = await chunks(answer, Generation("m_v1", "Hi", greedy, with_tokens=True))
    assert [token.text for token in received[0].tokens] == ["Hel", "lo"]
    assert received[0].tokens[0].logprob == -0.5
    assert math.isnan(received[0].tokens[1].logprob)
    assert asked[0]["logprobs"] == 0


NAN_REFUSED = {"error": {"message": "Out of range float values are not JSON compliant"}}


async def test_a_refusal_to_write_nan_is_told_apart() -> None:
    with pytest.raises(NotANumber, match="status 400: Out of range float"):
        await chunks(lambda _: httpx.Response(400, json=NAN_REFUSED))


async def test_a_text_is_scored_token_by_token() -> None:
    scores = [None, {"7": {"logprob": -1.5, "rank": 3}}, {"9": {"logprob": None}}]
    body = {"choices": [{"index": 0, "text": "x", "prompt_logprobs": scores}]}
    async with server(lambda _: httpx.Response(200, json=body)) as vllm:
        first, second = await vllm.score(ENDPOINT, "m_v1", "one two three")
    assert first == -1.5
    assert math.isnan(second)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (400, NAN_REFUSED, "Out of range float"),
        (200, {"choices": []}, "no completion"),
        (200, {"choices": [{"text": "x"}]}, "no completion"),
        (200, {"choices": [{"prompt_logprobs": [None]}]}, "no completion"),
        (200, {"choices": [{"prompt_logprobs": [None, {}]}]}, "no completion"),
    ],
)
async def test_a_text_that_is_not_scored_is_a_fault(
    status: int, body: dict[str, Any], says: str
) -> None:
    async with server(lambda _: httpx.Response(status, json=body)) as vllm:
        with pytest.raises(ModelServerFault, match=says):
            await vllm.score(ENDPOINT, "m_v1", "one two three")


async def test_every_generation_parameter_reaches_vllm() -> None:
    asked: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return httpx.Response(200, content=events(piece("x", "length"), USAGE))

    params = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.4,
    }
    await chunks(answer, generation(**params, stopping_words=["\n", "Bob:"], max_output_tokens=9))
    assert asked == [
        {
            **params,
            "top_k": -1,
            "model": "m_v1",
            "prompt": "Hi",
            "max_tokens": 9,
            "stop": ["\n", "Bob:"],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


async def test_of_several_candidates_the_one_with_the_highest_mean_logprob_is_given() -> None:
    def candidate(text: str, *logprobs: float) -> dict[str, Any]:
        return {"text": text, "finish_reason": "stop", "logprobs": {"token_logprobs": logprobs}}

    asked: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        choices = [
            candidate("short", -1.5),
            candidate("good", -1.0, -1.2, -0.9),
            candidate("bad", -3.0),
        ]
        return httpx.Response(200, json={"choices": choices, "usage": USAGE["usage"]})

    assert await chunks(answer, generation(best_of=3)) == [Chunk("good", "stop", 3, 2)]
    assert asked[0]["n"] == 3
    assert "stream" not in asked[0]


async def test_greedy_candidates_would_all_be_the_same_so_one_is_asked_for() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert "n" not in json.loads(request.content)
        return httpx.Response(200, content=events(piece("x", "stop"), USAGE))

    assert (await chunks(answer, generation(best_of=4, temperature=0)))[-1].finish_reason == "stop"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(events(piece("Hel")), id="no-end"),
        pytest.param(events(piece("Hel"), "[DONE]"), id="no-finish-reason"),
        pytest.param(events(piece("Hello", "stop"), "[DONE]"), id="no-usage"),
    ],
)
async def test_a_reply_that_breaks_off_is_a_fault(body: bytes) -> None:
    assert await fault(body) == "The model server broke off before the reply was complete."


@pytest.mark.parametrize(
    "data",
    [
        "{not json",
        [],
        3,
        {"choices": ["text"]},
        {"choices": "text"},
        {"choices": [{}]},
        {"choices": [{"text": None}]},
    ],
)
async def test_garbage_is_a_fault(data: object) -> None:
    assert (await fault(events(data))).startswith(
        "The model server sent something that is no completion"
    )


async def test_an_error_in_the_middle_of_a_stream_is_told() -> None:
    body = events(piece("Hel"), {"error": {"message": "engine is dead", "code": 500}})
    assert await fault(body) == "The model server failed: engine is dead"


async def test_a_refusal_says_why() -> None:
    body = json.dumps({"error": {"message": "the prompt is too long"}}).encode()
    assert (
        await fault(body, 400)
        == "The model server answered with status 400: the prompt is too long"
    )
    assert await fault(b"<html>", 502) == "The model server answered with status 502."


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            httpx.ConnectError("refused"),
            "The model server cannot be reached or broke off: refused.",
        ),
        (httpx.ReadTimeout("slow"), "The model server fell silent."),
    ],
)
async def test_a_transport_error_is_a_fault(error: httpx.HTTPError, told: str) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(ModelServerFault, match=told):
        await chunks(answer)


async def test_closing_the_iterator_closes_the_connection() -> None:
    class Endless(httpx.AsyncByteStream):
        is_closed = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield events(piece("more "))

        async def aclose(self) -> None:
            self.is_closed = True

    stream = Endless()
    async with server(lambda _: httpx.Response(200, stream=stream)) as vllm:
        reply = vllm.generate(ENDPOINT, generation())
        assert await anext(reply) == Chunk("more ")
        await reply.aclose()
    assert stream.is_closed


@pytest.mark.parametrize(("status", "is_healthy"), [(200, True), (503, False)])
async def test_health_is_the_status_of_the_health_page(status: int, is_healthy: bool) -> None:
    async with server(lambda _: httpx.Response(status)) as vllm:
        assert await vllm.is_healthy(ENDPOINT) is is_healthy


async def test_a_server_that_cannot_be_reached_is_not_healthy() -> None:
    def unreachable(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with server(unreachable) as vllm:
        assert not await vllm.is_healthy(ENDPOINT)


async def test_the_load_is_read_from_the_metrics_page() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/metrics"
        return httpx.Response(
            200, text="vllm:num_requests_running 2.0\nvllm:num_requests_waiting 1.0\n"
        )

    async with server(answer) as vllm:
        assert await vllm.load(ENDPOINT) == ServerLoad(running=2, waiting=1)


async def test_a_load_that_is_refused_is_a_fault() -> None:
    async with server(lambda _: httpx.Response(404)) as vllm:
        with pytest.raises(ModelServerFault, match="status 404"):
            await vllm.load(ENDPOINT)
