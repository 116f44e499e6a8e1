"""Controls which artifact a model server holds, and has it take another one: an ASGI layer around vLLM's app.

    GET  /health            with the header X-Guanaco-Artifact: the key of the artifact that it holds
    POST /guanaco/swap      take another artifact's weights; only for the platform, which has the server's token
    POST /guanaco/sleep     leave the GPU's memory, and come back with POST /guanaco/wake or a swap; only for the platform
    POST /guanaco/adapters  hold an adapter on this artifact too, or forget one (engine/adapters.py); only for the platform
    anything else           answered only if the request expects the artifact that is there, else 409

    serving ──▶ draining ──▶ loading ──▶ serving (the new artifact)
       ▲            │            └──▶ broken: ends itself, and is replaced by a new process
       └────────────┘  too long, or another shape: nothing has changed

    serving ──▶ draining ──▶ sleeping ── wake: the artifact that it kept (level 1 only) ──▶ serving
                                 └────── swap: any artifact of its shape ──▶ loading ──▶ serving

Level 1 of vLLM's sleep keeps the weights in the machine's memory, level 2 keeps none. There are no levels on a CPU: the order
to sleep is refused there, and nothing changes.

A request that was let in keeps its model until its answer is complete: weights change only while none is open. One without
the header is answered until the first swap: a gateway of the version before cannot know what is here afterwards.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from guanaco_server.engine.adapters import AdapterEngine, HeldAdapters
from guanaco_server.engine.artifacts.errors import (
    AdapterUnusable,
    ArtifactError,
    DamagedArtifactError,
)
from guanaco_server.engine.artifacts.source import ArtifactSource, ModelFolder, read_manifest
from guanaco_server.formats.control import (
    ADAPTERS_HEADER,
    ADAPTERS_PATH,
    ARTIFACT_HEADER,
    ASLEEP,
    SLEEP_PATH,
    SWAP_PATH,
    WAKE_PATH,
)
from guanaco_server.formats.json_objects import parse_json_object
from guanaco_server.formats.manifest import Manifest
from guanaco_server.formats.shape import shape_of, swap_refusal

CONFIG = "config.json"
MAX_ORDER_BYTES = 1024**2
OPEN_PATHS = frozenset(
    {"/health", "/metrics", "/ping", "/version", "/load"}
)  # say nothing of the model
POLL_S = 0.005
KEEPS_WEIGHTS, KEEPS_NOTHING = 1, 2  # vLLM's levels of sleep

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_HEADER = ARTIFACT_HEADER.lower().encode()

logger = logging.getLogger("vllm.guanaco")


class State(StrEnum):
    SERVING = "serving"
    DRAINING = "draining"
    LOADING = "loading"
    SLEEPING = ASLEEP
    BROKEN = "broken"


class RepliesInProgress(Exception):  # answered with 503: ask again
    """Replies of the model that is there are not complete."""


class SwapRefused(Exception):  # answered with 409: the server serves what it served before
    """The artifact cannot be taken; nothing has changed."""


class Weights(Protocol):
    """The engine, as far as a swap and sleep need it."""

    @property
    def can_sleep(self) -> bool: ...

    async def sleep(self, level: int) -> None:
        """Leave the GPU's memory. Level 1 keeps the weights in the machine's, level 2 does not."""
        ...

    async def wake(self) -> None:
        """Take the memory again, and forget what was computed before; after level 2 the weights are to be loaded."""
        ...

    async def generate(self) -> None:
        """Generate a token. Raises an error if it cannot."""
        ...

    async def read_tokenizer(self, found: ModelFolder) -> Any:
        """Return what ``load`` takes for a tokenizer, with the tokens that end a reply. ArtifactError if it cannot be used."""
        ...

    async def load(
        self, source: ArtifactSource, found: ModelFolder, tokenizer: Any
    ) -> dict[str, float]:
        """Take the weights and the tokenizer, forget what was computed with the old ones, and generate a token; return the seconds of each part.

        ``tokenizer`` is None where the one that is there stays.
        """
        ...


@dataclass(frozen=True)
class SwapRequest:
    """A request of the platform: an artifact, the URLs of its files, and how long open replies may take before the swap."""

    source: ArtifactSource
    drain_s: float

    @staticmethod
    def read(body: bytes) -> SwapRequest:
        given = json.loads(body)
        urls = {str(path): str(url) for path, url in dict(given.get("urls", {})).items()}
        return SwapRequest(ArtifactSource(str(given["artifact"]), urls), float(given["drain_s"]))


@dataclass(frozen=True)
class SleepRequest:
    """How deep to sleep, how long open replies may take before it, and the artifact that is meant; None if whichever is there is."""

    level: int
    drain_s: float
    artifact: str | None = None

    @staticmethod
    def read(body: bytes) -> SleepRequest:
        given = json.loads(body)
        level = int(given["level"])
        if level not in (KEEPS_WEIGHTS, KEEPS_NOTHING):
            raise ValueError("no such level")
        artifact = given.get("artifact")
        return SleepRequest(level, float(given["drain_s"]), artifact and str(artifact))


@dataclass(frozen=True)
class AdapterOrder:
    """An adapter to hold, or the key of one to forget."""

    source: ArtifactSource
    is_to_forget: bool

    @staticmethod
    def read(body: bytes) -> AdapterOrder:
        given = json.loads(body)
        urls = {str(path): str(url) for path, url in dict(given.get("urls", {})).items()}
        source = ArtifactSource(str(given["artifact"]), urls)
        return AdapterOrder(source, given.get("forget") is True)


class ServedArtifact:
    """The artifact that this server holds, with the adapters on it, and the requests that are open."""

    def __init__(
        self,
        source: ArtifactSource,
        found: ModelFolder,
        held: ExitStack,
        open_folder: Callable[[ArtifactSource], AbstractContextManager[ModelFolder]],
        quantization: str | None,
        token: str,
        adapters: HeldAdapters | None = None,
    ) -> None:
        """``open_folder`` provides an artifact's small files, verified, for as long as it is held.

        ``held`` ends with the server. It holds ``found``, and after a swap the folder of the artifact that is served.
        """
        self.adapters = adapters
        self.key = source.key
        self.state = State.SERVING
        manifest = read_manifest(found.path)
        self._shape = shape_of(manifest, _config(found))
        self._small_files = _small_files(manifest)
        self._open_folder = open_folder
        self._quantization = quantization
        self._token = token.encode()
        self._open = 0
        self._has_swapped = False
        self._sleep_level = 0
        self._held = held
        self._lock = asyncio.Lock()

    def accepts(self, expected: str | None) -> bool:
        if self.state is not State.SERVING:
            return False
        return expected == self.key or (expected is None and not self._has_swapped)

    def is_authorized(self, header: bytes) -> bool:
        return hmac.compare_digest(header, b"Bearer " + self._token)

    def enter(self) -> None:
        self._open += 1

    def leave(self) -> None:
        self._open -= 1

    async def swap(
        self, order: SwapRequest, weights: Weights, engine: AdapterEngine
    ) -> dict[str, float]:
        """Hold this artifact afterwards, and no adapters; return the seconds of each part.

        SwapRefused if it still holds the one before; any other error has broken it.
        """
        async with self._lock:
            if order.source.key == self.key and self.state is State.SERVING:
                return {}
            if order.source.key == self.key and self._sleep_level == KEEPS_WEIGHTS:
                await self._awake(weights)
                return {}
            held, began = ExitStack(), time.perf_counter()
            try:
                found = await asyncio.to_thread(self._open_matching, order.source, held)
                parts = {"open_s": time.perf_counter() - began}
                began = time.perf_counter()
                small_files, tokenizer = _small_files(read_manifest(found.path)), None
                if small_files != self._small_files:
                    tokenizer = await weights.read_tokenizer(found)
                parts["tokenizer_s"] = time.perf_counter() - began
                began = time.perf_counter()
                await self._drain(order.drain_s)
                parts["drain_s"] = time.perf_counter() - began
            except ArtifactError as error:
                await asyncio.to_thread(held.close)
                raise SwapRefused(str(error)) from None
            except BaseException:
                await asyncio.to_thread(held.close)
                raise
            was_asleep, self.state, self._has_swapped = self._sleep_level, State.LOADING, True
            self._sleep_level = 0
            try:
                if was_asleep:
                    await weights.wake()
                if self.adapters is not None:
                    await self.adapters.move_to(order.source.key, engine)
                parts |= await weights.load(order.source, found, tokenizer)
            except BaseException:
                self.state = State.BROKEN
                held.close()
                raise
            before = self._held.pop_all()
            self._held.push(held)
            self.key, self.state = order.source.key, State.SERVING
            self._small_files = small_files
            await asyncio.to_thread(before.close)
            return parts

    async def sleep(self, order: SleepRequest, weights: Weights) -> None:
        """Leave the GPU's memory once all replies are complete. SwapRefused where it cannot; any other error has broken it."""
        async with self._lock:
            if order.artifact not in (None, self.key):
                raise SwapRefused("It serves another artifact by now.")
            if self.state is State.SLEEPING and self._sleep_level == order.level:
                return
            if not weights.can_sleep:
                raise SwapRefused("Its engine cannot sleep: only one on a GPU can.")
            if self.state is not State.SERVING:
                raise SwapRefused(f"It is {self.state}.")
            await self._drain(order.drain_s)
            with self._broken_by_errors():
                await weights.sleep(order.level)
            self.state, self._sleep_level = State.SLEEPING, order.level

    async def wake(self, weights: Weights) -> None:
        """Serve again the artifact that it kept. SwapRefused where it has kept none; any other error has broken it."""
        async with self._lock:
            if self.state is State.SERVING:
                return
            if self.state is not State.SLEEPING:
                raise SwapRefused(f"It is {self.state}.")
            if self._sleep_level != KEEPS_WEIGHTS:
                raise SwapRefused("It has kept no weights: a swap wakes it.")
            await self._awake(weights)

    async def _awake(self, weights: Weights) -> None:
        self.state = State.LOADING
        with self._broken_by_errors():
            await weights.wake()
            await weights.generate()
        self.state, self._sleep_level = State.SERVING, 0

    async def change_adapters(
        self, order: AdapterOrder, adapters: HeldAdapters, engine: AdapterEngine
    ) -> None:
        """Hold an adapter too, or forget one. RepliesInProgress while the artifact under it is not served."""
        async with self._lock:
            if self.state is not State.SERVING:
                raise RepliesInProgress(f"It is {self.state}.")
            if order.is_to_forget:
                await adapters.unload(order.source.key, engine)
            else:
                await adapters.load(order.source, engine)

    @contextmanager
    def _broken_by_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.state = State.BROKEN
            raise

    def _open_matching(self, source: ArtifactSource, held: ExitStack) -> ModelFolder:
        if self.state not in (State.SERVING, State.SLEEPING):
            raise SwapRefused(f"It is {self.state}.")
        found = held.enter_context(self._open_folder(source))
        manifest = read_manifest(found.path)
        if manifest.key != source.key:
            raise SwapRefused(f"{source.uri} has the manifest of another artifact.")
        config = _config(found)
        if shape_of(manifest, config) != self._shape:
            raise SwapRefused(f"{source.uri} has another shape than what is here.")
        if why := swap_refusal(config, self._quantization):
            raise SwapRefused(why)
        return found

    async def _drain(self, limit_s: float) -> None:
        """Let no request in, and wait until the open ones are answered."""
        if self.state is State.SLEEPING:
            return
        self.state = State.DRAINING
        deadline = time.monotonic() + limit_s
        while self._open:
            if time.monotonic() >= deadline:
                self.state = State.SERVING
                raise RepliesInProgress(
                    f"{self._open} replies are not complete after {limit_s:g} s."
                )
            await asyncio.sleep(POLL_S)


