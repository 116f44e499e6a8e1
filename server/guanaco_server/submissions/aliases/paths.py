"""Replaces an alias in a path below ``/api/v1/submissions`` by the id that it means now, in front of every route there.

So ``org/model@champion`` stands wherever an id can, with its slash as it is or as ``%2F``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from guanaco_server.accounts.auth import key_in
from guanaco_server.accounts.service import Account
from guanaco_server.http.asgi import header
from guanaco_server.http.errors import ErrorForms, as_guanaco_error
from guanaco_server.observability.http import HEADER, TRACE_HEADER, labelled
from guanaco_server.observability.scope import request_ids

PREFIX = "/api/v1/submissions/"
ALIASED = re.compile(rf"{PREFIX}([^/@]+/[^/@]+@[^/@]+)(/.*)?")


class AliasPaths:
    """An ASGI application in front of ``app``. ``resolve`` finds the id that an alias means to an account, or to anybody."""

    def __init__(
        self,
        app: ASGIApp,
        resolve: Callable[[Account | None, str], Awaitable[str]],
        authenticate: Callable[[str], Awaitable[Account]],
        forms: ErrorForms,
    ) -> None:
        self._app = app
        self._resolve = resolve
        self._authenticate = authenticate
        self._forms = forms

    async def __call__(self, asgi: Scope, receive: Receive, send: Send) -> None:
        path = asgi["path"] if asgi["type"] == "http" else ""
        found = ALIASED.fullmatch(path) if "@" in path else None
        if found is None:
            await self._app(asgi, receive, send)
            return
        try:
            submission_id = await self._resolve(await self._account(asgi), found[1])
        except Exception as fault:  # noqa: BLE001 - every fault has an answer
            error = as_guanaco_error("an alias", fault)
            ids = request_ids(header(asgi, HEADER.encode()), header(asgi, TRACE_HEADER.encode()))
            answer = self._forms.of(path).answer(error)
            await answer(asgi, receive, labelled(send, ids, lambda _status: None))
            return
        path = f"{PREFIX}{submission_id}{found[2] or ''}"
        await self._app({**asgi, "path": path, "raw_path": path.encode()}, receive, send)

    async def _account(self, asgi: Scope) -> Account | None:
        """Return None where there is no key: some of what is below is public. Raise Unauthenticated for a wrong one."""
        given = header(asgi, b"authorization")
        return await self._authenticate(key_in(given)) if given else None
