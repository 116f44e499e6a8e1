"""Our use of uvicorn's internals: which version it was made for, and what it relies on."""

from __future__ import annotations

import resource
import tomllib
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from guanaco_server.http.connections.front_door import (
    AddressCount,
    DoorLimits,
    OverLimit,
    network_of,
)
from guanaco_server.http.connections.protocol import (
    ABORT,
    MADE_FOR,
    GuardedProtocol,
    abort_of,
    add_extension,
)
from guanaco_server.settings import Settings

ROOT = Path(__file__).parents[2]


def test_the_protocol_was_made_for_the_installed_uvicorn() -> None:
    """Read uvicorn's httptools_impl if this fails, then raise MADE_FOR and the bound in pyproject.toml together."""
    assert uvicorn.__version__.startswith(f"{MADE_FOR}.")


def test_no_later_minor_version_of_uvicorn_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = (project["dependencies"], *project["optional-dependencies"].values())
    wanted = [one for group in groups for one in group if one.startswith("uvicorn")]
    major, minor = MADE_FOR.split(".")
    assert wanted == [f"uvicorn>={MADE_FOR},<{major}.{int(minor) + 1}"]


OVERRIDDEN = (
    "connection_made",
    "connection_lost",
    "data_received",
    "on_message_begin",
    "on_headers_complete",
    "on_message_complete",
    "on_response_complete",
    "pause_writing",
    "resume_writing",
)


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_each_method_that_is_overridden_exists(name: str) -> None:
    assert getattr(GuardedProtocol, name) is not getattr(HttpToolsProtocol, name)


@pytest.mark.parametrize(
    ("files", "connections", "per_address"),
    [(256, 64, 32), (1_024, 256, 64), (20_000, 9_744, 2_436), (1_048_576, 16_384, 4_096)],
)
def test_connections_leave_files_for_the_platform(
    files: int, connections: int, per_address: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    limits = DoorLimits.of(Settings(), 1)
    assert (limits.connections, limits.per_address) == (connections, per_address)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("no address", "no address"),
    ],
)
def test_an_ipv6_network_counts_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize(
    ("forwarded_for", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("203.0.113.9, 192.0.2.1:80, 10.0.0.2", "192.0.2.1"),
        ("[2001:db8::1]:80", "2001:db8::1"),
        ("10.0.0.2, 10.0.0.3", "10.0.0.2"),
        ("nonsense", "nonsense"),
        ("", ""),
    ],
)
def test_client_behind_proxies_is_the_last_non_proxy(forwarded_for: str, client: str) -> None:
    assert AddressCount(1, ("10.0.0.0/8",)).client_of(forwarded_for) == client


def test_an_address_has_its_limit_and_a_trusted_proxy_none() -> None:
    count = AddressCount(1, ("10.0.0.0/8",))
    mine = count.enter("192.0.2.7")
    with pytest.raises(OverLimit):
        count.enter("192.0.2.7")
    assert count.enter("192.0.2.8") is not None
    assert [count.enter("10.0.0.1") for _ in range(9)] == [None] * 9
    count.leave(mine)
    assert count.enter("192.0.2.7") == mine


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
