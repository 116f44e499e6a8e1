"""The OpenAPI document: read once, in a thread, and answered from memory.

Anybody may ask for it, and chats wait meanwhile. To write it from the routes takes a second of the interpreter or two, and leaves 200,000
objects to look through for garbage, which once held the event loop up for 260 ms. So `make docs` writes it into FILE, and a test
holds that against the routes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from guanaco_server.runtime import threads

PATH = "/openapi.json"
FILE = Path(__file__).parent / "openapi.json"


@dataclass(frozen=True)
class _RenderedDocument:
    schema: dict[str, Any]
    encoded: bytes
    tag: str


class ApiDocument:
    """``read`` returns the document. It is called once, when somebody first asks."""

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read = read
        self._turn = asyncio.Lock()
        self._rendered: _RenderedDocument | None = None

    async def schema(self) -> dict[str, Any]:
        return (await self._get()).schema

    async def answer(self, known_tag: str | None) -> Response:
        """Return the document, or 304 to a client that has it."""
        rendered = await self._get()
        headers = {"ETag": rendered.tag, "Cache-Control": "no-cache"}
        if known_tag == rendered.tag:
            return Response(status_code=304, headers=headers)
        return Response(rendered.encoded, media_type="application/json", headers=headers)

    async def _get(self) -> _RenderedDocument:
        async with self._turn:
            if self._rendered is None:
                self._rendered = await threads.PAGES.run(self._render)
        return self._rendered

    def _render(self) -> _RenderedDocument:
        schema = self._read()
        encoded = json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode()
        return _RenderedDocument(schema, encoded, f'W/"{hashlib.sha256(encoded).hexdigest()[:32]}"')


def read_file() -> dict[str, Any]:
    """Return the document of a platform with all its routes."""
    document: dict[str, Any] = json.loads(FILE.read_bytes())
    return document


def install(app: FastAPI, document: ApiDocument) -> None:
    """Answer it at FastAPI's own path, to everybody."""

    async def read_document(request: Request) -> Response:
        return await document.answer(request.headers.get("if-none-match"))

    app.add_route(PATH, read_document, include_in_schema=False)
