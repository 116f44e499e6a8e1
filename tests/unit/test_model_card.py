"""Model cards: what strangers write in a README.md becomes texts, known tags and plain links, and nothing else."""

from __future__ import annotations

import re

import pytest

from guanaco_server.artifacts.checking.model_card import MAX_CHARS, parse_card
from guanaco_server.web.views.model_card import card_html

FRONT = """---
license: other
license_name: llama3
base_model: [org/base, 7, not a repo]
tags: [chat, "two\\nlines", chat, {a: 1}]
---
# Hello
"""
HOSTILE = """<script>alert(1)</script>

<div onmouseover="x()"><img src=x onerror=alert(1)>

[js](javascript:alert(1)) [data](data:text/html,x) [rel](/keys/revoke) [ok](https://e.org/?a="&b=<)

![pixel](https://tracker.example/p.png) <b onclick=x>bold</b> &lt;i&gt; <https://auto.example>

```html
</code></pre><script>alert(2)</script>
```

| a <img src=x> | b |
|---|---|
| `<svg onload=x>` | [t](HTTPS://E.ORG "title\\" onclick=") |
"""
ALLOWED = re.compile(
    r"</?(p|h[3-6]|ul|ol|li|blockquote|strong|em|code|pre|table|thead|tbody|tr|th|td)>|<(br|hr)>|</a>"
    r'|<a href="https?://[^"<>]*" rel="nofollow noopener noreferrer ugc">',
    re.IGNORECASE,
)


def test_the_front_matter_names_licence_bases_and_tags() -> None:
    card = parse_card(FRONT)
    assert (card.license, card.base_models, card.tags) == ("llama3", ("org/base",), ("chat",))
    assert card.text == "# Hello"
    assert str(card_html(card.nodes)) == "<h3>Hello</h3>"


def test_a_page_gets_known_tags_and_escaped_texts_only() -> None:
    html = str(card_html(parse_card(HOSTILE).nodes))
    for tag in re.findall(r"<[^>]*>", html):
        assert ALLOWED.fullmatch(tag), tag
    for left_out in ("script>alert(1)", "tracker.example", "javascript:", "data:text", "/keys"):
        assert f'"{left_out}' not in html
    assert "&lt;/code&gt;&lt;/pre&gt;&lt;script&gt;" in html
    assert "https://auto.example" in html
    assert "pixel" in html


@pytest.mark.parametrize(
    "nodes",
    [
        [("open", "script"), ("text", "alert(1)")],
        [("open", 'p onclick="x"')],
        [("link", "javascript:alert(1)"), ("link", 'https://e.org/"onclick="x')],
        [("void", "img"), ("close", "body"), ("what", "p")],
    ],
)
def test_nodes_that_a_broken_process_made_up_write_no_tag(nodes: list[tuple[str, str]]) -> None:
    html = str(card_html(nodes))
    assert "<script" not in html
    assert 'onclick="' not in html
    assert "javascript" not in html
    assert "<img" not in html


def test_tags_are_closed_in_their_turn() -> None:
    nodes = [
        ("open", "ul"),
        ("open", "li"),
        ("link", "https://e.org"),
        ("close", "ul"),
        ("open", "p"),
    ]
    assert str(card_html(nodes)).endswith("</a></li></ul><p></p>")


@pytest.mark.parametrize(
    "front",
    [
        "a: [" * 1_500,
        "- " * 3_900 + "x",
        "a: &a [*a]",
        "license: !!python/object:os.system x",
        "license: !!bool foo",
        "license: !!int ''",
        "license: !!timestamp x",
        "license: ~",
        "x" * 9_000,
    ],
)
def test_a_front_matter_that_cannot_be_read_is_left_out(front: str) -> None:
    card = parse_card(f"---\n{front}\n---\nHello\x00")
    assert (card.text, card.license) == ("Hello", None)


def test_a_long_card_is_cut_and_says_so() -> None:
    card = parse_card("word " * MAX_CHARS)
    assert card.is_cut
    assert len(card.text) <= MAX_CHARS
    assert not parse_card("---\nno end").is_cut
    assert parse_card("").nodes == ()
