"""The real huggingface_hub against a Hub on this machine; the Hub in memory keeps the same promises."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from guanaco import errors
from guanaco_server.artifacts.hub.hub import Hub, RepoFile, RepoSnapshot
from guanaco_server.artifacts.hub.hugging_face import MAX_LISTING, HuggingFaceHub
from guanaco_server.artifacts.hub.memory import MemoryHub
from guanaco_server.demo.hub_server import commit_of
from tests.fixtures.hub import ControlledHub

CONTENT = b'{"a": 1}'
GRANTED, PLATFORMS = "hf_granted", "hf_oftheplatform"
SNAPSHOT = RepoSnapshot("acme/good", "a" * 40, (RepoFile("config.json", len(CONTENT)),))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("good", "gated", "private"):
        (tmp_path / "acme" / name).mkdir(parents=True)
        (tmp_path / "acme" / name / "config.json").write_bytes(CONTENT)
    (tmp_path / "acme" / "gated" / ".gated").write_text(f"{GRANTED}\n{PLATFORMS}\n")
    (tmp_path / "acme" / "private" / ".private").write_text(f"{GRANTED}\n{PLATFORMS}\n")
    return tmp_path


@pytest.fixture
def server(root: Path) -> Iterator[ControlledHub]:
    with ControlledHub(root) as server:
        yield server
        server.release()


@pytest.fixture(params=["hugging_face", "memory"])
def hub(request: pytest.FixtureRequest, server: ControlledHub) -> Hub:
    if request.param == "hugging_face":
        return HuggingFaceHub(server.url, PLATFORMS, 30)
    memory = MemoryHub()
    memory.add_repo("acme/good", {"config.json": CONTENT})
    memory.add_repo("acme/gated", {"config.json": CONTENT})
    memory.gate("acme/gated", GRANTED)
    memory.add_repo("acme/private", {"config.json": CONTENT})
    memory.make_private("acme/private", GRANTED)
    return memory


async def test_a_repo_is_pinned_to_its_commit_with_its_files(hub: Hub) -> None:
    snapshot = await hub.resolve("acme/good", None)
    assert re.fullmatch("[0-9a-f]{40}", snapshot.commit)
    assert [(file.path, file.size_bytes) for file in snapshot.files] == [("config.json", 8)]
    assert await hub.resolve("acme/good", snapshot.commit) == snapshot


async def test_a_range_is_read_and_nothing_behind_the_end(hub: Hub) -> None:
    snapshot = await hub.resolve("acme/good", "main")
    assert await hub.read(snapshot, "config.json", 0, 100) == CONTENT
    assert await hub.read(snapshot, "config.json", 2, 3) == b'a":'
    assert await hub.read(snapshot, "config.json", 8, 5) == b""
    assert await hub.read(snapshot, "config.json", 0, 0) == b""


@pytest.mark.parametrize(
    ("repo", "revision", "kind"),
    [
        ("acme/none", None, errors.RepoNotFound),
        ("../../etc", None, errors.RepoNotFound),
        ("acme/gated", None, errors.RepoGated),
        ("acme/private", None, errors.RepoNotFound),
        ("acme/good", "gone", errors.RevisionNotFound),
        ("acme/good", "refs/pr/1", errors.RevisionNotFound),
    ],
)
async def test_what_cannot_be_had_is_told_apart(
    hub: Hub, repo: str, revision: str | None, kind: type[errors.GuanacoError]
) -> None:
    with pytest.raises(kind, match=repo):
        await hub.resolve(repo, revision)


@pytest.mark.parametrize("repo", ["acme/gated", "acme/private"])
async def test_a_developers_own_token_opens_what_it_was_granted(hub: Hub, repo: str) -> None:
    opened = hub.with_token(GRANTED)
    snapshot = await opened.resolve(repo, None)
    assert await opened.read(snapshot, "config.json", 0, 100) == CONTENT
    assert (await opened.resolve("acme/good", None)).repo == "acme/good"


@pytest.mark.parametrize(
    ("repo", "error"),
    [("acme/gated", errors.RepoGated), ("acme/private", errors.RepoNotFound)],
)
async def test_a_token_that_was_granted_nothing_opens_nothing(
    hub: Hub, repo: str, error: type[errors.GuanacoError]
) -> None:
    stranger = hub.with_token("hf_ofastranger")

    async def read() -> None:
        await stranger.read(await stranger.resolve(repo, None), "config.json", 0, 100)

    with pytest.raises(error, match=repo):
        await read()


async def test_a_token_that_the_hub_refuses_is_told(server: ControlledHub) -> None:
    server.fail(401)
    with pytest.raises(errors.HubTokenRefused, match="acme/good"):
        await HuggingFaceHub(server.url, None, 30).with_token("hf_old").resolve("acme/good", None)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_failing_hub_is_worth_another_try(server: ControlledHub, status: int) -> None:
    server.fail(status)
    hub = HuggingFaceHub(server.url, None, 30)
    with pytest.raises(errors.HubUnreachable, match=str(status)) as failed:
        await hub.resolve("acme/good", None)
    assert failed.value.is_retryable
    assert failed.value.blame is errors.Blame.CHANCE
    with pytest.raises(errors.HubUnreachable, match=str(status)):
        await hub.read(SNAPSHOT, "config.json", 0, 1)
    server.fail(None)
    assert (await hub.resolve("acme/good", None)).files == SNAPSHOT.files


async def test_a_hub_that_is_not_there_is_worth_another_try() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(errors.HubUnreachable, match="does not answer"):
        await HuggingFaceHub(f"http://127.0.0.1:{port}", None, 2).resolve("acme/good", None)


async def test_a_hub_that_keeps_silent_is_given_up(server: ControlledHub) -> None:
    server.hold("acme")
    hub = HuggingFaceHub(server.url, None, 0.2)
    with pytest.raises(errors.HubUnreachable, match="does not answer"):
        await hub.resolve("acme/good", None)
    with pytest.raises(errors.HubUnreachable, match="does not answer"):
        await hub.read(SNAPSHOT, "config.json", 0, 1)


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """A server that answers every request in one way; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send(request: BaseHTTPRequestHandler, status: int, body: bytes, location: str = "") -> None:
    request.send_response(status)
    if location:
        request.send_header("Location", location)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


