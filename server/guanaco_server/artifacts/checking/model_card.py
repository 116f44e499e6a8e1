"""A repo's README.md: its front matter, its text, and the text as nodes that a page can show.

It is read where the configs are, in the confined process. What leaves that process are texts and the names of known tags, and
whoever shows them makes the HTML from these alone (web/views/model_card.py): there is no HTML of the README's own, no image, and no
link but to http and https. A card that cannot be read is none; it never fails a submission.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Self

from markdown_it import MarkdownIt
from markdown_it.token import Token

from guanaco.cards import ModelCard
from guanaco.forms import REPO
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.formats.yaml_texts import UnreadableYaml, read_texts

NAME = "README.md"
MAX_READ_BYTES = 200_000
MAX_CHARS = 40_000  # the worst Markdown of this length takes seconds, and the check has 30
MAX_FRONT_CHARS = 8_000
MAX_NODES = 20_000
MAX_WORDS, MAX_WORD_CHARS = 32, 100  # of what the front matter lists
TAGS = frozenset(
    [
        "p",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "ul",
        "ol",
        "li",
        "blockquote",
        "strong",
        "em",
        "code",
        "pre",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    ]
)
NULLS = ("~", "null", "Null", "NULL")  # as YAML writes them
VOID_TAGS = frozenset({"br", "hr"})
SAFE_LINK = re.compile(r"https?://[^\s\x00-\x1f\x7f]{1,2000}", re.IGNORECASE)

Node = tuple[str, str]
"""``open``, ``close`` or ``void`` with a tag, ``link`` with its address and ``unlink``, or ``text``."""


@dataclass(frozen=True)
class ParsedCard:
    """The parsed card: ``guanaco.cards.ModelCard`` and the nodes that a page shows."""

    text: str
    is_cut: bool
    license: str | None
    base_models: tuple[str, ...]
    tags: tuple[str, ...]
    nodes: tuple[Node, ...]


class StoredCard(ModelCard):
    """A card as it is kept with the submission."""

    nodes: tuple[Node, ...] = ()

    @classmethod
    def of(cls, card: ParsedCard) -> Self:
        return cls(**asdict(card))

    @property
    def public(self) -> ModelCard:
        """Return the card for the API, without the nodes."""
        return ModelCard(**{name: getattr(self, name) for name in ModelCard.model_fields})


async def read_card(hub: Hub, snapshot: RepoSnapshot) -> ParsedCard | None:
    """Return the repo's card, or None if it has no README.md."""
    file = snapshot.file(NAME)
    if file is None:
        return None
    data = await hub.read(snapshot, NAME, 0, min(file.size_bytes, MAX_READ_BYTES))
    return parse_card(data.decode("utf-8", "replace"), is_cut=file.size_bytes > MAX_READ_BYTES)


def parse_card(readme: str, *, is_cut: bool = False) -> ParsedCard:
    front, text = _split(readme.replace("\r\n", "\n").replace("\x00", "").removeprefix("\ufeff"))
    facts = _front_matter(front)
    is_cut = is_cut or len(text) > MAX_CHARS
    text = text[:MAX_CHARS].strip()
    nodes: list[Node] = []
    for node in _nodes(text):
        if len(nodes) == MAX_NODES:
            is_cut = True
            break
        nodes.append(node)
    licence = _words(facts.get("license"))
    named = _words(facts.get("license_name"))
    return ParsedCard(
        text=text,
        is_cut=is_cut,
        license=next(iter(named if licence in ((), ("other",)) and named else licence), None),
        base_models=tuple(w for w in _words(facts.get("base_model")) if re.fullmatch(REPO, w)),
        tags=_words(facts.get("tags")),
        nodes=tuple(nodes),
    )


def _split(readme: str) -> tuple[str, str]:
    """Return the YAML between the first lines of dashes, and the rest."""
    if not readme.startswith("---\n"):
        return "", readme
    front, sign, text = readme[4:].partition("\n---")
    return (front, text.partition("\n")[2]) if sign else ("", readme)


def _front_matter(front: str) -> dict[str, Any]:
    if len(front) > MAX_FRONT_CHARS:
        return {}
    try:
        found = read_texts(front, max_events=MAX_FRONT_CHARS)
    except UnreadableYaml:
        return {}
    return found if isinstance(found, dict) else {}


def _words(value: Any) -> tuple[str, ...]:
    """Return the short lines of text among what the front matter gives for a name, each once."""
    values = value[:MAX_WORDS] if isinstance(value, list) else [value]
    words = (one.strip() for one in values if isinstance(one, str) and one not in NULLS)
    return tuple(
        dict.fromkeys(w for w in words if w.isprintable() and 0 < len(w) <= MAX_WORD_CHARS)
    )


def _nodes(text: str) -> Iterator[Node]:
    try:
        tokens = MarkdownIt("commonmark").enable("table").parse(text)
    except (RecursionError, ValueError, IndexError):
        yield "open", "pre"
        yield "text", text
        yield "close", "pre"
        return
    for token in tokens:
        if token.type == "inline":
            yield from _inline(token.children or ())
        elif token.type in ("fence", "code_block"):
            yield "open", "pre"
            yield "text", token.content
            yield "close", "pre"
        elif not token.hidden:
            yield from _tag(token)


def _inline(tokens: Any) -> Iterator[Node]:
    links: list[bool] = []
    for token in tokens:
        match token.type:
            case "text":
                yield "text", token.content
            case "softbreak":
                yield "text", "\n"
            case "code_inline":
                yield "open", "code"
                yield "text", token.content
                yield "close", "code"
            case "image":
                yield "text", token.content  # what it would say to who cannot see it
            case "link_open":
                href = str(token.attrs.get("href", ""))
                links.append(SAFE_LINK.fullmatch(href) is not None)
                if links[-1]:
                    yield "link", href
            case "link_close":
                if links and links.pop():
                    yield "unlink", ""
            case _:
                yield from _tag(token)


def _tag(token: Token) -> Iterator[Node]:
    """HTML of the README's own has no tag of ours, and is left out."""
    if token.tag in TAGS and token.nesting:
        yield ("open" if token.nesting == 1 else "close"), token.tag
    elif token.tag in VOID_TAGS:
        yield "void", token.tag
