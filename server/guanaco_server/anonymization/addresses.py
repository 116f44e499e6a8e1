"""Finds links, IP and MAC addresses by their form, and wallets of cryptocurrencies by their checksums."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from hashlib import sha256

from stdnum import bitcoin

from guanaco_server.anonymization.spans import Span, Tag

# Endings that are no English words. Endings that are words too (.me, .it, .so) count only with a path behind them or "my site is" before.
ENDINGS = (
    "com|net|org|edu|gov|info|biz|io|dev|app|xyz|online|site|website|shop|blog|social|club|gg|tv|cc|ly|ai|eu|de|fr|uk|es|nl|pl|ru|"
    "ua|cz|se|fi|dk|br|mx|ar|au|nz|ca|jp|kr|cn|tw|tr|ch|ie|pt|gr|hu|ro|il|za"
)
WORDLIKE_ENDINGS = "me|be|it|so|to|in|am|at|is|my|no|us|co|sh|st|ws|link|page"

LINK = re.compile(
    r"\b(?:[a-z][a-z0-9+.-]{1,15}://|www\.)[^\s<>\"]+"
    rf"|(?<![\w@.-])(?:[\w-]{{1,63}}\.){{1,5}}(?:(?:{ENDINGS})\b(?:[/?:#][^\s<>\"]*)?|(?:{WORDLIKE_ENDINGS})/[^\s<>\"]+)(?!\.?\w)",
    re.IGNORECASE,
)
NAMED_SITE = re.compile(
    r"\b(?:visit|(?:web ?|home ?)?(?:site|page)|blog|portfolio|url)(?:\s{1,3}is|:)?\s{1,3}"
    rf"(?P<site>(?:[\w-]{{1,63}}\.){{1,3}}(?:{WORDLIKE_ENDINGS}))\b(?!\.?\w)",
    re.IGNORECASE,
)
INNER_DOT = re.compile(r"\.\w")
TRAILING = ".,;:!?)]}'*"
IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\.?\w)")
IPV6 = re.compile(r"(?<![\w:.])(?=[0-9a-f:]*\d)[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:])", re.I)
VERSION_BEFORE = re.compile(
    r"(?:version|release|chrome|firmware|build|driver|update|v)\.?\s*$", re.IGNORECASE
)


# The last six octets of a time or a list of numbers have a letter only where they are hexadecimal.
MAC = re.compile(
    r"(?<![\w:.-])(?:[0-9a-f]{2}(?::[0-9a-f]{2}){5}|(?=[0-9-]*[a-f])[0-9a-f]{2}(?:-[0-9a-f]{2}){5}"
    r"|(?=[0-9.]*[a-f])[0-9a-f]{4}(?:\.[0-9a-f]{4}){2})(?![\w:-]|\.\w)",
    re.IGNORECASE,
)
NAMED_MAC = re.compile(
    r"\bmac(?:[ -]?addr\w{0,6})?(?:\s(?:is|ist|es|est))?[\s:=]{1,3}(?P<mac>(?=[a-f]*\d)[0-9a-f]{12})(?!\w)",
    re.IGNORECASE,
)
ETHEREUM = re.compile(r"(?<!\w)0x[0-9a-f]{40}(?!\w)", re.IGNORECASE)
RIPPLE = "rpshnaf39wBUDNEGHJKLM4PQRST7VWXYZ2bcdeCg65jkm8oFqi1tuvAxyz"
SOLANA_CHARS = range(43, 45)  # of 32 bytes; a key that is shorter has zeros in front, which is rare
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
WALLET = re.compile(rf"(?<!\w)(?:[{BASE58}]{{25,44}}|(?:bc|tb)1[a-z0-9]{{25,62}})(?!\w)")
BECH32 = re.compile(r"(?<!\w)(?:ltc1|addr1)[02-9ac-hj-np-z]{30,110}(?!\w)")
MONERO = re.compile(rf"(?<!\w)[48][{BASE58}]{{94}}(?!\w)")
SHORTEST_WALLET = 25


def find(text: str, longest_word: int) -> Iterator[Span]:
    """The cheap tests come first: most lines pass none. ``longest_word`` is 0 where the text has no digit."""
    if INNER_DOT.search(text) or "://" in text:
        yield from matches(LINK, text, Tag.LINK)
        for match in NAMED_SITE.finditer(text):
            yield Span(*match.span("site"), Tag.LINK)
    if text.count(":") >= 2:
        yield from _ip_addresses(IPV6, text)
    if not longest_word:
        return
    if text.count(".") >= 3:
        yield from _ip_addresses(IPV4, text)
    if text.count(":") >= 5 or text.count("-") >= 5 or text.count(".") >= 2:
        yield from matches(MAC, text, Tag.MAC)
    for match in NAMED_MAC.finditer(text):
        yield Span(*match.span("mac"), Tag.MAC)
    if longest_word >= SHORTEST_WALLET:
        yield from _wallets(text)


def matches(pattern: re.Pattern[str], text: str, tag: Tag) -> Iterator[Span]:
    for match in pattern.finditer(text):
        yield Span(match.start(), match.start() + len(match[0].rstrip(TRAILING)), tag)


def _wallets(text: str) -> Iterator[Span]:
    for match in WALLET.finditer(text):
        if match[0].startswith(("bc1", "tb1")):
            is_wallet = bitcoin.is_valid(match[0])
        else:
            is_wallet = _is_base58_wallet(match[0])
        if is_wallet:
            yield Span(*match.span(), Tag.WALLET)
    for form in (ETHEREUM, MONERO, BECH32):
        yield from matches(form, text, Tag.WALLET)


def _is_base58_wallet(text: str) -> bool:
    if len(text) in SOLANA_CHARS:
        return _number(text, BASE58) >> 248 != 0 and _number(text, BASE58) >> 256 == 0
    if text.startswith("r"):
        return _has_checksum(_number(text, RIPPLE))
    return _has_checksum(_number(text, BASE58))


def _number(text: str, alphabet: str) -> int:
    number = 0
    for sign in text:
        number = number * 58 + alphabet.index(sign)
    return number


def _has_checksum(number: int) -> bool:
    """Check the last four bytes, as in Bitcoin, Litecoin, Dogecoin, Tron and XRP: double SHA-256 of the rest."""
    if number >> 200:
        return False
    payload, check = divmod(number, 1 << 32)
    digest = sha256(sha256(payload.to_bytes(21)).digest()).digest()
    return digest[:4] == check.to_bytes(4)


def _ip_addresses(pattern: re.Pattern[str], text: str) -> Iterator[Span]:
    for match in pattern.finditer(text):
        if _is_ip_address(match[0]) and not VERSION_BEFORE.search(text[: match.start()][-20:]):
            yield Span(*match.span(), Tag.IP)


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
