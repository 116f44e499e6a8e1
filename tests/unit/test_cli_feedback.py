"""`guanaco feedback`: filters, files, what is new, and the full-screen reader in a pseudo-terminal."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from guanaco.feedback import Feedback
from guanaco.profile import Profile
from guanaco_cli import connection
from guanaco_cli.feedback_reader import FeedbackScreen
from guanaco_cli.main import run
from tests.fixtures.wire import AT, Script, feedback_json

END = {"items": [], "next_cursor": None}


@pytest.fixture(autouse=True)
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "profile.json"
    Profile("http://guanaco.test", "key").save(path)
    monkeypatch.setenv("GUANACO_PROFILE", str(path))
    for name in ("GUANACO_URL", "GUANACO_API_KEY", "GUANACO_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return path


@pytest.fixture
def server() -> Iterator[Callable[..., Script]]:
    tokens = []

    def answering(*answers: Any) -> Script:
        script = Script(*answers)
        tokens.append(connection.transport.set(script.transport))
        return script

    yield answering
    for token in reversed(tokens):
        connection.transport.reset(token)


def page(*numbers: int, cursor: str | None = None, **changes: Any) -> httpx.Response:
    items = [feedback_json(number, **changes) for number in numbers]
    return httpx.Response(200, json={"items": items, "next_cursor": cursor})


def error(status: int, code: str) -> httpx.Response:
    return httpx.Response(status, json={"error": code, "detail": "This server cannot."})


def test_filters_are_sent_as_they_were_given(server: Any) -> None:
    script = server(httpx.Response(200, json=END))
    options = ["--rating", "down", "--search", "sea & sky", "--bot", "Luna", "--user", "user_1"]
    options += ["--since", "2026-01-02T03:04:05+0000", "--min-length", "2", "--max-length", "9"]
    assert run(["feedback", "x", *options]) == 0
    assert dict(script.requests[0].url.params) == {
        "rating": "down",
        "search": "sea & sky",
        "bot": "Luna",
        "user": "user_1",
        "since": "2026-01-02T03:04:05Z",
        "min_length": "2",
        "max_length": "9",
        "limit": "100",
    }


def test_senseless_filter_is_refused_before_it_is_sent(server: Any, capsys: Any) -> None:
    script = server(httpx.Response(200, json=END))
    for options in (["--min-length", "5", "--max-length", "4"], ["--search", "x" * 201]):
        assert run(["feedback", "x", *options]) == 2
        assert "error: " in capsys.readouterr().err
    assert run(["feedback", "x", "--rating", "meh"]) == 2
    assert run(["feedback", "x", "--read", "--csv"]) == 2
    assert script.requests == []


def test_new_shows_only_what_came_since_the_last_time(server: Any, capsys: Any) -> None:
    script = server(
        page(1, 2, cursor="fb-2"), httpx.Response(200, json=END), page(3, cursor="fb-3"),
        httpx.Response(200, json=END), httpx.Response(200, json=END),
    )  # fmt: skip
    shown = []
    for _ in range(3):
        assert run(["feedback", "x", "--new", "--json"]) == 0
        shown.append([one["id"] for one in json.loads(capsys.readouterr().out)])
    assert shown == [["fb_1", "fb_2"], ["fb_3"], []]
    cursors = [request.url.params.get("cursor") for request in script.requests]
    assert cursors == [None, "fb-2", "fb-2", "fb-3", "fb-3"]


def test_new_through_a_filter_passes_over_nothing_for_other_filters(server: Any) -> None:
    script = server(page(2, cursor="fb-2"), httpx.Response(200, json=END))
    for options in (["--rating", "down"], [], ["--rating", "up"], ["--rating", "down"]):
        assert run(["feedback", "x", "--new", *options]) == 0
    first = [request.url.params.get("cursor") for request in script.requests]
    assert first == [None, "fb-2", None, None, "fb-2"]


def test_new_forgets_nothing_when_the_server_fails_halfway(server: Any) -> None:
    server(page(1, cursor="fb-1"), error(500, "internal_fault"))
    assert run(["feedback", "x", "--new"]) == 1
    script = server(httpx.Response(200, json=END))
    assert run(["feedback", "x", "--new"]) == 0
    assert "cursor" not in script.requests[0].url.params


def test_an_export_is_written_whole_or_not_at_all(server: Any, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "mine.csv"
    answer = httpx.Response(200, content=b"id\r\n1\r\n", headers={"X-Next-Cursor": "fb-9"})
    script = server(answer, error(501, "export_unsupported"))
    new = ["--new", "--rating", "up"]
    assert run(["feedback", "x", "--export", str(file), *new]) == 0
    assert file.read_bytes() == b"id\r\n1\r\n"
    assert dict(script.requests[0].url.params) == {"format": "csv", "rating": "up"}
    assert run(["feedback", "x", "--export", str(file.with_suffix(".parquet")), *new]) == 1
    assert script.requests[1].url.params["cursor"] == "fb-9"
    assert "This server cannot." in capsys.readouterr().err
    assert run(["feedback", "x", "--export", str(file.with_suffix(".xlsx"))]) == 2
    assert ".jsonl, .csv or .parquet" in capsys.readouterr().err
    assert [path.name for path in tmp_path.glob("*mine*")] == ["mine.csv"]


@pytest.mark.slow
def test_erasing_asks_first(server: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known_as = {"ada": "user_0b"}
    erased = {"user": "user_0a", "conversations": 2, "messages": 4, "ratings": 1} | {
        "known_as": known_as
    }
    script = server(httpx.Response(200, json=erased))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run(["users", "erase", "user-17"]) != 0
    assert script.requests == []
    assert run(["users", "erase", "user-17", "--account", "app", "--yes", "--json"]) == 0
    assert json.loads(script.requests[0].content) == {"user_id": "user-17", "account": "app"}
    assert json.loads(capsys.readouterr().out) == erased
    assert run(["users", "erase", "user-17", "--yes"]) == 0
    assert "2 conversations, 4 messages, 1 rating." in capsys.readouterr().err


def test_the_audit_log_is_a_table_or_json(server: Any, capsys: Any) -> None:
    entry = {"id": 1, "at": AT, "account": "root", "action": "erase user", "subject": "user_0a"}
    server(httpx.Response(200, json={"items": [entry], "next_cursor": "1"}))
    assert run(["audit"]) == 0
    assert "erase user" in capsys.readouterr().out
    assert run(["audit", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["subject"] == "user_0a"


def rating(number: int, lines: int = 1, **changes: Any) -> Feedback:
    messages = [
        {"id": f"m{place}", "sender": "bot" if place % 2 else "user", "content": f"line {place}", "at": AT}
        for place in range(lines)
    ]  # fmt: skip
    return Feedback.model_validate(
        feedback_json(number, text=f"words {number}", messages=messages, **changes)
    )


def shown(reader: FeedbackScreen, width: int = 60, height: int = 8) -> str:
    lines = reader.lines(width, height)
    assert len(lines) == height
    assert all(line.cell_len < width for line in lines)
    return "\n".join(line.plain for line in lines)


def test_the_reader_fetches_only_what_comes_into_view() -> None:
    fetched = []

    def source() -> Iterator[Feedback]:
        for number in range(1_000):
            fetched.append(number)
            yield rating(number)

    reader = FeedbackScreen("x", source())
    assert "words 5" in shown(reader)
    assert len(fetched) < 10
    for _ in range(3):
        reader.press("space")
    assert "words 18" in shown(reader)
    assert len(fetched) < 40


def test_the_reader_goes_through_conversations_and_back() -> None:
    reader = FeedbackScreen("x", iter([rating(1, lines=30), rating(2, lines=2)]))
    shown(reader)
    reader.press("enter")
    assert "line 0" in shown(reader)
    for _ in range(40):
        reader.press("space")
        shown(reader)
    assert "line 29" in shown(reader)
    reader.press("n")
    assert "words 2" in shown(reader)
    reader.press("n")
    assert "words 2" in shown(reader)
    reader.press("p")
    assert "words 1" in shown(reader)
    assert reader.press("q")
    assert "enter read" in shown(reader)
    assert not reader.press("q")


def test_the_reader_shows_parameters_the_first_message_marks_and_times() -> None:
    took = {"ttft_ms": 120, "total_ms": 900}
    old, new = {"sender": "bot", "at": AT, "timings": took}, {"is_regenerated": True}
    messages = [
        {"id": "m1", "sender": "user", "content": "Where to?", "at": AT},
        {"id": "m2", "content": "North.", "is_deleted": True, **old},
        {"id": "m3", "content": "South.", **old, **new},
    ]
    one = Feedback.model_validate(
        feedback_json(1, first_message="Ahoy!", messages=messages, params={"temperature": 0.42})
    )
    reader = FeedbackScreen("x", iter([one]))
    reader.press("")
    shown(reader)
    reader.press("enter")
    text = shown(reader, width=400, height=30)
    for part in (
        "temperature 0.42",
        "Ada (first message)\nAhoy!",
        "Ada (deleted) 120 ms, all 900 ms\nNorth.",
    ):
        assert part in text
    assert "Ada (again) 120 ms, all 900 ms\nSouth." in text


def test_the_reader_without_ratings_says_so() -> None:
    reader = FeedbackScreen("x", iter([]))
    for key in ("enter", "down", "up", "space", "n"):
        assert reader.press(key)
        assert "None yet." in shown(reader)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (3, 2), (20, 3), (200, 60)])
def test_the_reader_fits_every_terminal(width: int, height: int) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J 漢字漢字漢字 [bold]x[/bold]"
    reader = FeedbackScreen(hostile, iter([rating(1, lines=3, bot_name=hostile), rating(2)]))
    for key in ("", "enter", "down"):
        reader.press(key)
        text = "\n".join(line.plain for line in reader.lines(width, height))
        assert "\x1b" not in text
        assert "\x07" not in text


def test_read_needs_a_terminal(server: Any, capsys: Any) -> None:
    server(page(1))
    assert run(["feedback", "x", "--read"]) == 2
    assert "needs a terminal" in capsys.readouterr().err


@pytest.fixture
def loopback() -> Iterator[str]:
    """A server for a real process: one page of two ratings, then nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_first = "cursor" not in self.path
            first = [rating(1, lines=2).model_dump(mode="json"), rating(2).model_dump(mode="json")]
            body = json.dumps({"items": first, "next_cursor": "fb-2"} if is_first else END)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class Terminal:
    """A command in a pseudo-terminal."""

    def __init__(self, *arguments: str, url: str) -> None:
        self.text = ""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a job in the background ignores
            environ = os.environ | {"GUANACO_URL": url, "GUANACO_API_KEY": "k", "TERM": "xterm"}
            command = [sys.executable, "-m", "guanaco_cli", *arguments]
            os.execvpe(sys.executable, command, environ)
        size = struct.pack("HHHH", 10, 70, 0, 0)
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, size)

    def press(self, keys: bytes, until: str) -> str:
        """Return what was drawn since, once it holds that text."""
        start = len(self.text)
        os.write(self.descriptor, keys)
        deadline = time.monotonic() + 60
        while until not in self.text[start:]:
            assert time.monotonic() < deadline, self.text[start:]
            self._take()
        return self.text[start:]

    def end(self) -> int:
        """The exit status."""
        while self._take():
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(status)

    def _take(self) -> bool:
        if select.select([self.descriptor], [], [], 0.1)[0]:
            try:
                data = os.read(self.descriptor, 4_096)
            except OSError:  # Linux says so when the other side has closed
                return False
            self.text += data.decode(errors="replace")
            return bool(data)
        return True


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_reader_pages_by_keyboard_and_restores_the_terminal(loopback: str) -> None:
    terminal = Terminal("feedback", "x", "--read", url=loopback)
    terminal.press(b"", until="words 2")
    terminal.press(b"\r", until="line 1")
    terminal.press(b"n", until="2: ")
    terminal.press(b"\x1b[D", until="line 1")
    terminal.press(b"q", until="enter read")
    left = terminal.press(b"q", until="\x1b[?1049l")
    assert "\x1b[?25h" in left
    assert terminal.end() == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_ctrl_c_leaves_the_terminal_as_it_was(loopback: str) -> None:
    terminal = Terminal("feedback", "x", "--read", url=loopback)
    terminal.press(b"", until="words 2")
    terminal.press(b"\x03", until="\x1b[?1049l")
    assert terminal.end() == 130


def test_limit_takes_the_newest_and_notes_completeness(server: Any, capsys: Any) -> None:
    server(page(1, 2, cursor="c1"), page(3, cursor="c2"), httpx.Response(200, json=END))
    assert run(["feedback", "org-model_v1", "--limit", "2", "--new", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in shown] == [feedback_json(2)["id"], feedback_json(3)["id"]]
    script = server(httpx.Response(200, json=END))
    assert run(["feedback", "org-model_v1", "--new"]) == 0
    assert script.requests[0].url.params["cursor"] == "c2"
    assert run(["feedback", "org-model_v1", "--limit", "0"]) == 2
    assert run(["feedback", "org-model_v1", "--limit", "2", "--export", "x.csv"]) == 2
