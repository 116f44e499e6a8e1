"""Finds places: postcodes and coordinates.

A postcode counts by itself where its form is rare in other texts (SW1A 2AA, K1A 0B1, 01310-100, D-10115), else after a
word like "postcode", or between "in" and a name with a capital. Coordinates need four decimals each, signs of the
compass, or a word like "GPS" before them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from guanaco_server.anonymization.spans import Span, Tag

BRITISH = re.compile(
    r"(?<![A-Za-z0-9-])(?P<area>[A-Z]{1,2})\d[A-Z\d]?\s?\d(?P<unit>[ABD-HJLNP-UW-Z]{2})(?![A-Za-z0-9-])",
    re.IGNORECASE,
)
BRITISH_AREAS = frozenset([
    "AB", "AL", "B", "BA", "BB", "BD", "BH", "BL", "BN", "BR", "BS", "BT", "CA", "CB", "CF", "CH", "CM", "CO",
    "CR", "CT", "CV", "CW", "DA", "DD", "DE", "DG", "DH", "DL", "DN", "DT", "DY", "E", "EC", "EH", "EN", "EX",
    "FK", "FY", "G", "GL", "GU", "GY", "HA", "HD", "HG", "HP", "HR", "HS", "HU", "HX", "IG", "IM", "IP", "IV",
    "JE", "KA", "KT", "KW", "KY", "L", "LA", "LD", "LE", "LL", "LN", "LS", "LU", "M", "ME", "MK", "ML", "N",
    "NE", "NG", "NN", "NP", "NR", "NW", "OL", "OX", "PA", "PE", "PH", "PL", "PO", "PR", "RG", "RH", "RM", "S",
    "SA", "SE", "SG", "SK", "SL", "SM", "SN", "SO", "SP", "SR", "SS", "ST", "SW", "SY", "TA", "TD", "TF", "TN",
    "TQ", "TR", "TS", "TW", "UB", "W", "WA", "WC", "WD", "WF", "WN", "WR", "WS", "WV", "YO", "ZE",
])  # fmt: skip
UNITS = frozenset(
    ["GB", "TB", "LB", "FT", "HR", "PS", "HP", "ST", "ND", "RD", "TH", "DB", "HZ"]
)  # "the S3 5GB plan", "M1 2nd exit"
LONGEST_BRITISH = 7  # without a space
CANADIAN = re.compile(
    r"(?<![A-Za-z0-9-])[ABCEGHJ-NPRSTVXY]\d[ABCEGHJ-NPRSTV-Z] ?\d[ABCEGHJ-NPRSTV-Z]\d(?![A-Za-z0-9-])"
)
BRAZILIAN = re.compile(r"(?<![\w.-])\d{5}-\d{3}(?![\w-])")
PORTUGUESE = re.compile(r"(?<![\w.-])\d{4}-\d{3}(?=\s[A-ZÁÉÍÓÚÂ][a-zà-ü]{2})")
PREFIXED = re.compile(r"(?<![\w-])(?:DE?|FR?|IT?|ES?)-\d{5}(?![\w-])")
AMERICAN = re.compile(
    r"(?<![\w.-])(?:\d{5}-\d{4}|(?:,\s?[A-Z]{2}|AK|AR|AZ|CA|CT|DC|FL|GA|IA|IL|KS|KY|MD|MI|MN|MO|MS|MT|NC|ND|NE|NH|NJ|NM|NV|NY|"
    r"RI|SC|SD|TN|TX|UT|VA|VT|WA|WI|WV|WY)\s\d{5})(?![\w-])"
)
BEFORE_A_TOWN = re.compile(
    r"\b(?:in|nach|aus|bei|à|en|a|em|para)\s(?P<code>\d{5})(?=\s(?!Euro|Dollar|Mensch|Leute|Mann|Frau|Kilo|Meter|Jahr|Tag|Stund|"
    r"Schritt|Punkt|Einwohner|Personen|Zeichen|Wört|Wort|Stück|Mal|Stimmen|Follower)[A-ZÄÖÜÉ][a-zäöüßéèáíóúñç]{2})"
)
TOWNS = (
    "Paris|Lyon|Marseille|Toulouse|Nice|Nantes|Strasbourg|Montpellier|Bordeaux|Lille|Rennes|Reims|Grenoble|Dijon|Angers|Berlin|Hamburg|"
    "München|Muenchen|Köln|Koeln|Frankfurt|Stuttgart|Düsseldorf|Leipzig|Dortmund|Essen|Bremen|Dresden|Hannover|Nürnberg|Duisburg|Bochum|"
    "Bonn|Münster|Mannheim|Karlsruhe|Augsburg|Wiesbaden|Kiel|Mainz|Freiburg|Madrid|Barcelona|Valencia|Sevilla|Zaragoza|Málaga|Murcia|"
    "Bilbao|Granada|Roma|Milano|Napoli|Torino|Palermo|Genova|Bologna|Firenze|Bari|Catania|Venezia|Verona"
)
WITH_A_TOWN = re.compile(rf"(?<![\w.,-])(?P<code>\d{{5}})\s(?:{TOWNS})\b")
WORDS = r"zip(?: ?code)?|post(?:al)? ?code|plz|postleitzahl|c[oó]digo postal|code postal|cep|cp|cap|postnummer"
NAMED = re.compile(
    rf"\b(?:{WORDS})(?:\s(?:is|ist|lautet|es|est|é))?[\s:.#]{{1,3}}"
    r"(?P<code>\d{4,5}(?:-\d{3,4})?(?:\s?[A-Z]{2}\b)?|\d{2}-\d{3}|[A-Z]{1,2}\d[A-Z\d]?\s?\d[A-Z]{2})(?![\w-])",
    re.IGNORECASE,
)
DECIMALS = r"[-+]?\d{1,3}\.\d{4,12}"
PAIR = re.compile(
    rf"(?<![\w.,-])(?<!\d, )(?P<north>{DECIMALS})\s?[,;/ ]\s?(?P<east>{DECIMALS})(?!\w|\.\w|,\s?[-+]?\d)"
)
DEGREES = r"[-+]?\d{1,3}(?:\.\d{1,12})?\s?°(?:\s?\d{1,2}(?:\.\d{1,6})?\s?['\u2019\u2032](?:\s?\d{1,2}(?:\.\d{1,6})?\s?(?:[\"”″]|''))?)?"
COMPASS = re.compile(
    rf"(?<![\w.]){DEGREES}\s?[NS]\b[\s,;/]{{0,3}}{DEGREES}\s?[EWO]\b"
    rf"|(?<![\w.])[NS]\s?{DEGREES}[\s,;/]{{0,3}}[EWO]\s?{DEGREES}"
)
PLAIN_COMPASS = re.compile(
    r"(?<![\w.])\d{1,2}\.\d{2,12}\s?[NS][\s,;/]{1,3}\d{1,3}\.\d{2,12}\s?[EWO]\b"
    r"|(?<![\w.])[NS]\s?\d{1,2}\s\d{1,2}\.\d{1,6}[\s,;/]{1,3}[EWO]\s?\d{1,3}\s\d{1,2}\.\d{1,6}(?!\w|\.\d)"
)
NAMED_PAIR = re.compile(
    r"\b(?:gps|coord\w{0,8}|koordinaten|latitude|lat)\b[^\d\n]{0,16}(?P<pair>[-+]?\d{1,2}\.\d{2,12}[^\d\n]{1,12}\d{1,3}\.\d{2,12})",
    re.IGNORECASE,
)


INWARD = re.compile(r"\d[ABD-HJLNP-UW-Z]{2}(?![A-Za-z0-9])", re.IGNORECASE)
LETTER_BETWEEN = re.compile(r"\d[A-Z] ?\d")
FIVE_DIGITS = re.compile(r"\d{5}")
NAMED_WORDS = ("zip", "post", "plz", "cep", "cp", "cap")


def find(text: str, lower: str) -> Iterator[Span]:
    """The text has a digit. Cheap tests, most of them on digits alone, come first."""
    if INWARD.search(text):
        for match in BRITISH.finditer(text):
            if _is_british(match):
                yield Span(*match.span(), Tag.PLACE)
    if LETTER_BETWEEN.search(text):
        yield from _places(CANADIAN, text)
    if FIVE_DIGITS.search(text):
        for form in (PREFIXED, AMERICAN, BRAZILIAN):
            yield from _places(form, text)
        yield from _places(BEFORE_A_TOWN, text, "code")
        yield from _places(WITH_A_TOWN, text, "code")
    if "-" in text:
        yield from _places(PORTUGUESE, text)
    if any(word in lower for word in NAMED_WORDS):
        yield from _places(NAMED, text, "code")
    if text.count(".") >= 2:
        yield from (span for span in _places(PAIR, text) if _is_valid_coordinate(text, span))
        yield from _places(NAMED_PAIR, text, "pair")
        yield from _places(PLAIN_COMPASS, text)
    if "°" in text:
        yield from _places(COMPASS, text)


def _places(form: re.Pattern[str], text: str, group: str | int = 0) -> Iterator[Span]:
    for match in form.finditer(text):
        yield Span(*match.span(group), Tag.PLACE)


def _is_british(match: re.Match[str]) -> bool:
    """Decide by the area. In lower case, and where the unit is one of measure, a short area is not enough."""
    area = match["area"].upper()
    is_clear = match[0].isupper() and match["unit"] not in UNITS
    is_whole = len(area) == 2 and (" " in match[0] or len(match[0]) == LONGEST_BRITISH)
    return area in BRITISH_AREAS and (is_clear or (is_whole and match["unit"].upper() not in UNITS))


def _is_valid_coordinate(text: str, span: Span) -> bool:
    match = PAIR.match(text, span.start)
    return (
        match is not None and abs(float(match["north"])) <= 90 and abs(float(match["east"])) <= 180
    )
