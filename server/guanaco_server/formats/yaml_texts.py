"""Reads a stranger's YAML as lists, mappings and texts, in bounded depth and size.

No value is made of a text: ``true``, ``12`` and ``1:30`` stay as they are written, so no rule of YAML's types can fail or take
long. The tree is built from the parser's events, one after another, and never by recursion: PyYAML's composer in C recurses on the
C stack, which a hundred thousand dashes overflow. Aliases, tags and keys that are no texts are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is there
MAX_DEPTH = 16
MAX_TAG_DIRECTIVES = 8  # libyaml compares each with all before it: 60,000 take 9 s
TEXT_TAG = "tag:yaml.org,2002:str"

Tree: TypeAlias = "str | list[Tree] | dict[str, Tree]"


class UnreadableYaml(ValueError):
    """The text cannot be read; the message is the end of a sentence."""


def read_texts(text: str, *, max_events: int) -> Tree | None:
    """Return what the one document of the text holds, or None if there is none.

    Args:
        text: The YAML.
        max_events: How many texts, and beginnings and ends of lists and mappings it may have.

    Raises:
        UnreadableYaml: It is no YAML, or holds what is refused here.
    """
    if text.count("%TAG") > MAX_TAG_DIRECTIVES:
        raise UnreadableYaml(f"its YAML has more than {MAX_TAG_DIRECTIVES} %TAG directives")
    try:
        return _tree(_events(text, max_events))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, UnreadableYaml):
            raise
        reason = str(getattr(error, "problem", None) or error).partition("\n")[0][:200]
        raise UnreadableYaml(f"it is not YAML: {reason}") from None


def _events(text: str, most: int) -> Iterator[Any]:
    for count, event in enumerate(yaml.parse(text, Loader=LOADER)):
        if count > most:
            raise UnreadableYaml(f"it has more than {most:,} values")
        if isinstance(event, yaml.AliasEvent):
            raise UnreadableYaml("its YAML refers back with an alias (*)")
        tag = getattr(event, "tag", None)
        if tag not in (None, "!", TEXT_TAG):
            raise UnreadableYaml(f"its YAML has the tag {str(tag)[:64]!r}")
        yield event


def _tree(events: Iterator[Any]) -> Tree | None:
    roots: list[Tree] = []
    open_ones: list[_Collection] = []
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            open_ones.pop()
            continue
        if isinstance(event, yaml.ScalarEvent):
            made: Tree = str(event.value)
        elif isinstance(event, yaml.SequenceStartEvent):
            made = []
        elif isinstance(event, yaml.MappingStartEvent):
            made = {}
        else:  # where the stream and its documents begin and end
            continue
        if open_ones:
            open_ones[-1].add(made)
        elif roots:
            raise UnreadableYaml("it has more than one YAML document")
        else:
            roots.append(made)
        if not isinstance(made, str):
            open_ones.append(_Collection(made))
            if len(open_ones) > MAX_DEPTH:
                raise UnreadableYaml("it is nested too deeply")
    return roots[0] if roots else None


class _Collection:
    """A list or mapping that has begun. In a mapping each second value belongs to the key before it."""

    def __init__(self, made: list[Tree] | dict[str, Tree]) -> None:
        self._made = made
        self._key: str | None = None

    def add(self, value: Tree) -> None:
        if isinstance(self._made, list):
            self._made.append(value)
        elif self._key is not None:
            self._made[self._key] = value
            self._key = None
        elif isinstance(value, str):
            self._key = value
        else:
            raise UnreadableYaml("its YAML has a key that is no text")
