from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from guanaco.submissions import GenerationParams
from guanaco_server.deployments.model_servers import upstream
from guanaco_server.deployments.model_servers.model_server import (
    CannotSleep,
    Chunk,
    Generation,
    ModelServerFault,
    NotANumber,
    ServerBusy,
    SleepLevel,
    SleepOrder,
)
from guanaco_server.deployments.model_servers.vllm import VllmServer
from guanaco_server.deployments.model_servers.vllm_protocol import StreamReader
from guanaco_server.formats.control import ADAPTERS_HEADER, ARTIFACT_HEADER
from guanaco_server.runtime.waiting import happens
from tests.fixtures.vllm_socket import ENDPOINT, NAN_REFUSED, Answer, serving
from tests.fixtures.world import eventually


def generation(**params: Any) -> Generation:
    return Generation("m_v1", "Hi", GenerationParams(**params))


def events(*data: object) -> bytes:
    return b"".join(
        f"data: {item if isinstance(item, str) else json.dumps(item)}\n\n".encode() for item in data
    )


def piece(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


async def chunks(answer: Answer, wanted: Generation | None = None) -> list[Chunk]:
    async with serving(answer) as (vllm, endpoint):
        return [chunk async for chunk in vllm.generate(endpoint, wanted or generation())]


async def fault(content: bytes, status: int = 200) -> str:
    with pytest.raises(ModelServerFault) as caught:
        await chunks(lambda _: httpx.Response(status, content=content))
    return str(caught.value)


async def test_reply_comes_in_pieces_and_ends_with_token_counts() -> None:
    body = events(piece("Hello"), piece(" you", "stop"), USAGE, "[DONE]")
    assert await chunks(lambda _: httpx.Response(200, content=body)) == [
        Chunk(("Hello", " you"), "stop", 3, 2)
    ]


async def test_separate_pieces_stay_separate_even_within_a_character() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        whole = events(piece("Hä"), piece("llo", "stop"), USAGE).replace(b"\\u00e4", "ä".encode())
        for cut in range(len(whole)):
            yield whole[cut : cut + 1]

    received = await chunks(lambda _: httpx.Response(200, content=pieces()))
    assert "".join(chunk.text for chunk in received) == "Hällo"
    assert received[-1].finish_reason == "stop"


async def test_a_server_that_counts_no_tokens_has_its_pieces_counted() -> None:
    body = events(piece("Hello"), piece(" you"), piece("", "stop"), "[DONE]")
    received = await chunks(lambda _: httpx.Response(200, content=body))
    assert received == [Chunk(("Hello", " you"), "stop", 0, 2)]


async def test_a_server_that_does_not_stop_is_a_fault() -> None:
    body = events(*[piece("more ")] * 200)
    assert await fault(body) == "The model server goes on beyond the tokens it was asked for."


async def test_half_a_character_is_a_fault() -> None:
    body = b'data: {"choices": [{"index": 0, "text": "H\xc3"}]}\n\n'
    assert (await fault(body)).startswith("The model server sent something that is no completion")


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


def test_tokens_without_text_are_not_lost_when_alone() -> None:
    silent = piece("")
    silent["choices"][0]["logprobs"] = {"tokens": [""], "token_logprobs": [None]}
    chunk = StreamReader(max_output_tokens=16).feed(events(silent))
    assert chunk is not None
    assert [math.isnan(token.logprob) for token in chunk.tokens] == [True]


async def test_a_seed_is_passed_on_where_one_was_given() -> None:
    asked: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return httpx.Response(200, content=events(piece("x", "stop"), USAGE))

    for seed in (None, 7):
        await chunks(answer, Generation("m_v1", "Hi", GenerationParams(), seed=seed))
    assert "seed" not in asked[0]
    assert asked[1]["seed"] == 7


async def test_a_refusal_to_write_nan_is_told_apart() -> None:
    with pytest.raises(NotANumber, match="status 400: Out of range float"):
        await chunks(lambda _: httpx.Response(400, json=NAN_REFUSED))


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


async def test_candidate_with_the_highest_mean_logprob_is_chosen() -> None:
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

    assert await chunks(answer, generation(best_of=3)) == [Chunk(("good",), "stop", 3, 2)]
    assert asked[0]["n"] == 3
    assert "stream" not in asked[0]


async def test_greedy_sampling_asks_for_one_candidate() -> None:
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
        piece("half a character: \ud800"),
        piece("x", "a reason that is longer than the column of the database"),
        piece("x", "st\x00op"),
        {"choices": [], "usage": {"prompt_tokens": 3_000_000_000, "completion_tokens": 2}},
        {"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 2}},
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


async def test_a_server_that_is_not_there_is_a_fault() -> None:
    vllm = VllmServer()
    with pytest.raises(ModelServerFault, match="cannot be reached or broke off"):
        await anext(vllm.generate(ENDPOINT, generation()))


async def test_closing_the_iterator_closes_the_connection() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        event = events(piece("more "))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await reader.read()  # the request, and then until the other side hangs up
        writer.close()
        closed.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        vllm = VllmServer()
        reply = vllm.generate(f"http://{host}:{port}", generation())
        assert (await anext(reply)).text == "more "
        await reply.aclose()
        assert await happens(30, closed)
        await vllm.close()


async def test_closing_closes_also_a_connection_whose_answer_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reply is whole, but its answer's last chunk does not come."""
    monkeypatch.setattr(upstream, "LEFTOVER_S", 3_600)
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = events(piece("Hello", "stop"), USAGE)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n" % (len(said), said))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        closed.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        vllm = VllmServer()
        replies = vllm.generate(f"http://{host}:{port}", generation())
        assert [chunk.text async for chunk in replies] == ["Hello"]
        await vllm.close()
        assert await happens(30, closed)


async def test_health_page_names_what_is_held_and_is_bounded() -> None:
    held = "a" * 64

    def health(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={ARTIFACT_HEADER: held, ADAPTERS_HEADER: "one,two"})

    async with serving(health) as (vllm, endpoint):
        assert await vllm.is_healthy(endpoint)
        assert await vllm.held_artifact(endpoint) == held
        assert await vllm.held_adapters(endpoint) == frozenset({"one", "two"})
    held *= 2_000
    async with serving(health) as (vllm, endpoint):
        assert not await vllm.is_healthy(endpoint)


@pytest.mark.parametrize(
    ("status", "error"),
    [(409, CannotSleep), (404, CannotSleep), (503, ServerBusy), (500, ModelServerFault)],
)
async def test_server_that_does_not_sleep_says_why(
    status: int, error: type[ModelServerFault]
) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(status, json={"error": {"message": "No."}})

    order = SleepOrder(SleepLevel.KEEPS_WEIGHTS, "ab" * 32, "secret")
    async with serving(answer) as (vllm, endpoint):
        with pytest.raises(ModelServerFault) as caught:
            await vllm.sleep(endpoint, order)
    assert type(caught.value) is error
    wanted = {"level": 1, "artifact": "ab" * 32, "drain_s": 5.0}
    assert json.loads(asked[0].content) == wanted
    assert asked[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("is_apart", [False, True])
async def test_a_connection_is_kept_for_the_next_reply(is_apart: bool) -> None:
    """It is kept whether the reply's end comes with its last text or after it."""
    connections, closed = 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                said = events(piece("Hello", "stop"), USAGE)
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                writer.write(b"%x\r\n%b\r\n" % (len(said), said))
                await asyncio.sleep(0.02 * is_apart)
                end = events("[DONE]")
                writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))
        writer.close()
        await writer.wait_closed()
        closed.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        vllm = VllmServer()

        async def is_kept() -> bool:
            return any(vllm._upstream._idle.values())

        for _ in range(3):
            replies = vllm.generate(f"http://{host}:{port}", generation())
            assert [chunk.text async for chunk in replies] == ["Hello"]
            await eventually(is_kept)
        await vllm.close()
        await closed.wait()
    assert connections == 1
