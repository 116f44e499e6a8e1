"""Finds phone numbers that are spelled: in words of five languages, or with letters that look like digits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from guanaco_server.anonymization.spans import Span, Tag

DIGITS = (
    "zero oh one two three four five six seven eight nine",
    "null eins zwei drei vier fünf sechs sieben acht neun",
    "cero uno dos tres cuatro cinco seis siete ocho nueve",
    "zéro un deux trois quatre cinq six sept huit neuf",
    "zero um dois três quatro cinco seis sete oito nove",
)
VARIANTS = "nought double triple hundred hundert cent cien zwo ein fuenf une uma duas tres meia"
WORDS = frozenset(" ".join((*DIGITS, VARIANTS)).split())
WORD = re.compile(r"[^\W\d_]+")
ALTERNATIVES = "|".join(sorted(WORDS, key=len, reverse=True))
RUN = re.compile(
    rf"\b(?:\d|{ALTERNATIVES})\b(?:[\s,.-]{{1,4}}(?:\d|{ALTERNATIVES})\b){{6,24}}", re.IGNORECASE
)
# French numbers are said in pairs: "zéro six douze trente-quatre".
TENS = frozenset(
    [
        "dix",
        "onze",
        "douze",
        "treize",
        "quatorze",
        "quinze",
        "seize",
        "vingt",
        "vingts",
        "trente",
        "quarante",
        "cinquante",
        "soixante",
    ]
)
FRENCH_WORDS = "|".join(sorted({*DIGITS[3].split(), "et", *TENS}, key=len, reverse=True))
FRENCH_RUN = re.compile(
    rf"\bz[ée]ro[\s,-]{{1,3}}(?:{FRENCH_WORDS})\b(?:[\s,-]{{1,3}}(?:{FRENCH_WORDS})\b){{4,16}}",
    re.IGNORECASE,
)
FEWEST_TENS = 2
COUNTS = frozenset(
    " ".join(words[place:]) for words in (line.split() for line in DIGITS) for place in range(4)
) | {" ".join(reversed(line.split())) for line in DIGITS}
FEWEST_WORDS = 3  # in a run of seven: the others may be digits

LOOKALIKES = str.maketrans("OolI", "0011")
MIXED = re.compile(r"\d[OolI]|[OolI]\d")
MIXED_RUN = re.compile(r"(?<![\w.])\+?[\dOolI](?:[ ./-]{0,2}[\dOolI]){6,17}(?![\w]|\.\d)")
GROUP = re.compile(r"[^ ./+-]+")
FEWEST_INTERNATIONAL = 10  # digits after a plus sign
MOST_LETTERS = 3  # in a group of letters alone: "OO"


def find_in_words(text: str, lower: str) -> Iterator[Span]:
    if len(WORDS.intersection(WORD.findall(lower))) < 2:
        return
    for match in RUN.finditer(text):
        words = WORD.findall(match[0].lower())
        if len(words) >= FEWEST_WORDS and not _is_counting(words):
            yield Span(*match.span(), Tag.PHONE)
    if "ro" in lower:
        for match in FRENCH_RUN.finditer(text):
            if len(TENS.intersection(WORD.findall(match[0].lower()))) >= FEWEST_TENS:
                yield Span(*match.span(), Tag.PHONE)


def _is_counting(words: list[str]) -> bool:
    phrase = " ".join(words)
    return any(count.startswith(phrase) for count in COUNTS)


def find_lookalikes(text: str, is_phone: Callable[[str, str], bool]) -> Iterator[Span]:
    """Find numbers in which letters stand for digits. ``is_phone`` takes a run and its digits."""
    if not MIXED.search(text):
        return
    for match in MIXED_RUN.finditer(text):
        run = match[0].translate(LOOKALIKES)
        digits = re.sub(r"\D", "", run)
        is_number = run != match[0] and all(map(_may_be_digits, GROUP.findall(match[0])))
        is_international = run.startswith("+") and len(digits) >= FEWEST_INTERNATIONAL
        if is_number and (is_international or is_phone(run, digits)):
            yield Span(*match.span(), Tag.PHONE)


def _may_be_digits(group: str) -> bool:
    return any(map(str.isdigit, group)) or (len(group) <= MOST_LETTERS and set(group) <= set("Oo"))
