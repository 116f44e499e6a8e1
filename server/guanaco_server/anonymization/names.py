"""Finds names: the user's own, as the app gave it, and names in other networks.

A name in another network is known by its form (@name, name#1234, u/name) or by the network named before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from guanaco_server.anonymization.spans import Span, Tag

NO_USER_NAMES = frozenset({"you", "user", "me", "i", "anonymous", "guest", "human", "anon"})
LOOKALIKES = str.maketrans(  # of Cyrillic and Greek
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u04bb"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0406\u0408\u0405",
    "aeopcyxijsdhABEZHIKMNOPTYXoABEKMHOPCTYXIJS",
)
SHORTEST = 2
SHORTEST_PART = 3  # of a name of several words: shorter parts are initials or words like "of"


def find_user_name(text: str, user_name: str) -> Iterator[Span]:
    """Find the whole name in any case, and each word of it where it begins with a capital. Letters of other scripts that look alike are taken for them."""
    pattern = _pattern(user_name)
    if pattern is not None:
        alike = text if text.isascii() or not user_name.isascii() else text.translate(LOOKALIKES)
        for match in pattern.finditer(alike):
            yield Span(*match.span(), Tag.USER)


@lru_cache(maxsize=1_024)
def _pattern(user_name: str) -> re.Pattern[str] | None:
    name = user_name.strip()
    if len(name) < SHORTEST or name.lower() in NO_USER_NAMES:
        return None
    words = name.split()
    whole = r"(?:\s+|[_.-]?)".join(re.escape(word) for word in words)
    spelled = [_spelled(form) for form in ("".join(words), *words) if len(form) >= SHORTEST_PART]
    parts = [
        re.escape(form)
        for word in words
        if len(words) > 1 and len(word) >= SHORTEST_PART and word.lower() != "the"
        for form in {word.capitalize(), word.upper()}
    ]
    alternatives = "|".join((f"(?i:{whole})", *sorted(parts), *spelled))
    return re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)")


def _spelled(word: str) -> str:
    """Return a pattern for the word with a space or a mark between all of its letters."""
    return f"(?i:{r'[ ._*·•-]{1,3}'.join(map(re.escape, word))})"


HANDLE = re.compile(
    r"(?<![\w@/.])@[A-Za-z_][\w.]{1,63}(?:@[\w.-]{3,64})?|(?<![\w#])[\w.]{2,32}#\d{4}(?!\d)"
)
REDDIT = re.compile(r"(?<![\w/.])/?u/[A-Za-z0-9_-]{3,20}(?![\w/])")
NETWORKS = (
    "discord", "insta", "snap", "telegram", "kik", "whatsapp", "whats app", "skype", "tiktok", "twitter", "wechat",
)  # fmt: skip
MAILS = ("gmail", "googlemail", "hotmail", "outlook", "yahoo", "proton", "icloud", "gmx", "web.de")
NETWORK = (
    r"(?:discord|insta(?:gram)?|ig|snap(?:chat)?|telegram|tg|kik|whats ?app|skype|tiktok|twitter|wechat)\b"
    r"(?:\s{1,3}(?:id|name|handle|user(?:name)?|tag|account)\b)?"
)
# Words that follow "my insta is" or "add me on discord" and are no name.
NO_HANDLES = (
    "private|public|down|up|out|off|on|in|broken|fixed|dead|gone|full|empty|locked|hacked|banned|blocked|deleted|new|old|"
    "fine|good|great|better|best|bad|worse|cool|boring|weird|slow|fast|nice|open|closed|working|acting|being|getting|"
    "not|no|now|never|always|still|just|only|also|all|about|mostly|really|very|so|too|pretty|kinda|the|an?|my|your|his|her|"
    "our|their|it|its|this|that|there|here|where|when|what|which|who|why|how|if|because|cause|but|and|or|then|than|for|from|"
    "with|without|to|at|by|as|of|same|similar|different|linked|called|named|instead|again|already|later|today|tonight|"
    "tomorrow|soon|please|pls|plz|thanks|thx|ok|okay|lol|haha|maybe|though|tho|first|instead|we|you|me|they|he|she|are|is|was"
)
NAME = r"[\w.@-]{3,40}"
MAIL = r"(?:gmail|googlemail|hotmail|outlook|yahoo|proton(?:mail)?|icloud|gmx|web\.de)"
ON_NETWORK = re.compile(
    r"(?<![\w@./-])(?P<name>(?=[A-Za-z_.]{3,30}\d{2}|[A-Za-z]{2,30}[._][A-Za-z]{2})[\w.-]{4,40})(?<!\.js)(?<!\.py)"
    rf"\s{{1,3}}(?:on|en|auf|bei|sur|chez|no|na|em|at|su)\s{{1,3}}(?:(?P<mail>{MAIL})|{NETWORK})\b",
    re.IGNORECASE,
)
BEFORE_MAIL = re.compile(
    rf"\b(?:it['\u2019]?s|is|ist|es|est|é|è)\s{{1,3}}(?P<name>(?=[A-Za-z_.]{{3,30}}\d{{2}}|[A-Za-z]{{2,30}}[._][A-Za-z]{{2}})[\w.-]{{4,40}})\s?,\s?(?P<mail>{MAIL})\b",
    re.IGNORECASE,
)
OWN_MARKED = re.compile(
    rf"\b(?:my|mein|mi|mon|meu)\s{{1,3}}(?:(?P<mail>{MAIL})|{NETWORK})\s{{1,3}}(?:is|ist|es|est|é|c['\u2019]est)\s{{1,3}}"
    rf"(?P<name>(?=[\w.@-]{{0,39}}[\d_]|\w{{2,30}}\.\w{{2}}){NAME})",
    re.IGNORECASE,
)
NAMED = re.compile(
    rf"\b{NETWORK}(?:\s{{0,3}}[:=]\s{{0,3}}(?P<named>{NAME})"
    rf"|\s{{1,3}}is\s{{1,3}}(?P<said>(?=[\w.@-]{{0,39}}[\d_]){NAME})"
    rf"|\s{{1,3}}(?P<marked>(?=[a-z][\w-]{{0,37}}[._\d][\w]){NAME}))",
    re.IGNORECASE,
)
OWN = re.compile(
    rf"\b(?:(?:my|mine on)\s{{1,3}}{NETWORK}\s{{1,3}}is|(?:add|find|follow|text|message|dm|hit) me (?:up )?on\s{{1,3}}{NETWORK})"
    rf"\s{{1,3}}(?P<own>(?!(?:{NO_HANDLES})\b){NAME})",
    re.IGNORECASE,
)
INNER_DOT = re.compile(r"\.\w")
SHORTEST_MARKED = 5  # "telegram v1.2" is a version
TRAILING = ".-"


def find_handles(text: str, lower: str, has_digit: bool) -> Iterator[Span]:
    if "@" in text or "#" in text:
        yield from _spans(HANDLE.finditer(text), 0)
    if "u/" in lower:
        yield from _spans(REDDIT.finditer(text), 0)
    names_a_network = _names_any(NETWORKS, lower)
    if names_a_network or _may_be_short_for_a_network(lower):
        for match in NAMED.finditer(text):
            if match["marked"] is None or len(match["marked"].rstrip(TRAILING)) >= SHORTEST_MARKED:
                yield from _spans([match], match.lastgroup or 0)
        yield from _spans(OWN.finditer(text), "own")
    is_marked = has_digit or "_" in text or INNER_DOT.search(text) is not None
    if is_marked and (names_a_network or _names_any(MAILS, lower)):
        for form in (ON_NETWORK, BEFORE_MAIL, OWN_MARKED):
            for match in form.finditer(text):
                tag = Tag.EMAIL if match["mail"] else Tag.HANDLE
                yield Span(
                    match.start("name"),
                    match.start("name") + len(match["name"].rstrip(TRAILING)),
                    tag,
                )


def _may_be_short_for_a_network(lower: str) -> bool:
    """Decide cheaply. "ig" and "tg" are in many words, so they count only with a sign beside them."""
    return ":" in lower or "=" in lower or " is " in lower or "ig " in lower or "tg " in lower


def _names_any(words: Sequence[str], lower: str) -> bool:
    return any(word in lower for word in words)


def _spans(
    matches: Iterator[re.Match[str]] | list[re.Match[str]], group: str | int
) -> Iterator[Span]:
    for match in matches:
        start = match.start(group)
        yield Span(start, start + len(match[group].rstrip(TRAILING)), Tag.HANDLE)
