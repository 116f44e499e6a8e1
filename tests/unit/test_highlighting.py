"""Tests that what was searched for is found and marked, and that nothing else becomes HTML."""

from __future__ import annotations

from guanaco_server.web.views.highlighting import EXCERPT_CHARS, around, marked


def test_every_place_is_marked_in_its_own_letters() -> None:
    assert marked("Geese, GEESE!", "geese") == "<mark>Geese</mark>, <mark>GEESE</mark>!"
    assert marked("a.b", ".") == "a<mark>.</mark>b"


def test_a_text_stays_text() -> None:
    hostile = "<script>alert('&')</script>"
    assert marked(hostile, "") == "&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;"
    assert "<script" not in marked(hostile, "<script>")
    assert marked("&lt;", "lt") == "&amp;<mark>lt</mark>;"


def test_an_excerpt_holds_what_was_searched_for() -> None:
    assert EXCERPT_CHARS == 90
    long = "word " * 100 + "goose and more " + "word " * 100
    assert "goose" in around(long, "goose")
    assert around(long, "goose").startswith("…word")
    assert around("short", "") == "short"
