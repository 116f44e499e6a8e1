"""Refuses JSON files that say something twice, as ``yaml_files`` does: the parsers of JSON take the last value in silence."""

from __future__ import annotations

import json
import re

from guanaco.yaml_files import RepeatedKey

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:]')


def refuse_repeated_keys(text: str) -> None:
    """Raise RepeatedKey, with the line, where an object in this JSON has a key twice. The text must be valid JSON."""
    objects: list[set[str]] = []
    last = re.match("", text)
    for token in TOKEN.finditer(text):
        match token[0]:
            case "{" | "[":
                objects.append(set())
            case "}" | "]":
                objects.pop()
            case ":":
                assert last is not None
                key = json.loads(last[0])
                if key in objects[-1]:
                    raise RepeatedKey(key, text.count("\n", 0, last.start()) + 1)
                objects[-1].add(key)
        last = token
