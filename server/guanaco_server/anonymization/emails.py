"""Finds e-mail addresses: as written, and as people disguise them in a chat.

    jane@example.org · j a n e @ e x a m p l e . o r g      as written, or spaced out
    jane[at]example[dot]org · jane(a)example.org            in brackets
    jane arroba example punto org · jane_at_example_dot_org in words of five languages
    janeATexampleDOTorg                                     run together

"at" is a common word, so it needs more around it than "arroba" does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from guanaco_server.anonymization.addresses import ENDINGS, WORDLIKE_ENDINGS, matches
from guanaco_server.anonymization.spans import Span, Tag

EMAIL = re.compile(r"[\w.+%-]{1,64}\s?@{1,2}\s?[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
ANY_ENDING = rf"(?:{ENDINGS}|{WORDLIKE_ENDINGS})"
AT_WORDS = r"ät|arr?obase|arroba|chiocciola|klammeraffe|snabel-a"
DOT_WORDS = "dot|punkt|punto|ponto"  # "point" is a common word in English and French
BRACKETED_AT = rf"\s{{0,3}}[\[({{<]\s{{0,3}}(?:at|@|a|{AT_WORDS})\s{{0,3}}[\])}}>]\s{{0,3}}"
CLEAR_AT = rf"(?:{BRACKETED_AT}|\s?@\s?|[\s_-]{{1,3}}(?:{AT_WORDS})[\s_-]{{1,3}}|\s?[_*-]{{1,2}}at[_*-]{{1,2}}\s?)"
SPOKEN_AT = r"\s{1,3}at\s{1,3}(?!(?:the|a)\b)"
BRACKETED_DOT = rf"\s{{0,3}}[\[({{<]\s{{0,3}}(?:{DOT_WORDS}|point|\.)\s{{0,3}}[\])}}>]\s{{0,3}}"
SPELLED_DOT = rf"(?:{BRACKETED_DOT}|[\s_*-]{{1,3}}(?:{DOT_WORDS})[\s_*-]{{1,3}})"
ANY_DOT = rf"(?:{SPELLED_DOT}|\.|\s\.\s|[\s_-]{{1,3}}point[\s_-]{{1,3}})"
LOCAL = rf"(?<![\w.+-])[\w.+-]{{1,64}}(?:(?:{BRACKETED_DOT}|\s{{1,3}}(?:{DOT_WORDS}|point)\s{{1,3}})[\w+-]{{1,64}}){{0,3}}"
HOST = r"[^\W_](?:[\w-]{0,61}[^\W_])?"
SPELLED_EMAIL = re.compile(
    rf"{LOCAL}{CLEAR_AT}(?:{HOST}{ANY_DOT}){{1,3}}{ANY_ENDING}\b"
    rf"|{LOCAL}{SPOKEN_AT}(?:[\w-]{{1,63}}{ANY_DOT}){{0,2}}[\w-]{{1,63}}{SPELLED_DOT}(?:{ENDINGS})\b",
    re.IGNORECASE,
)
# "jane at gmail.com", but not "look at example.com": the name has a mark in it, or the host is for mail only.
MAIL_HOSTS = (
    "gmail|googlemail|yahoo|ymail|hotmail|outlook|live|msn|icloud|me|aol|proton(?:mail)?|pm|gmx|web|t-online|freenet|zoho|"
    "fastmail|tutanota|hey|qq|163|126|naver|daum|yandex|mail|inbox|orange|free|laposte|wanadoo|libero|virgilio|uol|bol|terra|"
    "rediffmail|comcast|verizon|att|btinternet|sky|sapo"
)
NO_LOCALS = (
    "look|looked|looking|me|us|him|her|them|it|is|was|are|were|be|am|not|log|login|sign|in|up|out|here|there|mail|e-?mail|"
    "inbox|address|account|support|work|works|worked|working|see|still|only|or|and|over|that|this|now|down"
)
MAIL_AT_HOST = re.compile(
    rf"(?:(?!(?:{NO_LOCALS})\s){LOCAL}{SPOKEN_AT}(?:{MAIL_HOSTS})(?:{SPELLED_DOT}{ANY_ENDING}|(?:\.|\s\.\s|\spoint\s)(?:{ENDINGS}))"
    rf"|(?<![\w.+-])(?=[a-z][\w-]{{0,62}}(?:\d|[_.+][\w-]))[\w.+-]{{4,64}}{SPOKEN_AT}(?:[\w-]{{1,63}}\.){{0,2}}[\w-]{{1,63}}"
    rf"(?:\.|\s\.\s)(?:{ENDINGS}))\b",
    re.IGNORECASE,
)
COMMA_FOR_DOT = re.compile(
    rf"[\w.+%-]{{1,64}}\s?@{{1,2}}\s?(?:{MAIL_HOSTS})\s?,\s?(?:{ENDINGS})\b", re.IGNORECASE
)
SPELLED_AT = re.compile(r"at(?<=[\W_]at)(?![^\W_])")
RUN_DOT = r"(?:DOT|Dot|\.)"
RUN_TOGETHER = re.compile(
    rf"(?<![\w.+-])[a-z0-9][a-z0-9._+-]{{0,63}}(?:AT[a-z0-9-]{{2,40}}?{RUN_DOT}|At[a-z0-9-]{{2,40}}?(?:DOT|Dot))"
    rf"{ANY_ENDING}(?:{RUN_DOT}[a-z]{{2}})?(?![a-z])"
)
RUN_TOGETHER_LOWER = re.compile(
    rf"(?<![\w.+-])[\w.+-]{{1,64}}at(?:{MAIL_HOSTS})(?:dot|punkt|punto|ponto){ANY_ENDING}(?!\w)",
    re.IGNORECASE,
)
SPACED_OUT = re.compile(r"(?<!\S)(?:\S[ \t]){5,90}\S(?!\S)")
SPACED_LOCAL = re.compile(
    rf"(?<!\S)(?:[\w.+-] ){{2,40}}[\w.+-]?\s?@\s?[\w-]{{1,63}}(?:\s?\.\s?[\w-]{{1,63}}){{0,3}}\s?\.\s?{ANY_ENDING}\b",
    re.IGNORECASE,
)
SPACED_SIGNS = (" @ ", " . ", " o t ", " ) ")
SAID_DOTS = ("dot", "punkt", "punto", "ponto", "point", " . ", "(.", "[.")
SAID_AT = ("ät", "obase", "arroba", "chiocciola", "klammeraffe", "snabel", "(a", "[a", "{a", "<a")


def find(text: str, lower: str) -> Iterator[Span]:
    """``lower`` is the text in lower case, for the cheap tests that come first."""
    has_at = "@" in text
    if has_at:
        yield from matches(EMAIL, text, Tag.EMAIL)
        yield from matches(COMMA_FOR_DOT, text, Tag.EMAIL)
    if "at" not in lower and not has_at and not any(word in lower for word in SAID_AT):
        if " t " in lower:
            yield from _spaced_out(text)
        return
    is_dotted = "." in text or any(word in lower for word in SAID_DOTS)
    if is_dotted and (has_at or SPELLED_AT.search(lower) or any(w in lower for w in SAID_AT)):
        yield from matches(SPELLED_EMAIL, text, Tag.EMAIL)
        yield from matches(MAIL_AT_HOST, text, Tag.EMAIL)
    if "AT" in text or "At" in text:
        yield from matches(RUN_TOGETHER, text, Tag.EMAIL)
    if "dot" in lower or "punkt" in lower or "punto" in lower or "ponto" in lower:
        yield from matches(RUN_TOGETHER_LOWER, text, Tag.EMAIL)
    if any(sign in text for sign in SPACED_SIGNS):
        yield from _spaced_out(text)


def _spaced_out(text: str) -> Iterator[Span]:
    """Find addresses with a space after each character, whatever their form without the spaces."""
    for match in SPACED_OUT.finditer(text):
        together = "".join(match[0].split())
        if any(form.search(together) for form in (EMAIL, SPELLED_EMAIL, RUN_TOGETHER_LOWER)):
            yield Span(*match.span(), Tag.EMAIL)
    if "@" in text:
        yield from matches(SPACED_LOCAL, text, Tag.EMAIL)
