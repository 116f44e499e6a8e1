"""Finds passwords and PINs after the words that announce them, in five languages.

"my password is X" is followed by a password or by an opinion on it. What has digits or signs within it is a password. A
plain word is one only where the clause ends after it and it is none that people use of passwords ("wrong", "secreta").
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from guanaco_server.anonymization.spans import Span, Tag

TRIGGERS = ("pass", "kennwort", "contrase", "clave", "senha", "mdp", "pw", "pin")
WORDS = (
    r"pass ?words?|pass(?=\s{0,2}[:=])|pass ?code|pass ?phrase|passwort|kennwort|contrase[ñn]a|clave|mot de passe|mdp|senha|palavra-passe|"
    r"pwd?|pin(?: ?code)?"
)
VERBS = r"is|was|to|to be|are|ist|war|lautet|es|era|est|c['\u2019]est|était|é|foi|è|era"
ANNOUNCED = re.compile(
    rf"\b(?P<word>{WORDS})(?P<link>(?:['\u2019]s|\s{{1,2}}(?:{VERBS}))?\s{{0,2}}[:=]\s{{0,2}}|['\u2019]s\s{{1,2}}|\s{{1,2}}(?:{VERBS})\s{{1,2}}|\s{{1,2}})"
    r"(?:[\"“„«'](?P<quoted>[^\"”»'\n]{3,64})[\"”»']|[\"'“„«]?(?P<secret>[^\s\"“”«»]{3,64}))",
    re.IGNORECASE,
)
CLAUSE_ENDS = re.compile(
    r"[\"'”»]?\s*(?:[.!,;)\n]|\Z|(?:ok|and|und|y|et|e|lol|lmao|haha\w*|hehe\w*|xd|btw|thx|thanks|pls|please)\b)",
    re.IGNORECASE,
)
# "my password is correct horse battery staple": some plain words to the end of the clause.
PHRASE = re.compile(
    rf"\b(?:my|mein|mi|mon|minha|mia)\s{{1,2}}(?:\w{{1,20}}\s){{0,1}}(?:{WORDS})(?:['\u2019]s|\s{{1,2}}(?:{VERBS}))\s{{0,2}}:?\s{{0,2}}"
    r"(?P<phrase>[^\W\d_]{3,20}(?:[ -][^\W\d_]{3,20}){2,7})(?=[.!?,;:)\"\n]|\s*\Z)",
    re.IGNORECASE,
)
FEWEST_BESIDE_ONE = 4  # words of a phrase with one that people say of passwords
# Words of sentences. A phrase with one of them says something of the password.
SENTENCE_WORDS = frozenset(
    [
        "and",
        "but",
        "for",
        "because",
        "since",
        "again",
        "now",
        "not",
        "was",
        "that",
        "this",
        "with",
        "very",
        "too",
        "your",
        "you",
        "they",
        "every",
        "time",
        "times",
        "when",
        "then",
        "than",
        "from",
        "just",
        "still",
        "only",
        "even",
        "more",
        "most",
        "much",
        "all",
        "been",
        "has",
        "have",
        "had",
        "can",
        "cannot",
        "will",
        "would",
        "should",
        "could",
        "did",
        "does",
        "don",
        "help",
        "today",
        "tomorrow",
        "anymore",
        "already",
        "here",
        "same",
        "one",
        "ones",
        "like",
        "the",
        "site",
        "account",
        "login",
        "works",
        "work",
        "long",
        "old",
        "new",
        "und",
        "aber",
        "oder",
        "der",
        "die",
        "das",
        "ein",
        "eine",
        "mehr",
        "weil",
        "seit",
        "jetzt",
        "sehr",
        "auf",
        "mit",
        "für",
        "heute",
        "auch",
        "nur",
        "noch",
        "zum",
        "pero",
        "los",
        "las",
        "una",
        "que",
        "más",
        "muy",
        "porque",
        "con",
        "para",
        "hoy",
        "les",
        "des",
        "qui",
        "pas",
        "plus",
        "très",
        "parce",
        "avec",
        "pour",
        "mas",
        "uma",
        "não",
        "mais",
        "com",
        "gli",
        "non",
        "più",
        "molto",
        "perché",
        "per",
    ]
)
INNER_SIGN = re.compile(r"\w[!#$%&*+=?@^_~|/\\]+\w|\w[!#$%&*+=@^_~|/\\]+\Z")
TRAILING = ".,;:)?!'\u2019"
SHORTEST_WORD = 5
PIN_DIGITS = range(3, 9)
NO_PASSWORDS = frozenset(
    [
        "wrong",
        "incorrect",
        "invalid",
        "expired",
        "weak",
        "strong",
        "secure",
        "secret",
        "private",
        "hidden",
        "empty",
        "missing",
        "required",
        "different",
        "correct",
        "right",
        "changed",
        "locked",
        "unknown",
        "forgotten",
        "easy",
        "simple",
        "complicated",
        "something",
        "nothing",
        "everything",
        "anything",
        "password",
        "being",
        "called",
        "always",
        "never",
        "still",
        "there",
        "really",
        "super",
        "pretty",
        "quite",
        "completely",
        "totally",
        "obviously",
        "probably",
        "written",
        "saved",
        "stored",
        "broken",
        "gone",
        "working",
        "asked",
        "needed",
        "shared",
        "hacked",
        "leaked",
        "stolen",
        "reset",
        "awful",
        "stupid",
        "short",
        "where",
        "which",
        "protected",
        "manager",
        "falsch",
        "richtig",
        "sicher",
        "unsicher",
        "geheim",
        "leider",
        "abgelaufen",
        "vergessen",
        "einfach",
        "kompliziert",
        "immer",
        "nicht",
        "nichts",
        "gesperrt",
        "ungültig",
        "korrekt",
        "schwach",
        "stark",
        "lang",
        "kurz",
        "wieder",
        "kaputt",
        "bekannt",
        "weg",
        "super",
        "nötig",
        "incorrecta",
        "correcta",
        "secreta",
        "segura",
        "insegura",
        "débil",
        "fácil",
        "difícil",
        "larga",
        "corta",
        "inválida",
        "nueva",
        "vieja",
        "siempre",
        "nunca",
        "nada",
        "incorrect",
        "correct",
        "faible",
        "expiré",
        "oublié",
        "facile",
        "difficile",
        "invalide",
        "nouveau",
        "toujours",
        "jamais",
        "perdu",
        "changé",
        "compliqué",
        "errada",
        "certa",
        "incorreta",
        "correta",
        "fraca",
        "nova",
        "velha",
        "longa",
        "curta",
        "expirada",
        "sempre",
        "muito",
        "bloqueada",
        "esquecida",
    ]
)


def find(text: str, lower: str) -> Iterator[Span]:
    if not any(word in lower for word in TRIGGERS):
        return
    for match in PHRASE.finditer(text):
        if _is_phrase(match["phrase"]):
            yield Span(*match.span("phrase"), Tag.PASSWORD)
    for match in ANNOUNCED.finditer(text):
        if match["quoted"]:
            yield Span(*match.span("quoted"), Tag.PASSWORD)
            continue
        secret = match["secret"].rstrip(TRAILING)
        if _is_secret(match, secret) or _is_word(text, match, secret):
            yield Span(match.start("secret"), match.start("secret") + len(secret), Tag.PASSWORD)


def _is_secret(match: re.Match[str], secret: str) -> bool:
    """Decide whether it looks like nothing but a password: letters with digits or signs between them, or a PIN."""
    if secret.isdecimal():
        is_asked = match["word"].lower().startswith("pin") or match["link"].strip() != ""
        return is_asked and len(secret) in PIN_DIGITS
    has_letter = any(map(str.isalpha, secret))
    has_digit = any(map(str.isdigit, secret))
    inner_capital = not secret.isupper() and any(map(str.isupper, secret[1:]))
    is_marked = has_digit or INNER_SIGN.search(match["secret"]) is not None or inner_capital
    return has_letter and is_marked and "-" not in secret[:1]


def _is_phrase(phrase: str) -> bool:
    words = re.split("[ -]", phrase.lower())
    said = sum(word in NO_PASSWORDS for word in words)
    return not SENTENCE_WORDS.intersection(words) and (
        said == 0 or (said == 1 and len(words) >= FEWEST_BESIDE_ONE)
    )


def _is_word(text: str, match: re.Match[str], secret: str) -> bool:
    if match["word"].lower() == "clave" and not text[: match.start()].lower().endswith("mi "):
        return False  # "la clave es paciencia": the key to something
    is_plain = len(secret) >= SHORTEST_WORD and secret.isalpha()
    return (
        is_plain
        and match["link"].strip() != ""
        and secret.lower() not in NO_PASSWORDS
        and CLAUSE_ENDS.match(text, match.start("secret") + len(secret)) is not None
    )