def _config(found: ModelFolder) -> dict[str, Any]:
    try:
        return parse_json_object(CONFIG, (found.path / CONFIG).read_bytes())
    except (OSError, ValueError) as error:
        raise DamagedArtifactError(f"The artifact's {CONFIG} cannot be read.") from error


def _small_files(manifest: Manifest) -> frozenset[tuple[str, str]]:
    """Return the small files with their hashes. A text's tokens may depend on any: transformers reads config.json too for them."""
    return frozenset((file.path, file.sha256) for file in manifest.files)


class ControlLayer:
    """vLLM makes it from its name, around its app. serve.py puts what it works with into vLLM's arguments."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        server = scope["app"].state
        served: ServedArtifact = server.args.guanaco_served
        path = scope["path"]
        if path == SWAP_PATH:
            await _answer_swap(served, server, scope, receive, send)
        elif path in (SLEEP_PATH, WAKE_PATH):
            await _answer_sleep(served, server.engine_client, scope, receive, send)
        elif path == ADAPTERS_PATH and served.adapters is not None:
            await _answer_adapter(served, served.adapters, server, scope, receive, send)
        elif path in OPEN_PATHS:
            await self._app(scope, receive, _naming(served, send))
        elif not served.accepts(_header(scope, _HEADER)):
            await _answer(
                send, 409, f"This server does not serve that model now: it is {served.state}."
            )
        else:
            served.enter()
            try:
                await self._app(scope, receive, send)
            finally:
                served.leave()


async def _answer_swap(
    served: ServedArtifact, server: Any, scope: Scope, receive: Receive, send: Send
) -> None:
    from guanaco_server.engine.vllm_internals import EngineAdapters, EngineWeights

    if scope["method"] != "POST" or not served.is_authorized(
        (_header(scope, b"authorization") or "").encode()
    ):
        await _answer(send, 404, "Not Found")
        return
    try:
        order = SwapRequest.read(await _body(receive))
    except (ValueError, KeyError, TypeError):
        await _answer(send, 400, "The order cannot be read.")
        return
    started = time.monotonic()
    # It goes on if the platform is gone meanwhile: half a swap is none.
    weights, engine = EngineWeights(server.engine_client), EngineAdapters(server)
    work = asyncio.create_task(served.swap(order, weights, engine), name="swap")
    try:
        parts = await asyncio.shield(work)
    except SwapRefused as error:
        await _answer(send, 409, str(error))
    except RepliesInProgress as error:
        await _answer(send, 503, str(error))
    except Exception as error:  # whatever it was, the weights are neither model's
        logger.exception("The swap to %s failed; this server ends", order.source.uri)
        await _answer(send, 500, f"{type(error).__name__}: {error}")
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        took_s = time.monotonic() - started
        timings = {name: round(value, 4) for name, value in parts.items()}
        logger.info("Swapped to %s in %.3f s: %s", order.source.uri, took_s, timings)
        await _send(send, 200, {"artifact": served.key, "seconds": took_s, "parts": timings})


async def _answer_sleep(
    served: ServedArtifact, engine: Any, scope: Scope, receive: Receive, send: Send
) -> None:
    if scope["method"] != "POST" or not served.is_authorized(
        (_header(scope, b"authorization") or "").encode()
    ):
        await _answer(send, 404, "Not Found")
        return
    from guanaco_server.engine.vllm_internals import EngineWeights

    weights = EngineWeights(engine)
    try:
        if scope["path"] == WAKE_PATH:
            turn = served.wake(weights)
        else:
            turn = served.sleep(SleepRequest.read(await _body(receive)), weights)
    except (ValueError, KeyError, TypeError):
        await _answer(send, 400, "The order cannot be read.")
        return
    try:
        # It goes on if the platform is gone meanwhile, as a swap does.
        await asyncio.shield(asyncio.create_task(turn, name="sleep or wake"))
    except SwapRefused as error:
        await _answer(send, 409, str(error))
    except RepliesInProgress as error:
        await _answer(send, 503, str(error))
    except Exception as error:  # whatever it was, what is in the memory is not known
        logger.exception("It could not sleep or wake; this server ends")
        await _answer(send, 500, f"{type(error).__name__}: {error}")
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        await _send(send, 200, {"artifact": served.key, "state": served.state})


async def _answer_adapter(
    served: ServedArtifact,
    adapters: HeldAdapters,
    server: Any,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    from guanaco_server.engine.vllm_internals import EngineAdapters

    if scope["method"] != "POST" or not served.is_authorized(
        (_header(scope, b"authorization") or "").encode()
    ):
        await _answer(send, 404, "Not Found")
        return
    try:
        order = AdapterOrder.read(await _body(receive))
    except (ValueError, KeyError, TypeError):
        await _answer(send, 400, "The order cannot be read.")
        return
    try:
        await served.change_adapters(order, adapters, EngineAdapters(server))
    except AdapterUnusable as error:
        await _answer(send, 409, str(error))
    except RepliesInProgress as error:
        await _answer(send, 503, str(error))
    else:
        await _send(send, 200, {"adapters": adapters.keys})


def _naming(served: ServedArtifact, send: Send) -> Send:
    """Say in the answer's headers which artifact is here; nothing while there is none."""

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            key = served.key if served.state is State.SERVING else served.state
            headers = [*message.get("headers", ()), (_HEADER, key.encode())]
            if served.adapters is not None:
                held = ",".join(served.adapters.keys)
                headers.append((ADAPTERS_HEADER.lower().encode(), held.encode()))
            message = {**message, "headers": headers}
        await send(message)

    return named


def _header(scope: Mapping[str, Any], name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ValueError("the platform has gone")
        body += bytes(message.get("body", b""))
        if len(body) > MAX_ORDER_BYTES:
            raise ValueError("too long")
        if not message.get("more_body"):
            return body


async def _answer(send: Send, status: int, why: str) -> None:
    await _send(send, status, {"error": {"message": why, "code": status}})


async def _send(send: Send, status: int, answer: Mapping[str, Any]) -> None:
    body = json.dumps(answer).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
