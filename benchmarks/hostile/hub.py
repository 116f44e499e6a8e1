"""A Hub that lies: about names, sizes, hashes and commits, with slow and endless bodies, and with redirects."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from guanaco_server.demo import hub_server
from guanaco_server.demo.hub_server import FILE_PATH, INFO_PATH, LocalHub

Handler = BaseHTTPRequestHandler
DRIP_S = 5.0
MOST_DRIPS = 60

# Whether what the Hub says ought to be refused; what is true in the end may be served.
LIES = {
    "private": True, "gated": True, "disabled": True, "info-500": True, "info-html": True, "info-deep": True, "info-list": True, "info-empty": True,
    "info-huge": True, "info-drip": True, "info-endless": True, "info-no-sha": True, "info-sha-path": True, "info-files-up": True, "info-files-absolute": True,
    "info-files-many": True, "info-files-number": True, "info-files-nul": True, "info-redirect-inside": True, "info-redirect-loop": True, "info-redirect-file": True,
    "file-500": True, "file-empty": True, "file-drip": True, "file-endless": True, "file-size": True, "file-range": True, "file-other-bytes": True,
    "file-other-commit": False, "file-no-etag": False, "file-gzip-bomb": True, "file-redirect-inside": True, "file-redirect-loop": True, "file-hang-up": True,
}  # fmt: skip


class LyingHub(LocalHub):
    """``lies`` maps a repo to its lie; ``inside`` is an address that nobody may be led to."""

    def __init__(self, root: Path, lies: dict[str, str], inside: str) -> None:
        super().__init__(root)
        self.lies = lies
        self.inside = inside
        self._server.RequestHandlerClass = _LyingHandler


class _LyingHandler(hub_server._Handler):
    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        info, file = INFO_PATH.match(path), FILE_PATH.match(path)
        match = info or file
        hub = self.server.hub
        assert isinstance(hub, LyingHub)
        lie = hub.lies.get(match["repo"], "") if match else ""
        lies = _INFO if info else _FILE
        if file and not file["path"].endswith(".safetensors") and lie != "file-gzip-bomb":
            lie = ""
        with contextlib.suppress(ConnectionError):
            if lie in lies:
                lies[lie](self, hub)
            else:
                super()._answer()


def _body(handler: Handler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    if "Content_Length" not in headers:
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(body)


def _info(**changes: object) -> Callable[[Handler, LyingHub], None]:
    def answer(handler: Handler, hub: LyingHub) -> None:
        match = INFO_PATH.match(handler.path.partition("?")[0])
        assert match is not None
        folder = hub.root / match["repo"]
        files = [{"rfilename": path.name, "size": path.stat().st_size} for path in folder.iterdir()]
        found = {"id": match["repo"], "modelId": match["repo"], "sha": hub_server.commit_of(folder), "private": False, "gated": False, "siblings": files}  # fmt: skip
        _body(handler, json.dumps(found | changes).encode())

    return answer


def _raw(body: bytes, status: int = 200) -> Callable[[Handler, LyingHub], None]:
    return lambda handler, _hub: _body(handler, body, status)


def _redirect(to: str) -> Callable[[Handler, LyingHub], None]:
    def answer(handler: Handler, hub: LyingHub) -> None:
        _body(handler, b"", 302, Location=to.format(inside=hub.inside, path=handler.path))

    return answer


def _drip(handler: Handler, _hub: LyingHub) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _ in range(MOST_DRIPS):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(DRIP_S)
    handler.close_connection = True


def _endless(handler: Handler, _hub: LyingHub) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(20_000):
        handler.wfile.write(b'{"a": [' * 10_000)
    handler.close_connection = True


def _hang_up(handler: Handler, _hub: LyingHub) -> None:
    _body(handler, b"x" * 10, Content_Length="100000")
    handler.close_connection = True


def _siblings(*names: object) -> list[dict[str, object]]:
    return [
        {"rfilename": name, "size": 10} for name in ("config.json", "model.safetensors", *names)
    ]


_INFO: dict[str, Callable[[Handler, LyingHub], None]] = {
    "private": _info(private=True),
    "gated": _info(gated="manual"),
    "disabled": _info(disabled=True, private=True),
    "info-500": _raw(b"no", 500),
    "info-html": _raw(b"<html>" * 1_000),
    "info-deep": _raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "info-list": _raw(b"[]"),
    "info-empty": _raw(b""),
    "info-huge": _raw(b'{"a":"' + b"x" * 50_000_000 + b'"}'),
    "info-drip": _drip,
    "info-endless": _endless,
    "info-no-sha": _info(sha=None),
    "info-sha-path": _info(sha="../../etc"),
    "info-files-up": _info(siblings=_siblings("../../../tmp/evil")),
    "info-files-absolute": _info(siblings=_siblings("/tmp/evil")),
    "info-files-many": _info(siblings=_siblings(*(f"f{number}" for number in range(200_000)))),
    "info-files-number": _info(siblings=_siblings(7, None)),
    "info-files-nul": _info(siblings=_siblings("a\0b")),
    "info-redirect-inside": _redirect("{inside}"),
    "info-redirect-loop": _redirect("{path}"),
    "info-redirect-file": _redirect("file:///etc/passwd"),
}
_FILE: dict[str, Callable[[Handler, LyingHub], None]] = {
    "file-500": _raw(b"no", 500),
    "file-empty": _raw(b""),
    "file-drip": _drip,
    "file-endless": _endless,
    "file-size": lambda handler, _hub: _body(handler, b"x", Content_Length="99999999999"),
    "file-range": lambda handler, _hub: _body(
        handler, b"x" * 8, 206, Content_Range="bytes 500-507/9"
    ),
    "file-other-bytes": lambda handler, _hub: _body(
        handler, b"\x08" + bytes(7) + b"{}      ", 206, Content_Range="bytes 0-15/16"
    ),
    "file-gzip-bomb": lambda handler, _hub: _body(handler, _bomb(), Content_Encoding="gzip"),
    "file-redirect-inside": _redirect("{inside}"),
    "file-redirect-loop": _redirect("{path}"),
    "file-hang-up": _hang_up,
}


def _bomb() -> bytes:
    import gzip

    return gzip.compress(b"[" * 50_000_000, 9)
