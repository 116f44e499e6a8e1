"""Makes HTML of a model card's nodes: known tags, escaped texts, links that say whose they are not."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

from guanaco_server.artifacts.checking.model_card import SAFE_LINK, TAGS, VOID_TAGS, Node

HEADINGS = {
    "h1": "h3",
    "h2": "h4",
    "h3": "h5",
    "h4": "h6",
    "h5": "h6",
    "h6": "h6",
}  # under the page's own


def card_html(nodes: Iterable[Node]) -> Markup:
    """Return the HTML, in which every tag is closed in its turn, whatever the nodes say."""
    written: list[str] = []
    open_tags: list[str] = []

    def close(tag: str) -> None:
        if tag in open_tags:
            while (inner := open_tags.pop()) != tag:
                written.append(f"</{inner}>")
            written.append(f"</{tag}>")

    for kind, value in nodes:
        tag = HEADINGS.get(value, value)
        match kind:
            case "text":
                written.append(str(escape(value)))
            case "open" if value in TAGS:
                open_tags.append(tag)
                written.append(f"<{tag}>")
            case "close" if value in TAGS:
                close(tag)
            case "void" if value in VOID_TAGS:
                written.append(f"<{tag}>")
            case "link" if SAFE_LINK.fullmatch(value) and "a" not in open_tags:
                open_tags.append("a")
                written.append(f'<a href="{escape(value)}" rel="nofollow noopener noreferrer ugc">')
            case "unlink":
                close("a")
    written.extend(f"</{tag}>" for tag in reversed(open_tags))
    return Markup("".join(written))  # noqa: S704 - made of known tags and escaped texts
