"""The model server port over vLLM's HTTP API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec

from guanaco_server.deployments.model_server import (
    Candidates,
    Chunk,
    Generation,
    ModelServerFault,
    ServerLoad,
)
from guanaco_server.deployments.upstream import Upstream, UpstreamError
from guanaco_server.deployments.vllm_metrics import read_load
from guanaco_server.deployments.vllm_stream import StreamReader
from guanaco_server.deployments.vllm_wire import (
    candidates_body,
    classify_body,
    read_candidates,
    read_logits,
    read_prompt_logprobs,
    refusal,
    request_body,
    score_body,
)

CONNECT_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 3.0  # vLLM answers in milliseconds unless it hangs
MAX_ANSWER_BYTES = 8 * 1024**2


class VllmServer:
    """Replies come through our own client, whatever else is asked through httpx. Callers have their own deadlines for replies."""

    def __init__(
        self, read_timeout_s: float = 120.0, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(CONNECT_TIMEOUT_S, read=read_timeout_s),
            transport=transport,
            trust_env=False,  # model servers are ours: never through a proxy
        )
        self._upstream = Upstream(CONNECT_TIMEOUT_S)

    async def is_healthy(self, endpoint: str) -> bool:
        try:
            answer = await self._client.get(f"{endpoint}/health", timeout=HEALTH_TIMEOUT_S)
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK

    async def generate(self, endpoint: str, generation: Generation) -> AsyncGenerator[Chunk, None]:
        try:
            answer = await self._upstream.post(  # the body is not kept while the reply comes
                endpoint, "/v1/completions", msgspec.json.encode(request_body(generation))
            )
            try:
                if answer.status != httpx.codes.OK:
                    raise refusal(answer.status, await answer.read_all(MAX_ANSWER_BYTES))
                if generation.candidate_count > 1:
                    found = read_candidates(await answer.read_all(MAX_ANSWER_BYTES))
                    yield found.chunk(found.best())
                    return
                reader = StreamReader(generation.params.max_output_tokens)
                while data := await answer.read():
                    chunk = reader.feed(data)
                    if chunk is None:
                        continue
                    if chunk.finish_reason is not None:
                        answer.leave()
                        yield chunk
                        return
                    yield chunk
                raise reader.broken_off()
            finally:
                answer.close()
        except UpstreamError as error:
            raise ModelServerFault(
                f"The model server cannot be reached or broke off: {error}."
            ) from None

    async def candidates(self, endpoint: str, generation: Generation) -> Candidates:
        url = f"{endpoint}/v1/completions"
        return read_candidates(await self._post(url, candidates_body(generation)))

    async def classify(
        self, endpoint: str, model: str, texts: Sequence[str]
    ) -> tuple[tuple[float, ...], ...]:
        body = await self._post(f"{endpoint}/classify", classify_body(model, texts))
        return read_logits(body, len(texts))

    async def score(self, endpoint: str, model: str, text: str) -> tuple[float, ...]:
        body = await self._post(f"{endpoint}/v1/completions", score_body(model, text))
        return read_prompt_logprobs(body)

    async def load(self, endpoint: str) -> ServerLoad:
        with _translated():
            answer = await self._client.get(f"{endpoint}/metrics", timeout=HEALTH_TIMEOUT_S)
        if answer.status_code != httpx.codes.OK:
            raise refusal(answer.status_code, answer.content)
        return read_load(answer.text)

    async def close(self) -> None:
        await self._upstream.close()
        await self._client.aclose()

    async def _post(self, url: str, body: dict[str, Any]) -> bytes:
        with _translated():
            answer = await self._client.post(url, json=body)
        if answer.status_code != httpx.codes.OK:
            raise refusal(answer.status_code, answer.content)
        return answer.content


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException:
        raise ModelServerFault("The model server fell silent.") from None
    except httpx.HTTPError as error:
        raise ModelServerFault(
            f"The model server cannot be reached or broke off: {error or type(error).__name__}."
        ) from None
