"""Feedback in the SDK: filters, data frames and files, with and without asyncio."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from guanaco.client import AsyncClient, Client
from guanaco.errors import ExportUnsupported, InvalidInput, LibraryMissing
from tests.fixtures.wire import Script, feedback_json

URL = "http://guanaco.test"
PAGES = (
    httpx.Response(
        200, json={"items": [feedback_json(1), feedback_json(2)], "next_cursor": "fb-2"}
    ),
    httpx.Response(200, json={"items": [], "next_cursor": None}),
)


def client(*answers: Any) -> tuple[Client, Script]:
    script = Script(*answers)
    return Client(URL, "key", transport=script.transport), script


def test_filters_go_to_the_server_with_every_page() -> None:
    guanaco, script = client(*PAGES)
    since = datetime(2026, 1, 1, tzinfo=UTC)
    assert len(list(guanaco.feedback("x", rating="up", since=since))) == 2
    assert [dict(request.url.params) for request in script.requests] == [
        {"rating": "up", "since": "2026-01-01T00:00:00Z", "limit": "100"},
        {"rating": "up", "since": "2026-01-01T00:00:00Z", "limit": "100", "cursor": "fb-2"},
    ]


@pytest.mark.parametrize(
    "filters",
    [{"ratting": "up"}, {"rating": "meh"}, {"since": datetime(2026, 1, 1)}, {"search": ""}],  # noqa: DTZ001
)
def test_a_wrong_filter_is_refused_before_it_is_sent(filters: dict[str, Any]) -> None:
    guanaco, script = client(*PAGES)
    with pytest.raises(InvalidInput, match=next(iter(filters))):
        list(guanaco.feedback("x", **filters))
    assert script.requests == []


@pytest.mark.parametrize("library", ["pandas", "polars"])
async def test_a_data_frame_has_a_row_a_rating(library: Any) -> None:
    guanaco, _ = client(*PAGES)
    frame = guanaco.feedback_frame("x", library=library)
    assert list(frame["id"]) == ["fb_1", "fb_2"]
    assert type(frame).__module__.startswith(library)
    anyway = AsyncClient(URL, "key", transport=Script(*PAGES).transport)
    assert list((await anyway.feedback_frame("x", library=library))["text"]) == ["lovely"] * 2
    empty, _ = client(PAGES[1])
    none = empty.feedback_frame("x", library=library)
    assert (len(none), list(none.columns)) == (0, list(frame.columns))


def test_without_a_choice_it_is_the_library_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    guanaco, _ = client(*PAGES)
    assert type(guanaco.feedback_frame("x")).__module__.startswith("polars")
    monkeypatch.setitem(sys.modules, "polars", None)
    for library, named in ((None, "pandas or polars"), ("pandas", "pandas"), ("polars", "polars")):
        with pytest.raises(LibraryMissing, match=named):
            client(*PAGES)[0].feedback_frame("x", library=library)  # type: ignore[arg-type]


async def test_an_export_is_a_file_and_a_cursor(tmp_path: Path) -> None:
    answer = httpx.Response(200, content=b"{}\n", headers={"X-Next-Cursor": "fb-7"})
    guanaco, script = client(answer)
    assert guanaco.export_feedback("x", tmp_path / "a.jsonl", cursor="fb-1", bot="Luna") == "fb-7"
    assert dict(script.requests[0].url.params) == {"cursor": "fb-1", "bot": "Luna"}
    anyway = AsyncClient(URL, "key", transport=Script(answer).transport)
    assert await anyway.export_feedback("x", tmp_path / "b.bin", "parquet") == "fb-7"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.bin"]


def test_a_refused_export_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_text("before")
    refusal = {"error": "export_unsupported", "detail": "This server cannot."}
    guanaco, _ = client(httpx.Response(501, json=refusal))
    with pytest.raises(ExportUnsupported):
        guanaco.export_feedback("x", path)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("a.parquet", "before")]
