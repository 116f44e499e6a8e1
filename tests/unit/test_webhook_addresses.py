"""Tests where webhooks may go, and that a name cannot mean one host when it is looked at and another when it is called."""

from __future__ import annotations

import httpcore
import pytest

from guanaco.errors import InvalidInput
from guanaco_server.notifications.addresses import is_public, require_allowed_url
from guanaco_server.notifications.client import WebhookClient

PRIVATE = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "127.0.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.8",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::10.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2001::1",
    "2002:7f00:1::",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "not an address",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_the_public_internet_is_refused(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://example.org/", "must begin with https"),
        ("ftp://example.org/", "must begin with https"),
        ("https://", "must look like"),
        ("https:///path", "must look like"),
        ("https://example.org/#part", "must look like"),
        ("https://user:pass@example.org/", "a name or a password"),
        ("https://example.org:22/", "and not to 22"),
        ("https://example.org:5432/", "and not to 5432"),
        ("https://example.org:99999/", "broken"),
        ("https://[::1", "broken"),
        ("https://127.0.0.1/", "private network"),
        ("https://[::ffff:127.0.0.1]/", "private network"),
        ("https://169.254.169.254/latest", "private network"),
        ("https://localhost/", "private network"),
        ("https://exämple.org/", "characters"),
        ("https://example.org/ x", "characters"),
        ("https://example.org\\@evil.org/", "characters"),
        ("https://example.org/\r\nX: y", "characters"),
    ],
)
def test_unusable_url_is_refused_in_a_sentence(url: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        require_allowed_url(url, allow_private=False)


@pytest.mark.parametrize(
    "url", ["https://example.org/hook?x=1", "https://example.org:8443/", "https://8.8.8.8/"]
)
def test_a_public_url_is_taken(url: str) -> None:
    assert require_allowed_url(url, allow_private=False) == url


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::ffff:7f00:1"]])
async def test_internal_name_is_refused_before_anything_is_sent(
    addresses: list[str],
) -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        return addresses

    courier = WebhookClient(allow_private=False, timeout_s=1, resolve=resolve)
    answer = await courier.post("https://inside.example/", {}, b"{}")
    assert (answer.status, answer.result) == (None, "the host's address is not a public one")


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1"])
async def test_oddly_spelled_address_is_judged_by_its_meaning(host: str) -> None:
    courier = WebhookClient(allow_private=False, timeout_s=5)
    answer = await courier.post(f"https://{host}/", {}, b"{}")
    assert answer.status is None
    assert answer.result in ("the host's address is not a public one", "the host has no address")


async def test_impossible_name_is_an_answer_too() -> None:
    answer = await WebhookClient(allow_private=False, timeout_s=5).post(
        f"https://{'a' * 64}.org/", {}, b""
    )
    assert answer.result == "the host has no address"


async def test_connection_goes_to_the_resolved_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, called = [], []
    changing = iter([["8.8.8.8"], ["127.0.0.1"], ["127.0.0.1"]])

    async def resolve(host: str, _port: int) -> list[str]:
        asked.append(host)
        return next(changing)

    async def connect(_network: object, host: str, port: int, **_: object) -> None:
        called.append((host, port))
        raise httpcore.ConnectError

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect)
    courier = WebhookClient(allow_private=False, timeout_s=1, resolve=resolve)
    answer = await courier.post("https://rebinds.example/", {}, b"{}")
    assert (asked, called) == (["rebinds.example"], [("8.8.8.8", 443)])
    assert answer.result == "no connection, or it broke off"
