"""The model server port over vLLM's HTTP API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import msgspec

from guanaco_server.deployments.model_servers.model_server import (
    AdapterRefused,
    Candidates,
    CannotSleep,
    Chunk,
    Generation,
    ModelServerFault,
    ServerBusy,
    ServerLoad,
    SleepOrder,
    SwapOrder,
)
from guanaco_server.deployments.model_servers.upstream import Upstream, UpstreamError
from guanaco_server.deployments.model_servers.vllm_protocol import (
    StreamReader,
    artifact_of,
    candidates_body,
    classify_body,
    read_candidates,
    read_load,
    read_logits,
    read_prompt_logprobs,
    refusal,
    refusal_text,
    request_body,
    score_body,
)
from guanaco_server.formats.control import (
    ADAPTERS_HEADER,
    ADAPTERS_PATH,
    ARTIFACT_HEADER,
    SLEEP_PATH,
    SWAP_PATH,
)

COMPLETIONS = "/v1/completions"
CONNECT_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 3.0  # vLLM answers in milliseconds unless it hangs
SWAP_TIMEOUT_S = 600.0  # for reading the weights
SLEEP_TIMEOUT_S = 120.0  # for copying the weights into the machine's memory
ADAPTER_TIMEOUT_S = 120.0  # an adapter has megabytes
MAX_ANSWER_BYTES = 16 * 1024**2  # 16 candidates of 4,096 tokens with their log-probabilities: 6 MB
SILENT = "The model server fell silent."
MAX_PAGE_BYTES = 2 * 1024**2  # health, and metrics: 100 KB


class VllmServer:
    """A client of vLLM. Callers set the deadlines of replies."""

    def __init__(self, answer_timeout_s: float = 120.0) -> None:
        """``answer_timeout_s`` is the longest that an answer which is no stream may take."""
        self._answer_timeout_s = answer_timeout_s
        self._upstream = Upstream(CONNECT_TIMEOUT_S)

    async def is_healthy(self, endpoint: str) -> bool:
        try:
            status, _, _ = await self._get(endpoint, "/health")
        except ModelServerFault:
            return False
        return status == HTTPStatus.OK

    async def held_artifact(self, endpoint: str) -> str | None:
        _, _, headers = await self._get(endpoint, "/health")
        return headers.get(ARTIFACT_HEADER.lower())

    async def held_adapters(self, endpoint: str) -> frozenset[str] | None:
        _, _, headers = await self._get(endpoint, "/health")
        held = headers.get(ADAPTERS_HEADER.lower())
        return None if held is None else frozenset(filter(None, held.split(",")))

    async def load_adapter(self, endpoint: str, order: SwapOrder) -> None:
        await self._order_adapter(endpoint, order, is_to_forget=False)

    async def unload_adapter(self, endpoint: str, order: SwapOrder) -> None:
        await self._order_adapter(endpoint, order, is_to_forget=True)

    async def _order_adapter(self, endpoint: str, order: SwapOrder, *, is_to_forget: bool) -> None:
        given = {"artifact": order.artifact_uri, "urls": dict(order.urls), "forget": is_to_forget}
        status, answer = await self._order(
            endpoint, ADAPTERS_PATH, order.token, given, ADAPTER_TIMEOUT_S
        )
        if status == HTTPStatus.CONFLICT:
            raise AdapterRefused(refusal_text(answer) or str(refusal(status, answer)))
        if status != HTTPStatus.OK:
            raise refusal(status, answer)

    async def swap(self, endpoint: str, order: SwapOrder) -> None:
        given = {"artifact": order.artifact_uri, "urls": dict(order.urls), "drain_s": order.drain_s}
        status, answer = await self._order(
            endpoint, SWAP_PATH, order.token, given, order.drain_s + SWAP_TIMEOUT_S
        )
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise ServerBusy(str(refusal(status, answer)))
        if status != HTTPStatus.OK:
            raise refusal(status, answer)

    async def sleep(self, endpoint: str, order: SleepOrder) -> None:
        given = {
            "level": order.level, "artifact": order.artifact_key, "drain_s": order.drain_s,
        }  # fmt: skip
        status, answer = await self._order(
            endpoint, SLEEP_PATH, order.token, given, order.drain_s + SLEEP_TIMEOUT_S
        )
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise ServerBusy(str(refusal(status, answer)))
        if status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
            raise CannotSleep(str(refusal(status, answer)))
        if status != HTTPStatus.OK:
            raise refusal(status, answer)

    async def generate(self, endpoint: str, generation: Generation) -> AsyncGenerator[Chunk, None]:
        if generation.candidate_count > 1:
            found = await self.candidates(endpoint, generation)
            yield found.chunk(found.best())
            return
        try:  # the hot path: without _translated's context
            answer = await self._upstream.post(  # the body is not kept while the reply comes
                endpoint,
                COMPLETIONS,
                msgspec.json.encode(request_body(generation)),
                generation.traceparent,
                artifact_of(generation.model),
            )
            try:
                if answer.status != HTTPStatus.OK:
                    raise refusal(answer.status, await answer.read_all(MAX_ANSWER_BYTES))
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
            raise _unreachable(error) from None

    async def candidates(self, endpoint: str, generation: Generation) -> Candidates:
        body = candidates_body(generation)
        return read_candidates(
            await self._ask(
                endpoint, COMPLETIONS, body, generation.model, traceparent=generation.traceparent
            )
        )

    async def classify(
        self, endpoint: str, model: str, texts: Sequence[str], cache_salt: str
    ) -> tuple[tuple[float, ...], ...]:
        asked = classify_body(model, texts, cache_salt)
        body = await self._ask(endpoint, "/classify", asked, model)
        return read_logits(body, len(texts))

    async def score(self, endpoint: str, model: str, text: str) -> tuple[float, ...]:
        answer = await self._ask(endpoint, COMPLETIONS, score_body(model, text), model)
        return read_prompt_logprobs(answer)

    async def load(self, endpoint: str) -> ServerLoad:
        status, body, _ = await self._get(endpoint, "/metrics")
        if status != HTTPStatus.OK:
            raise refusal(status, body)
        return read_load(body.decode(errors="replace"))

    async def close(self) -> None:
        await self._upstream.close()

    async def _ask(
        self, endpoint: str, path: str, body: dict[str, Any], model: str, traceparent: str = ""
    ) -> bytes:
        """Return the whole answer. Closing the connection ends the server's work."""
        with _translated():
            async with asyncio.timeout(self._answer_timeout_s):
                encoded = msgspec.json.encode(body)
                answer = await self._upstream.post(
                    endpoint, path, encoded, traceparent, artifact_of(model)
                )
                try:
                    answer_body = await answer.read_all(MAX_ANSWER_BYTES)
                finally:
                    answer.close()
        if answer.status != HTTPStatus.OK:
            raise refusal(answer.status, answer_body)
        return answer_body

    async def _order(
        self, endpoint: str, path: str, token: str, given: dict[str, Any], within_s: float
    ) -> tuple[int, bytes]:
        """Status and body of the answer to an order, which must come within that time."""
        body = msgspec.json.encode(given)
        with _translated():
            async with asyncio.timeout(within_s):
                answer = await self._upstream.order(endpoint, path, body, token)
                try:
                    return answer.status, await answer.read_all(MAX_PAGE_BYTES)
                finally:
                    answer.close()

    async def _get(self, endpoint: str, path: str) -> tuple[int, bytes, Mapping[str, str]]:
        """Status, body and our own headers (in lower case), which must come whole within ``HEALTH_TIMEOUT_S``."""
        with _translated():
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                answer = await self._upstream.get(endpoint, path)
                try:
                    return answer.status, await answer.read_all(MAX_PAGE_BYTES), answer.headers
                finally:
                    answer.close()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise ModelServerFault(SILENT) from None
    except UpstreamError as error:
        raise _unreachable(error) from None


def _unreachable(error: Exception) -> ModelServerFault:
    reason = str(error) or type(error).__name__
    return ModelServerFault(f"The model server cannot be reached or broke off: {reason}.")
