"""E-mail addresses, links, handles and IP addresses: what has a form, and is in no register."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from guanaco_server.anonymization.spans import Span, Tag

# Endings that are no English words. Those that are (.me, .it, .so) need a path behind them to count as a link.
ENDINGS = (
    "com|net|org|edu|gov|info|biz|io|dev|app|xyz|online|site|shop|club|gg|tv|cc|ly|ai|eu|de|fr|uk|es|nl|pl|ru|"
    "ua|cz|se|fi|dk|br|mx|ar|au|nz|ca|jp|kr|cn|tw|tr|ch|ie|pt|gr|hu|ro|il|za"
)
WORDLIKE_ENDINGS = "me|be|it|so|to|in|am|at|is|my|no|us|co|sh|st|ws|link|page"

EMAIL = re.compile(r"[\w.+%-]{1,64}\s?@\s?[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
SPELLED_EMAIL = re.compile(
    r"[\w.+-]{1,64}(?:\s*[\[({]\s*at\s*[\])}]\s*|\s+at\s+|\s?@\s?)(?!the\b|a\b)[\w-]{1,63}"
    rf"(?:\s*[\[({{]\s*dot\s*[\])}}]\s*|\s+dot\s+)(?:{ENDINGS})\b",
    re.IGNORECASE,
)
LINK = re.compile(
    r"\b(?:[a-z][a-z0-9+.-]{1,15}://|www\.)[^\s<>\"]+"
    rf"|(?<![\w@.-])(?:[\w-]{{1,63}}\.){{1,5}}(?:(?:{ENDINGS})\b(?:[/?:#][^\s<>\"]*)?|(?:{WORDLIKE_ENDINGS})/[^\s<>\"]+)(?!\.?\w)",
    re.IGNORECASE,
)
INNER_DOT = re.compile(r"\.\w")
TRAILING = ".,;:!?)]}'*"
HANDLE = re.compile(
    r"(?<![\w@/.])@[A-Za-z_][\w.]{1,63}(?:@[\w.-]{3,64})?|(?<![\w#])[\w.]{2,32}#\d{4}(?!\d)"
)
NAMED_HANDLE = re.compile(
    r"\b(?:discord|insta(?:gram)?|ig|snap(?:chat)?|telegram|tg|kik|whats ?app|skype|tiktok|twitter|wechat)\b"
    r"(?:\s+(?:id|name|handle|user(?:name)?|tag|account)\b)?"
    r"(?:\s*[:=]\s*(?P<named>[\w.@-]{3,40})|\s+is\s+(?P<said>(?=[\w.@-]*[\d_])[\w.@-]{3,40}))",
    re.IGNORECASE,
)
IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\.?\w)")
IPV6 = re.compile(r"(?<![\w:.])(?=[0-9a-f:]*\d)[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:])", re.I)
VERSION_BEFORE = re.compile(
    r"(?:version|release|chrome|firmware|build|driver|update|v)\.?\s*$", re.IGNORECASE
)


def find(text: str) -> Iterator[Span]:
    """The cheap tests come first: most lines of a chat pass none of them."""
    if "@" in text:
        yield from _matches(EMAIL, text, Tag.EMAIL)
    if "@" in text or "#" in text:
        yield from _matches(HANDLE, text, Tag.HANDLE)
    if INNER_DOT.search(text) or "://" in text:
        yield from _matches(LINK, text, Tag.LINK)
    if "dot" in text.lower():
        yield from _matches(SPELLED_EMAIL, text, Tag.EMAIL)
    if ":" in text or "=" in text or " is " in text.lower():
        for match in NAMED_HANDLE.finditer(text):
            yield Span(*match.span("named" if match["named"] else "said"), Tag.HANDLE)
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
