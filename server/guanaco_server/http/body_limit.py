"""Refuses request bodies over a limit, before anything is parsed: by the declared length, else as they arrive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guanaco.errors import PayloadTooLarge
from guanaco_server.http.errors import ErrorForms

MAX_BODY_BYTES = 262_144  # a message of 16,384 characters fits four times over


@dataclass(frozen=True)
class BodyLimits:
    """The largest sizes of a request's body. ``uploads`` are paths below which it may be larger."""

    usual: int = MAX_BODY_BYTES
    uploads: Mapping[str, int] = field(default_factory=dict)

    def of(self, path: str) -> int:
        for beginning, limit in self.uploads.items():
            if path == beginning or path.startswith(f"{beginning}/"):
                return limit
        return self.usual


class BodyLimit:
    def __init__(self, app: ASGIApp, limits: BodyLimits, forms: ErrorForms) -> None:
        self._app = app
        self._limits = limits
        self._forms = forms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        limit = self._limits.of(scope["path"])
        if not declared.isdigit() or int(declared) > limit:
            await self._refuse(scope, receive, send)
            return
        await self._app(scope, *self._counted(limit, scope, receive, send))

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._forms.of(scope["path"]).answer(
            PayloadTooLarge(self._limits.of(scope["path"]))
        )
        await answer(scope, receive, send)

    def _counted(
        self, limit: int, scope: Scope, receive: Receive, send: Send
    ) -> tuple[Receive, Send]:
        """Return the same, until the body gets too long: then the app hears that the client left, and ours is the only answer."""
        received = 0
        refused = False

        async def counted_receive() -> Message:
            nonlocal received, refused
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit and not refused:
                refused = True
                await self._refuse(scope, receive, send)
            return {"type": "http.disconnect"} if refused else message

        async def guarded_send(message: Message) -> None:
            if not refused:
                await send(message)

        return counted_receive, guarded_send
