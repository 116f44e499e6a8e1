"""docs/sdk.md promises a client for everything that the HTTP API does; the OpenAPI document says what that is."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guanaco.calls import (
    accounts,
    aliases,
    characters,
    chat,
    competitions,
    duels,
    feedback,
    gpus,
    prompts,
    submissions,
    sweeps,
)
from guanaco.lore import Lorebook
from tests.unit.test_sdk_client import ARGUMENTS, KEYWORDS

DOCUMENT = json.loads(
    (Path(__file__).parents[2] / "server/guanaco_server/http/openapi.json").read_text()
)
MODULES = (
    accounts, aliases, characters, chat, competitions, duels, feedback, gpus, prompts, submissions, sweeps,
)  # fmt: skip
GIVEN = ARGUMENTS | {
    "vote_on_battle": ("conv_1", "battle_1", "a"),
    "set_lorebook": ("some-id", Lorebook()),
    "push_prompt": ("night", "chatml"),
    "push_character": (b"{}",),
}
NAMED = KEYWORDS | {"change_character": {"is_public": True}}
AGAIN: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "push_character": ((b"{}",), {"character_id": "some-id"}),
    "quota": (("ada",), {}),
    "set_lorebook": (("some-id", None), {}),
}
"""Arguments with which a call goes to its other path."""
RENAMED = {
    "tag": "tags",
    "submission": "submission_id",
    "public": "is_public",
    "show_prompt": "is_shown",
    "prompt": "formatter",  # a stored prompt is named in its place
}
WHOLE = {"request", "override", "book", "card", "filters", "query"}
"""Arguments that are the whole body, or all of the query."""
NOT_CHECKED = {"check": {"name", "show_prompt"}}  # they are of a submission that is made


def calls() -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield the name, method, path and parameters of each call of the SDK."""
    for module in MODULES:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith(("_", "parse_")) or function.__module__ != module.__name__:
                continue
            signature = inspect.signature(function)
            given = GIVEN.get(name) or ("some-id",) * sum(
                one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
                for one in signature.parameters.values()
            )
            first = (given, NAMED.get(name, {}))
            for arguments, named in (first, AGAIN.get(name, first)):
                call = function(*arguments, **named)
                yield name, call.method, call.path, list(signature.parameters)


def arguments_of(operation: dict[str, Any]) -> set[str]:
    """Return the names in an operation's query and JSON body, without ``stream``, for which the SDK has calls of their own."""
    names = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"}
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = content.get("schema", {})
        while "$ref" in schema:
            schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        names |= set(schema.get("properties", ()))
    return names - {"stream"}


def test_the_sdk_has_every_call_and_argument_of_the_api() -> None:
    made = list(calls())
    missing = []
    for path, operations in DOCUMENT["paths"].items():
        if not path.startswith("/api/v1/"):
            continue
        pattern = re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path))
        for method, operation in operations.items():
            matching = [
                (name, parameters)
                for name, sent, place, parameters in made
                if sent == method.upper() and pattern.fullmatch(place)
            ]
            if not matching:
                missing.append(f"{method.upper()} {path}")
            for name, parameters in matching:
                wanted = arguments_of(operation) - NOT_CHECKED.get(name, set())
                lacking = {
                    one for one in wanted if not {one, RENAMED.get(one, one)} & {*parameters}
                }
                if lacking and not WHOLE & {*parameters}:
                    missing.append(f"{name}: {', '.join(sorted(lacking))}")
    assert not missing, "the SDK lacks these calls and arguments"