@pytest.mark.parametrize("body", [b"<html>Log in to the Wi-Fi</html>", b"[]", b"{}"])
async def test_a_server_that_is_no_hub_is_told(body: bytes) -> None:
    with (
        answering(lambda request: send(request, 200, body)) as url,
        pytest.raises(errors.HubUnreachable, match="not its protocol"),
    ):
        await HuggingFaceHub(url, None, 30).resolve("acme/good", None)


async def test_a_redirect_to_nowhere_is_not_content() -> None:
    with (
        answering(lambda request: send(request, 302, b"moved")) as url,
        pytest.raises(errors.HubUnreachable, match="302"),
    ):
        await HuggingFaceHub(url, None, 30).read(SNAPSHOT, "config.json", 0, 5)


async def test_server_ignoring_ranges_is_read_no_further_than_asked() -> None:
    with answering(lambda request: send(request, 200, b"0123456789")) as url:
        assert await HuggingFaceHub(url, None, 30).read(SNAPSHOT, "config.json", 3, 4) == b"3456"


async def test_token_goes_to_the_hub_but_not_to_redirects() -> None:
    tokens: dict[str, str | None] = {}

    def store(request: BaseHTTPRequestHandler) -> None:
        tokens["store"] = request.headers.get("Authorization")
        send(request, 200, CONTENT)

    with answering(store) as elsewhere:

        def redirect(request: BaseHTTPRequestHandler) -> None:
            tokens["hub"] = request.headers.get("Authorization")
            send(request, 302, b"", location=f"{elsewhere}/blob")

        with answering(redirect) as url:
            read = await HuggingFaceHub(url, "hf_x", 30).read(SNAPSHOT, "config.json", 0, 100)
    assert read == CONTENT
    assert tokens == {"hub": "Bearer hf_x", "store": None}


async def test_a_token_that_lies_on_the_machine_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody")
    seen: list[str | None] = []

    def note(request: BaseHTTPRequestHandler) -> None:
        seen.append(request.headers.get("Authorization"))
        send(request, 200, CONTENT)

    with answering(note) as url:
        await HuggingFaceHub(url, None, 30).read(SNAPSHOT, "config.json", 0, 100)
    assert seen == [None]


async def test_a_held_request_goes_on_once_it_is_released(
    server: ControlledHub, root: Path
) -> None:
    server.hold("/api/models/")
    resolving = asyncio.create_task(HuggingFaceHub(server.url, None, 30).resolve("acme/good", None))
    async with asyncio.timeout(30):
        while not server.asked:
            await asyncio.sleep(0.01)
    assert not resolving.done()
    server.release()
    snapshot = await resolving
    assert snapshot.commit == commit_of(root / "acme" / "good")
    assert server.asked == ["/api/models/acme/good"]


@pytest.mark.parametrize("path", ["/../../resolve/main/passwd", "/api/models/../.."])
def test_the_stand_in_serves_nothing_outside_its_root(server: ControlledHub, path: str) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=5)
    connection.request("GET", path)
    assert connection.getresponse().status == 404
    connection.close()


class _Trickle(BaseHTTPRequestHandler):
    """One byte of the body at a time, each well within the time that a read may take."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"{")
                time.sleep(0.05)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.mark.slow
async def test_a_body_that_trickles_is_given_up() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Trickle) as trickling:
        trickling.daemon_threads = True
        Thread(target=trickling.serve_forever, daemon=True).start()
        hub = HuggingFaceHub(f"http://127.0.0.1:{trickling.server_port}", None, 0.5)
        for ask in (hub.resolve("acme/good", None), hub.read(SNAPSHOT, "config.json", 0, 1000)):
            with pytest.raises(errors.HubUnreachable):
                await ask
        trickling.shutdown()


async def test_endless_repo_answer_is_read_up_to_its_limit() -> None:
    sent = 0
    has_ended = Event()

    def endless(request: BaseHTTPRequestHandler) -> None:
        nonlocal sent
        request.send_response(200)
        request.end_headers()
        with contextlib.suppress(OSError):
            while True:
                request.wfile.write(b" " * 2**20)
                sent += 2**20
        has_ended.set()

    with answering(endless) as url, pytest.raises(errors.CorruptConfig, match="over 4 MiB"):
        await HuggingFaceHub(url, None, 30).resolve("acme/good", None)
    assert has_ended.wait(30)
    assert sent < 4 * MAX_LISTING  # some of it waited in the sockets


async def test_answer_that_grows_when_unpacked_is_refused() -> None:
    bomb = gzip.compress(b" " * 2**26)

    def packed(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Encoding", "gzip")
        request.send_header("Content-Length", str(len(bomb)))
        request.end_headers()
        with contextlib.suppress(OSError):
            request.wfile.write(bomb)

    with answering(packed) as url:
        hub = HuggingFaceHub(url, None, 30)
        for ask in (hub.resolve("acme/good", None), hub.read(SNAPSHOT, "config.json", 0, 1000)):
            with pytest.raises(errors.HubUnreachable, match="DecodingError"):
                await ask
