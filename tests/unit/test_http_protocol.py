"""Our use of uvicorn's internals: which version it was made for, and what it relies on."""

from __future__ import annotations

import tomllib
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from guanaco_server.http.protocol import ABORT, MADE_FOR, AbortableProtocol, abort_of, add_extension

ROOT = Path(__file__).parents[2]


def test_the_protocol_was_made_for_the_installed_uvicorn() -> None:
    """If this fails: read uvicorn's httptools_impl, then raise MADE_FOR and the bound in pyproject.toml together."""
    assert uvicorn.__version__.startswith(f"{MADE_FOR}.")


def test_no_later_minor_version_of_uvicorn_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = (project["dependencies"], *project["optional-dependencies"].values())
    wanted = [one for group in groups for one in group if one.startswith("uvicorn")]
    major, minor = MADE_FOR.split(".")
    assert wanted == [f"uvicorn>={MADE_FOR},<{major}.{int(minor) + 1}"]


def test_the_method_that_is_overridden_exists() -> None:
    assert AbortableProtocol.on_message_begin is not HttpToolsProtocol.on_message_begin


def test_an_extension_is_added_to_those_of_the_server() -> None:
    scope = {"type": "http", "extensions": {"tls": {"version": 0x0304}}}

    def abort() -> None: ...

    add_extension(scope, ABORT, abort)
    assert scope["extensions"] == {"tls": {"version": 0x0304}, ABORT: abort}
    assert abort_of(scope) is abort


def test_a_scope_without_extensions_gets_one() -> None:
    scope: dict[str, object] = {"type": "http"}
    assert abort_of(scope) is None
    add_extension(scope, "other", 1)
    assert scope["extensions"] == {"other": 1}
