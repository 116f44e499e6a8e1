"""In front of the whole API: a POST with an Idempotency-Key is answered once.

The answer is stored before its last byte is sent, mostly with what the request changes (keeping.py), so whoever has read it to
the end gets the same again. Only answers
that succeeded are stored: what failed has changed nothing, and may succeed when it is repeated. Routes that change nothing
ignore the header. A client that leaves does
not stop its request: it comes back for the answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable

from pydantic import BaseModel
from sqlalchemy.exc import DBAPIError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guanaco.errors import InvalidInput, Unauthenticated
from guanaco_server.accounts.auth import key_in
from guanaco_server.accounts.service import Account
from guanaco_server.http.asgi import has_failed, header, read_body
from guanaco_server.http.body_limit import BodyLimits
from guanaco_server.http.connections.protocol import ABORT, abort_of, add_extension
from guanaco_server.http.errors import ErrorForms, as_guanaco_error
from guanaco_server.idempotency.keeping import (
    AnswerKeeper,
    KeptAnswer,
    current_keeper,
    reset_keeper,
    set_keeper,
)
from guanaco_server.idempotency.service import (
    LEASE,
    IdempotencyService,
    KeyedRequest,
    RequestClaim,
)
from guanaco_server.observability.http import HEADER, TRACE_HEADER, TRACE_ID_HEADER, labelled
from guanaco_server.observability.metrics import Metrics
from guanaco_server.observability.scope import request_ids

KEY = b"idempotency-key"
REPLAYED = "idempotent-replayed"
MAX_KEY_CHARS = 255
KEEPS_ITS_OWN = frozenset(
    {"/api/v1/submissions", "/api/v1/sweeps"}
)  # its keys are honoured for good
CHANGES_NOTHING = re.compile(
    r"/api/v1/(checks|plans|prompts/render|submissions/[^/]+/preview)|/models/[^/]+/chat"
)
OF_CONVERSATION = re.compile(r"/conversations/([^/]{1,64})/")
NOT_REPEATED = frozenset(
    {HEADER, TRACE_ID_HEADER, "date", "server", "connection", "transfer-encoding"}
)

logger = logging.getLogger(__name__)


class IdempotentRequests:
    """An ASGI application in front of ``app``. ``authenticate`` finds the account of an API key."""

    def __init__(
        self,
        app: ASGIApp,
        service: IdempotencyService,
        authenticate: Callable[[str], Awaitable[Account]],
        metrics: Metrics,
        limits: BodyLimits,
        forms: ErrorForms,
    ) -> None:
        self._app = app
        self._service = service
        self._authenticate = authenticate
        self._metrics = metrics
        self._limits = limits
        self._forms = forms

    async def __call__(self, asgi: Scope, receive: Receive, send: Send) -> None:
        key = header(asgi, KEY) if _may_have_key(asgi) else ""
        if not key:
            await self._app(asgi, receive, send)
            return
        started, status = time.perf_counter(), 0

        def note(sent: int) -> None:
            nonlocal status
            status = sent

        ids = request_ids(header(asgi, HEADER.encode()), header(asgi, TRACE_HEADER.encode()))
        direct = labelled(send, ids, note)
        try:
            account = await self._authenticate(key_in(header(asgi, b"authorization")))
            request = await self._keyed(asgi, receive, account, key)
            begun = await self._service.begin(request)
        except Unauthenticated:
            await self._app(asgi, receive, send)  # which refuses it
            return
        except Exception as fault:  # noqa: BLE001 - every fault has an answer
            error = as_guanaco_error("an idempotent request", fault)
            await self._forms.of(asgi["path"]).answer(error)(asgi, receive, direct)
        else:
            if isinstance(begun, RequestClaim):
                await self._answer(begun, asgi, _body_of(request), send)
                return
            await _replay(begun, direct)
        seconds = time.perf_counter() - started
        self._metrics.note_http("POST", "repeated", status, seconds)

    async def _keyed(
        self, asgi: Scope, receive: Receive, account: Account, key: str
    ) -> KeyedRequest:
        if len(key) > MAX_KEY_CHARS or not key.isprintable():
            raise InvalidInput(
                f"Idempotency-Key: up to {MAX_KEY_CHARS} printable characters.",
                hint="Use a new UUID for each new request.",
            )
        body = await read_body(receive, self._limits.of(asgi["path"]))
        place = f"{asgi['method']} {asgi['path']}?{asgi['query_string'].decode('latin-1')}\n"
        found = OF_CONVERSATION.search(asgi["path"])
        return KeyedRequest(
            account_id=account.id,
            key=key,
            content=place.encode() + body,
            conversation_id=found[1] if found else None,
        )

    async def _answer(self, claim: RequestClaim, asgi: Scope, body: bytes, send: Send) -> None:
        connection = _ClientConnection(asgi, body)
        keeper = self._service.keeper(claim)
        recorder = _Recorder(self._service, claim, keeper, connection.asgi, send)
        renewing = asyncio.create_task(self._renew(claim))
        before = set_keeper(keeper)
        try:
            await self._app(connection.asgi, connection.receive, recorder.send)
        finally:
            reset_keeper(before)
            renewing.cancel()
            if not keeper.is_stored:
                await asyncio.shield(self._release(claim))

    async def _renew(self, claim: RequestClaim) -> None:
        while True:
            await asyncio.sleep(LEASE.total_seconds() / 3)
            try:
                await self._service.renew(claim)
            except (DBAPIError, OSError) as error:
                logger.warning("an idempotent request is not renewed: %s", type(error).__name__)

    async def _release(self, claim: RequestClaim) -> None:
        try:
            await self._service.release(claim)
        except (DBAPIError, OSError) as error:  # then its lease runs out
            logger.warning("an idempotent request is not released: %s", type(error).__name__)


class _ClientConnection:
    """A request whose body is read already, and whose client is there until the connection is closed from our side."""

    def __init__(self, asgi: Scope, body: bytes) -> None:
        self.asgi = dict(asgi)
        self._body: bytes | None = body
        self._is_closed = asyncio.Event()
        if abort := abort_of(asgi):
            add_extension(self.asgi, ABORT, self._closing(abort))

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_closed.wait()
        return {"type": "http.disconnect"}

    def _closing(self, abort: Callable[[], None]) -> Callable[[], None]:
        def close() -> None:
            self._is_closed.set()
            abort()

        return close


class _Recorder:
    """Passes an answer on, and stores it before the last of it is sent."""

    def __init__(
        self,
        service: IdempotencyService,
        claim: RequestClaim,
        keeper: AnswerKeeper,
        asgi: Scope,
        send: Send,
    ) -> None:
        self._service = service
        self._claim = claim
        self._keeper = keeper
        self._asgi = asgi
        self._send = send
        self._start: Message = {}
        self._pieces: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body":
            self._pieces.append(message.get("body", b""))
            is_last = not message.get("more_body", False)
            if is_last and not self._keeper.is_stored and self._has_succeeded():
                await self._store()
        try:
            await self._send(message)
        except OSError:  # the client has left, and may come back
            logger.debug("a client did not wait for its answer")

    def _has_succeeded(self) -> bool:
        return 200 <= self._start["status"] < 300 and not has_failed(self._asgi)

    async def _store(self) -> None:
        headers = self._start.get("headers", ())
        stored = kept_answer(self._start["status"], headers, b"".join(self._pieces))
        try:
            await self._service.finish(self._claim, stored)
            self._keeper.is_stored = True
        except (DBAPIError, OSError) as error:
            logger.warning("an answer cannot be kept for a repetition: %s", type(error).__name__)


async def _replay(kept: KeptAnswer, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept.headers]
    headers.append((REPLAYED.encode(), b"true"))
    await send({"type": "http.response.start", "status": kept.status, "headers": headers})
    await send({"type": "http.response.body", "body": kept.body})


def kept_answer(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> KeptAnswer:
    """Return an answer without the headers that belong to one request."""
    named = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
    kept = tuple((name, value) for name, value in named if name.lower() not in NOT_REPEATED)
    return KeptAnswer(status, kept, body)


async def keep_as_json(request: Request) -> None:
    """Have the answer to this request written as the framework will: JSON, with its route's status. A dependency of routers."""
    if (keeper := current_keeper()) is None:
        return
    route = request.scope["route"]

    def as_json(result: BaseModel) -> KeptAnswer | None:
        if type(result) is not route.response_model:
            return None
        headers = ((b"content-type", b"application/json"),)
        return kept_answer(route.status_code or 200, headers, result.model_dump_json().encode())

    keeper.form = as_json


def keeps_answers(path: str) -> bool:
    """Return whether the answer to a POST to this path is kept here: not where nothing changes, so that it may be done again."""
    return path not in KEEPS_ITS_OWN and CHANGES_NOTHING.fullmatch(path) is None


def _may_have_key(asgi: Scope) -> bool:
    return asgi["type"] == "http" and asgi["method"] == "POST" and keeps_answers(asgi["path"])


def _body_of(request: KeyedRequest) -> bytes:
    return request.content.partition(b"\n")[2]
