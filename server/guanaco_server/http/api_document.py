"""The OpenAPI document: written once, in a thread, and answered from memory.

Writing it takes most of a second, and encoding its 400 KB some milliseconds: too long for the event loop, on which
chats wait, and anybody may ask for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response

from guanaco_server.runtime import threads

PATH = "/openapi.json"


@dataclass(frozen=True)
class _RenderedDocument:
    schema: dict[str, Any]
    encoded: bytes
    tag: str


class ApiDocument:
    """``write`` makes the document. It is called once, when somebody first asks."""

    def __init__(self, write: Callable[[], dict[str, Any]]) -> None:
        self._write = write
        self._turn = asyncio.Lock()
        self._written: _RenderedDocument | None = None

    async def schema(self) -> dict[str, Any]:
        return (await self._get()).schema

    async def answer(self, known_tag: str | None) -> Response:
        """Return the document, or 304 to a client that has it."""
        written = await self._get()
        headers = {"ETag": written.tag, "Cache-Control": "no-cache"}
        if known_tag == written.tag:
            return Response(status_code=304, headers=headers)
        return Response(written.encoded, media_type="application/json", headers=headers)

    async def _get(self) -> _RenderedDocument:
        async with self._turn:
            if self._written is None:
                self._written = await threads.PAGES.run(self._make)
        return self._written

    def _make(self) -> _RenderedDocument:
        schema = self._write()
        encoded = json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode()
        return _RenderedDocument(schema, encoded, f'W/"{hashlib.sha256(encoded).hexdigest()[:32]}"')


def install(app: FastAPI, document: ApiDocument) -> None:
    """Answer it at FastAPI's own path, to everybody."""

    async def read_document(request: Request) -> Response:
        return await document.answer(request.headers.get("if-none-match"))

    app.add_route(PATH, read_document, include_in_schema=False)
