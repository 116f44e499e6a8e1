"""Compresses pages, style, scripts and the OpenAPI document, where that tells nobody a secret.

The size of a compressed page tells whoever can have a visitor's browser ask for it, with words of their own in it, which secrets are
beside these words (BREACH, 2013). So an answer to a request with a cookie is left as it is, unless it is a file that is the same for
everybody. The API's own answers are for programs on fast lines, and streams must not wait: both are left as they are too.
"""

from __future__ import annotations

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from guanaco_server.http import api_document

SMALLEST = 1_000  # bytes: less fits into one packet anyway
LEVEL = 5
IN_A_THREAD = 32 * 1024  # bytes, whose compression takes most of a millisecond
SAME_FOR_ALL = ("/static/", api_document.PATH)
LEFT = ("/api/", "/v1/", "/metrics")


class CompressedPages:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressing = GZipMiddleware(
            app, minimum_size=SMALLEST, compresslevel=LEVEL, thread_minimum_size=IN_A_THREAD
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._compressing if _may_be_compressed(scope) else self._app
        await app(scope, receive, send)


def _may_be_compressed(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return False
    path: str = scope["path"]
    if path.startswith(SAME_FOR_ALL):
        return True
    names = (name for name, _ in scope["headers"])
    return not path.startswith(LEFT) and b"cookie" not in names
