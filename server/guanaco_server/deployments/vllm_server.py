"""The model server port over vLLM's HTTP API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from guanaco_server.deployments.model_server import (
    AdapterRefused,
    Candidates,
    Chunk,
    Generation,
    ModelServerFault,
    ServerBusy,
    ServerLoad,
    SwapOrder,
)
from guanaco_server.deployments.upstream import Upstream, UpstreamError
from guanaco_server.deployments.vllm_protocol import (
    StreamReader,
    artifact_of,
    candidates_body,
    classify_body,
    read_candidates,
    read_load,
    read_logits,
    read_prompt_logprobs,
    refusal,
    request_body,
    score_body,
)
from guanaco_server.formats.control import (
    ADAPTERS_HEADER,
    ADAPTERS_PATH,
    ARTIFACT_HEADER,
    SWAP_PATH,
)

if TYPE_CHECKING:
    import httpx

COMPLETIONS = "/v1/completions"
CONNECT_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 3.0  # vLLM answers in milliseconds unless it hangs
SWAP_TIMEOUT_S = 600.0  # for reading the weights
ADAPTER_TIMEOUT_S = 120.0  # an adapter has megabytes
MAX_ANSWER_BYTES = 16 * 1024**2  # 16 candidates of 4,096 tokens with their log-probabilities: 6 MB
SILENT = "The model server fell silent."
MAX_PAGE_BYTES = 2 * 1024**2  # health, and metrics: 100 KB


class VllmServer:
    """A client of vLLM. Requests to the model go through our own HTTP client, health and metrics through httpx. Callers set the deadlines of replies."""

    def __init__(self, answer_timeout_s: float = 120.0) -> None:
        """``answer_timeout_s`` is the longest that an answer which is no stream may take."""
        self._answer_timeout_s = answer_timeout_s
        self._pages: asyncio.Task[httpx.AsyncClient] | None = None
        self._upstream = Upstream(CONNECT_TIMEOUT_S)

    async def is_healthy(self, endpoint: str) -> bool:
        try:
            status, _, _ = await self._get(f"{endpoint}/health")
        except ModelServerFault:
            return False
        return status == HTTPStatus.OK

    async def held_artifact(self, endpoint: str) -> str | None:
        _, _, headers = await self._get(f"{endpoint}/health")
        return headers.get(ARTIFACT_HEADER)

    async def held_adapters(self, endpoint: str) -> frozenset[str] | None:
        _, _, headers = await self._get(f"{endpoint}/health")
        held = headers.get(ADAPTERS_HEADER)
        return None if held is None else frozenset(filter(None, held.split(",")))

    async def load_adapter(self, endpoint: str, order: SwapOrder) -> None:
        await self._order_adapter(endpoint, order, is_to_forget=False)

    async def unload_adapter(self, endpoint: str, order: SwapOrder) -> None:
        await self._order_adapter(endpoint, order, is_to_forget=True)

    async def _order_adapter(self, endpoint: str, order: SwapOrder, *, is_to_forget: bool) -> None:
        pages = await self._client()
        import httpx

        given = {"artifact": order.artifact_uri, "urls": dict(order.urls), "forget": is_to_forget}
        try:
            answer = await pages.post(
                f"{endpoint}{ADAPTERS_PATH}",
                json=given,
                headers={"Authorization": f"Bearer {order.token}"},
                timeout=ADAPTER_TIMEOUT_S,
            )
        except httpx.HTTPError as error:
            raise _unreachable(error) from None
        if answer.status_code == HTTPStatus.CONFLICT:
            raise AdapterRefused(str(refusal(answer.status_code, answer.content)))
        if answer.status_code != HTTPStatus.OK:
            raise refusal(answer.status_code, answer.content)

    async def swap(self, endpoint: str, order: SwapOrder) -> None:
        pages = await self._client()
        import httpx

        given = {"artifact": order.artifact_uri, "urls": dict(order.urls)}
        try:
            answer = await pages.post(
                f"{endpoint}{SWAP_PATH}",
                json={**given, "drain_s": order.drain_s},
                headers={"Authorization": f"Bearer {order.token}"},
                timeout=order.drain_s + SWAP_TIMEOUT_S,
            )
        except httpx.HTTPError as error:
            raise _unreachable(error) from None
        fault = refusal(answer.status_code, answer.content)
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise ServerBusy(str(fault))
        if answer.status_code != HTTPStatus.OK:
            raise fault

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
        self, endpoint: str, model: str, texts: Sequence[str]
    ) -> tuple[tuple[float, ...], ...]:
        body = await self._ask(endpoint, "/classify", classify_body(model, texts), model)
        return read_logits(body, len(texts))

    async def score(self, endpoint: str, model: str, text: str) -> tuple[float, ...]:
        answer = await self._ask(endpoint, COMPLETIONS, score_body(model, text), model)
        return read_prompt_logprobs(answer)

    async def load(self, endpoint: str) -> ServerLoad:
        status, body, _ = await self._get(f"{endpoint}/metrics")
        if status != HTTPStatus.OK:
            raise refusal(status, body)
        return read_load(body.decode(errors="replace"))

    async def close(self) -> None:
        await self._upstream.close()
        if self._pages is not None:
            await (await self._pages).aclose()

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
                    said = await answer.read_all(MAX_ANSWER_BYTES)
                finally:
                    answer.close()
        if answer.status != HTTPStatus.OK:
            raise refusal(answer.status, said)
        return said

    async def _client(self) -> httpx.AsyncClient:
        if self._pages is None:
            self._pages = asyncio.create_task(asyncio.to_thread(_make_pages))
        return await asyncio.shield(self._pages)

    async def _get(self, url: str) -> tuple[int, bytes, Mapping[str, str]]:
        """Status, body and headers, which must come whole within ``HEALTH_TIMEOUT_S``."""
        pages = await self._client()
        import httpx

        body = bytearray()
        try:
            with _translated():
                async with (
                    asyncio.timeout(HEALTH_TIMEOUT_S),
                    pages.stream("GET", url) as answer,
                ):
                    async for piece in answer.aiter_raw():
                        body += piece
                        if len(body) > MAX_PAGE_BYTES:
                            raise UpstreamError("its answer is too long")
        except httpx.TimeoutException:
            raise ModelServerFault(SILENT) from None
        except httpx.HTTPError as error:
            raise _unreachable(error) from None
        return answer.status_code, bytes(body), answer.headers


def _make_pages() -> httpx.AsyncClient:
    """Make a client, in a thread: the imports and the certificates take 0.2 s."""
    import httpx  # 6 MB with what it imports, and nothing needs it before there is a model server

    return httpx.AsyncClient(
        timeout=HEALTH_TIMEOUT_S,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        headers={"Accept-Encoding": "identity"},
        trust_env=False,  # model servers are ours: never through a proxy
    )


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise ModelServerFault(SILENT) from None
    except UpstreamError as error:
        raise _unreachable(error) from None


def _unreachable(error: Exception) -> ModelServerFault:
    said = str(error) or type(error).__name__
    return ModelServerFault(f"The model server cannot be reached or broke off: {said}.")
