"""Decides where a webhook may go: to public hosts, over https, on a few ports.

Otherwise, any developer could send requests from inside the platform's own network.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit

from guanaco.errors import InvalidInput

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
PORTS = frozenset({80, 443})
FIRST_HIGH_PORT = 8_000  # mail servers, databases and caches listen on ports below

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Networks that some versions of Python call global although they reach no public host.
SPECIAL = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # carriers' NAT
        "192.0.0.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "198.18.0.0/15",
        "240.0.0.0/4",
        "::/96",  # an IPv4 address in the oldest form
        "64:ff9b:1::/48",  # local NAT64
        "100::/64",
        "2001::/23",  # Teredo among them
        "2002::/16",  # 6to4
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
    )
)


class AddressRefused(Exception):
    """The message says why, and does not tell the address."""


def is_public(text: str) -> bool:
    """Tell whether packets to this address reach the public internet, however the address is embedded."""
    try:
        address = _unwrapped(ipaddress.ip_address(text))
    except ValueError:  # a scope after a percent sign, for one
        return False
    if address.is_multicast or not address.is_global:
        return False
    return not any(address in network for network in SPECIAL if network.version == address.version)


def require_allowed_url(url: str, *, allow_private: bool) -> str:
    """Return the URL; InvalidInput for one that is not allowed. Host names are resolved at each delivery."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInput("The webhook's URL is broken.") from None
    _require_form(url, parts)
    if parts.scheme != "https" and not (allow_private and parts.scheme == "http"):
        raise InvalidInput("The webhook's URL must begin with https://.")
    if port is not None and port not in PORTS and port < FIRST_HIGH_PORT:
        raise InvalidInput(
            f"A webhook goes to port 443, 80, or {FIRST_HIGH_PORT:,} and above, and not to {port}."
        )
    if not allow_private and _is_private_literal(parts.hostname or ""):
        raise InvalidInput("The webhook's URL leads into a private network.")
    return url


def _require_form(url: str, parts: SplitResult) -> None:
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise InvalidInput(
            "The webhook's URL holds characters that a URL has not.",
            hint="Write international names in their xn-- form.",
        )
    if not parts.hostname or parts.fragment:
        raise InvalidInput("The webhook's URL must look like https://host/path.")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(
            "The webhook's URL holds a name or a password.",
            hint="The signature tells your server that the platform sent it.",
        )


def _is_private_literal(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return not is_public(host)


def _unwrapped(address: IpAddress) -> IpAddress:
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            raise ValueError("an address with a scope is local")
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address
