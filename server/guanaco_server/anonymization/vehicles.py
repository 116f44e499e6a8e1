"""Finds number plates and vehicle identification numbers.

A plate counts by itself where its form is rare in other texts, else after a word like "number plate". A VIN counts by its
check digit (ISO 3779 as used in North America), else after "VIN" or "chassis".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from guanaco_server.anonymization.spans import Span, Tag

LEFT, RIGHT = r"(?<![A-Za-z0-9-])", r"(?![A-Za-z0-9-])"
BRITISH = re.compile(
    rf"{LEFT}[A-HJ-PR-Y]{{2}}(?:0[2-9]|1\d|2\d|5[1-9]|6\d|7\d) ?(?P<end>[A-HJ-PR-Z]{{3}}){RIGHT}"
)
WORDS = frozenset(["AND", "THE", "FOR", "BUT", "NOT", "YOU", "ARE", "CAN", "NOW", "HOW", "WHO", "WHY", "ALL", "ANY", "ONE", "TWO", "OLD", "NEW", "BAD", "GPU", "CPU", "RAM", "CAR", "GUN"])  # fmt: skip
GERMAN = re.compile(
    rf"{LEFT}(?P<district>[A-ZÄÖÜ]{{1,3}})-[A-Z]{{1,2}}[ -]?[1-9]\d{{1,3}}[EH]?{RIGHT}"
)
DISTRICTS = frozenset([
    "A", "AA", "AB", "AC", "AE", "AIC", "AK", "AM", "AN", "AP", "AS", "AUR", "AW", "AZ", "B", "BA", "BAD",
    "BAR", "BB", "BC", "BE", "BGL", "BI", "BIR", "BIT", "BL", "BLK", "BM", "BN", "BO", "BOR", "BOT", "BRA",
    "BRB", "BS", "BT", "BÜS", "C", "CB", "CE", "CHA", "CLP", "CO", "COC", "COE", "CUX", "CW", "D", "DA", "DAH",
    "DAN", "DAU", "DBR", "DD", "DE", "DEG", "DEL", "DGF", "DH", "DI", "DIL", "DL", "DLG", "DN", "DO", "DON",
    "DU", "DÜW", "E", "EA", "EB", "EBE", "ED", "EE", "EF", "EH", "EI", "EIC", "EL", "EM", "EMD", "EMS", "EN",
    "ER", "ERB", "ERH", "ERZ", "ES", "ESW", "EU", "F", "FB", "FD", "FDS", "FF", "FFB", "FG", "FL", "FN", "FO",
    "FR", "FRG", "FRI", "FS", "FT", "FÜ", "G", "GAP", "GE", "GER", "GF", "GG", "GI", "GL", "GM", "GÖ", "GP",
    "GR", "GRZ", "GS", "GT", "GTH", "GÜ", "GZ", "H", "HA", "HAL", "HAM", "HAS", "HB", "HBN", "HD", "HDH", "HE",
    "HEF", "HEI", "HEL", "HER", "HF", "HG", "HGW", "HH", "HI", "HL", "HM", "HN", "HO", "HOL", "HOM", "HP", "HR",
    "HRO", "HS", "HSK", "HST", "HU", "HVL", "HX", "HZ", "IGB", "IK", "IL", "IN", "IZ", "J", "JL", "K", "KA",
    "KB", "KC", "KE", "KEH", "KF", "KG", "KH", "KI", "KIB", "KL", "KLE", "KN", "KO", "KR", "KS", "KT", "KU",
    "KÜN", "KUS", "L", "LA", "LAU", "LB", "LD", "LDK", "LDS", "LER", "LEV", "LG", "LI", "LIF", "LIP", "LL",
    "LM", "LÖ", "LOS", "LRO", "LU", "LUP", "LWL", "M", "MA", "MB", "MD", "ME", "MEI", "MG", "MH", "MI", "MIL",
    "MK", "MKK", "MM", "MN", "MOL", "MOS", "MR", "MS", "MSP", "MST", "MTK", "MÜ", "MYK", "MZ", "MZG", "N", "NB",
    "ND", "NDH", "NE", "NEA", "NES", "NEW", "NF", "NI", "NK", "NM", "NMS", "NOH", "NOM", "NR", "NU", "NVP",
    "NW", "NWM", "OA", "OAL", "OB", "OD", "OE", "OF", "OG", "OH", "OHA", "OHV", "OHZ", "OL", "OPR", "OS", "OSL",
    "P", "PA", "PAF", "PAN", "PB", "PCH", "PE", "PF", "PI", "PIR", "PLÖ", "PM", "PR", "PS", "R", "RA", "RD",
    "RE", "REG", "RH", "RO", "ROW", "RP", "RS", "RT", "RÜD", "RÜG", "RV", "RW", "RZ", "S", "SAD", "SAW", "SB",
    "SC", "SDL", "SE", "SFA", "SG", "SHA", "SHG", "SHK", "SHL", "SI", "SIG", "SIM", "SK", "SL", "SLF", "SLK",
    "SLS", "SM", "SN", "SO", "SOK", "SÖM", "SON", "SP", "SPN", "SR", "ST", "STA", "STD", "SU", "SÜW", "SW",
    "SZ", "TBB", "TET", "TF", "TIR", "TO", "TÖL", "TR", "TS", "TÜ", "TUT", "UE", "UH", "UL", "UM", "UN", "V",
    "VB", "VEC", "VER", "VG", "VIE", "VK", "VR", "VS", "W", "WAF", "WAK", "WB", "WE", "WEN", "WES", "WF", "WHV",
    "WI", "WIL", "WIT", "WL", "WM", "WN", "WND", "WO", "WOB", "WR", "WST", "WT", "WTM", "WÜ", "WUG", "WUN",
    "WW", "Z", "ZI", "ZW",
])  # fmt: skip
NO_GERMAN = frozenset(("CD-R", "CD-RW", "A-Z"))
NO_PAIRS = "AM|AN|AS|AT|BE|BY|CM|DE|DM|DR|EN|ES|ET|GB|GO|HE|HP|HZ|IF|IN|IS|IT|KB|KG|KM|LE|MB|ME|MM|MR|MS|MY|NE|PC|PM|RS|SE|ST|TB|TH|TV|UM|UN|US|WE"
OTHERS = re.compile(
    rf"{LEFT}(?:[A-HJ-NP-TV-Z]{{2}}-\d{{3}}-[A-HJ-NP-TV-Z]{{2}}"  # France
    rf"|(?!{NO_PAIRS})[A-HJ-NP-TV-Z]{{2}} \d{{3}} (?!{NO_PAIRS})[A-HJ-NP-TV-Z]{{2}}"  # France and Italy, with spaces
    r"|[A-Z]{2}-\d{2}-[A-Z]{2}|\d{2}-[A-Z]{2}-\d{2}|\d{2}-\d{2}-[A-Z]{2}"  # Portugal
    rf"|[A-Z]{{3}}\d[A-Z]\d{{2}}){RIGHT}"  # Brazil, Mercosul
)
NAMED = re.compile(
    r"\b(?:(?:number|license|licence|registration) plate|(?:my|the) plate|kennzeichen|nummernschild|matr[ií]cula|placa|plaque|targa|"
    r"immatricul\w{1,8})\b(?-i:[^\n\dA-Z]{0,24})"
    r"(?-i:(?P<plate>(?=[A-Z -]{0,8}\d)(?=[\d -]{0,8}[A-Z])[A-ZÄÖÜ0-9]{1,7}(?:[ -][A-Z0-9]{1,4}){0,2}))(?![\w-])",
    re.IGNORECASE,
)
OWN_CAR = re.compile(
    r"(?<![A-Za-z0-9-])(?P<plate>[A-Z]{1,3}[ -]?\d{1,4}[ -]?[A-Z]{0,3})(?=\s(?:is|ist|es|est|é|è)\s(?:my|mein|mi|ma|mon|meu|la mia)\s"
    r"(?:car|number plate|licen[cs]e plate|plate|auto|kennzeichen|coche|voiture|carro|macchina)\b)",
    re.IGNORECASE,
)
CARS = (" car", "plate", "auto", "kennzeichen", "coche", "voiture", "carro", "macchina")
NAMED_WORDS = ("targa", "plate", "kennzeichen", "nummernschild", "matr", "placa", "plaque")
VIN = re.compile(rf"{LEFT}[A-HJ-NPR-Z0-9]{{17}}{RIGHT}", re.IGNORECASE)
VIN_LENGTH = 17
BESIDE_A_CAPITAL = re.compile(r"\d(?:(?<=[A-ZÄÖÜ]\d)|(?<=[A-ZÄÖÜ][ -]\d)|[ -]?[A-Z])")
VIN_BEFORE = re.compile(
    r"\b(?:vin|fin|chassis|ch[âa]ssis|chassi|bastidor|fahrgestell\w{0,10})\b[^\n]{0,20}\Z",
    re.IGNORECASE,
)
VIN_VALUES = dict(zip("ABCDEFGHJKLMNPRSTUVWXYZ", "12345678123457923456789", strict=True))
VIN_WEIGHTS = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)
VIN_LETTERS_NEAR = 48
FEWEST_PLATE_DIGITS = 2


def find(text: str, lower: str, longest_word: int) -> Iterator[Span]:
    """The text has a digit."""
    if any(word in lower for word in CARS):
        for match in OWN_CAR.finditer(text):
            if sum(map(str.isdigit, match["plate"])) >= FEWEST_PLATE_DIGITS:
                yield Span(*match.span("plate"), Tag.VEHICLE)
    if BESIDE_A_CAPITAL.search(text):
        yield from _plates(text, lower)
    if longest_word >= VIN_LENGTH:
        for match in VIN.finditer(text):
            if _is_vin(text, match):
                yield Span(*match.span(), Tag.VEHICLE)


def _plates(text: str, lower: str) -> Iterator[Span]:
    for match in BRITISH.finditer(text):
        if match["end"] not in WORDS:
            yield Span(*match.span(), Tag.VEHICLE)
    if "-" in text:
        for match in GERMAN.finditer(text):
            if match["district"] in DISTRICTS and not match[0].startswith(tuple(NO_GERMAN)):
                yield Span(*match.span(), Tag.VEHICLE)
    for match in OTHERS.finditer(text):
        yield Span(*match.span(), Tag.VEHICLE)
    if any(word in lower for word in NAMED_WORDS):
        for match in NAMED.finditer(text):
            if sum(map(str.isdigit, match["plate"])) >= FEWEST_PLATE_DIGITS:
                yield Span(*match.span("plate"), Tag.VEHICLE)


def _is_vin(text: str, match: re.Match[str]) -> bool:
    vin = match[0].upper()
    if vin.isdigit() or vin.isalpha():
        return False
    values = (int(VIN_VALUES.get(sign, sign)) for sign in vin)
    total = sum(value * weight for value, weight in zip(values, VIN_WEIGHTS, strict=True))
    before = text[max(0, match.start() - VIN_LETTERS_NEAR) : match.start()]
    return vin[8] == "0123456789X"[total % 11] or VIN_BEFORE.search(before) is not None
