"""Tests what vLLM answers whole: scores, health, load."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from guanaco.submissions import GenerationParams
from guanaco_server.deployments.model_servers.model_server import (
    Generation,
    ModelServerFault,
    ServerLoad,
)
from guanaco_server.deployments.model_servers.vllm import VllmServer
from tests.fixtures.vllm_socket import ENDPOINT, NAN_REFUSED, serving

pytestmark = pytest.mark.slow


async def test_a_text_is_scored_token_by_token() -> None:
    scores = [None, {"7": {"logprob": -1.5, "rank": 3}}, {"9": {"logprob": None}}]
    body = {"choices": [{"index": 0, "text": "x", "prompt_logprobs": scores}]}
    async with serving(lambda _: httpx.Response(200, json=body)) as (vllm, endpoint):
        first, second = await vllm.score(endpoint, "m_v1", "one two three")
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
    async with serving(lambda _: httpx.Response(status, json=body)) as (vllm, endpoint):
        with pytest.raises(ModelServerFault, match=says):
            await vllm.score(endpoint, "m_v1", "one two three")


@pytest.mark.parametrize("status", [200, 400])
async def test_an_answer_nested_without_end_is_a_fault(status: int) -> None:
    nested = b'{"choices": ' + b"[" * 200_000
    async with serving(lambda _: httpx.Response(status, content=nested)) as (vllm, endpoint):
        with pytest.raises(ModelServerFault):
            await vllm.score(endpoint, "m_v1", "one two three")


@pytest.mark.parametrize("line", [b'{"error": ' + b"[" * 60_000, b"[" * 60_000])
async def test_a_stream_nested_without_end_is_a_fault(line: bytes) -> None:
    content = b"data: " + line + b"\n\ndata: [DONE]\n\n"
    async with serving(lambda _: httpx.Response(200, content=content)) as (vllm, endpoint):
        with pytest.raises(ModelServerFault):
            async for _ in vllm.generate(endpoint, Generation("m_v1", "hello", GenerationParams())):
                pass


async def test_candidates_are_scored_in_one_request_cut_from_the_left() -> None:
    asked: list[dict[str, Any]] = []
    data = [{"index": 0, "probs": [1.5]}, {"index": 1, "probs": [-2]}]

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append({"path": request.url.path, **json.loads(request.content)})
        return httpx.Response(200, json={"data": data})

    async with serving(answer) as (vllm, endpoint):
        assert await vllm.classify(endpoint, "judge_v1", ["a", "b"], "ada's") == ((1.5,), (-2.0,))
    assert asked == [
        {
            "path": "/classify",
            "model": "judge_v1",
            "cache_salt": "ada's",
            "input": ["a", "b"],
            "use_activation": False,
            "truncate_prompt_tokens": -1,
            "truncation_side": "left",
        }
    ]


@pytest.mark.parametrize(("status", "is_healthy"), [(200, True), (503, False)])
async def test_health_is_the_status_of_the_health_page(status: int, is_healthy: bool) -> None:
    async with serving(lambda _: httpx.Response(status)) as (vllm, endpoint):
        assert await vllm.is_healthy(endpoint) is is_healthy


async def test_a_server_that_cannot_be_reached_is_not_healthy() -> None:
    vllm = VllmServer()
    assert not await vllm.is_healthy(ENDPOINT)
    await vllm.close()


async def test_the_load_is_read_from_the_metrics_page() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/metrics"
        return httpx.Response(
            200, text="vllm:num_requests_running 2.0\nvllm:num_requests_waiting 1.0\n"
        )

    async with serving(answer) as (vllm, endpoint):
        assert await vllm.load(endpoint) == ServerLoad(running=2, waiting=1)


async def test_a_load_that_is_refused_is_a_fault() -> None:
    async with serving(lambda _: httpx.Response(404)) as (vllm, endpoint):
        with pytest.raises(ModelServerFault, match="status 404"):
            await vllm.load(endpoint)


async def test_endless_answer_is_read_up_to_its_limit() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65_536

    async with serving(lambda _: httpx.Response(200, content=endless())) as (vllm, endpoint):
        for asked in (
            vllm.candidates(endpoint, Generation("m_v1", "Hi", GenerationParams(best_of=2))),
            vllm.classify(endpoint, "judge_v1", ["a"], ""),
            vllm.score(endpoint, "m_v1", "one two"),
            vllm.load(endpoint),
        ):
            with pytest.raises(ModelServerFault, match="its answer is too long"):
                await asked
        assert not await vllm.is_healthy(endpoint)
