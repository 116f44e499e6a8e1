"""Finds e-mail addresses, links and IP addresses by their form."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from guanaco_server.anonymization.spans import Span, Tag

# Endings that are no English words. Those that are (.me, .it, .so) count only with a path behind them or "my site is" before.
ENDINGS = (
    "com|net|org|edu|gov|info|biz|io|dev|app|xyz|online|site|website|shop|blog|social|club|gg|tv|cc|ly|ai|eu|de|fr|uk|es|nl|pl|ru|"
    "ua|cz|se|fi|dk|br|mx|ar|au|nz|ca|jp|kr|cn|tw|tr|ch|ie|pt|gr|hu|ro|il|za"
)
WORDLIKE_ENDINGS = "me|be|it|so|to|in|am|at|is|my|no|us|co|sh|st|ws|link|page"

EMAIL = re.compile(r"[\w.+%-]{1,64}\s?@\s?[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
BRACKETED_AT = r"\s{0,3}[\[({<]\s{0,3}(?:at|@)\s{0,3}[\])}>]\s{0,3}"
SPOKEN_AT = r"\s{1,3}at\s{1,3}(?!(?:the|a)\b)"
SPELLED_DOT = r"(?:\s{0,3}[\[({<]\s{0,3}(?:dot|\.)\s{0,3}[\])}>]\s{0,3}|\s{1,3}dot\s{1,3})"
ANY_DOT = rf"(?:{SPELLED_DOT}|\.|\s\.\s)"
LOCAL = rf"(?<![\w.+-])[\w.+-]{{1,64}}(?:{SPELLED_DOT}[\w+-]{{1,64}}){{0,3}}"
SPELLED_EMAIL = re.compile(
    rf"{LOCAL}(?:{BRACKETED_AT}|\s?@\s?)(?:[\w-]{{1,63}}{ANY_DOT}){{1,3}}(?:{ENDINGS})\b"
    rf"|{LOCAL}{SPOKEN_AT}(?:[\w-]{{1,63}}{ANY_DOT}){{0,2}}[\w-]{{1,63}}{SPELLED_DOT}(?:{ENDINGS})\b",
    re.IGNORECASE,
)
# "jane at gmail.com", but not "look at example.com": the name has a mark in it, or the host is for mail only.
MAIL_HOSTS = (
    "gmail|googlemail|yahoo|ymail|hotmail|outlook|live|msn|icloud|me|aol|proton(?:mail)?|pm|gmx|web|t-online|freenet|zoho|"
    "fastmail|tutanota|hey|qq|163|126|naver|daum|yandex|mail|inbox|orange|free|laposte|wanadoo|libero|virgilio|uol|bol|terra|"
    "rediffmail|comcast|verizon|att|btinternet|sky"
)
NO_LOCALS = (
    "look|looked|looking|me|us|him|her|them|it|is|was|are|were|be|am|not|log|login|sign|in|up|out|here|there|mail|e-?mail|"
    "inbox|address|account|support|work|works|worked|working|see|still|only|or|and|over|that|this|now|down"
)
MAIL_AT_HOST = re.compile(
    rf"(?:(?!(?:{NO_LOCALS})\s){LOCAL}{SPOKEN_AT}(?:{MAIL_HOSTS})"
    rf"|(?<![\w.+-])(?=[a-z][\w-]{{0,62}}(?:\d|[_.+][\w-]))[\w.+-]{{4,64}}{SPOKEN_AT}(?:[\w-]{{1,63}}\.){{0,2}}[\w-]{{1,63}})"
    rf"(?:\.|\s\.\s)(?:{ENDINGS})\b",
    re.IGNORECASE,
)
SPELLED_AT = re.compile(r"at(?<=[\W_]at)(?![^\W_])")
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


def find(text: str, lower: str) -> Iterator[Span]:
    """The cheap tests come first: most lines of a chat pass none of them. ``lower`` is the text in lower case."""
    has_inner_dot = INNER_DOT.search(text) is not None
    if "@" in text:
        yield from _matches(EMAIL, text, Tag.EMAIL)
    if has_inner_dot or "://" in text:
        yield from _matches(LINK, text, Tag.LINK)
        for match in NAMED_SITE.finditer(text):
            yield Span(*match.span("site"), Tag.LINK)
    has_dot = has_inner_dot or "dot" in lower or " . " in text or "(." in text or "[." in text
    if has_dot and ("@" in text or SPELLED_AT.search(lower)):
        yield from _matches(SPELLED_EMAIL, text, Tag.EMAIL)
        yield from _matches(MAIL_AT_HOST, text, Tag.EMAIL)
    if text.count(".") >= 3:
        yield from _ip_addresses(IPV4, text)
    if text.count(":") >= 2:
        yield from _ip_addresses(IPV6, text)


def _matches(pattern: re.Pattern[str], text: str, tag: Tag) -> Iterator[Span]:
    for match in pattern.finditer(text):
        yield Span(match.start(), match.start() + len(match[0].rstrip(TRAILING)), tag)


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
