"""A labelled corpus of chat lines in five languages, made from templates with a seed. Nobody in it exists.

Each line holds one piece of personal data in one form, or none: those are the ordinary lines, full of things that look
alike. About a third of the templates is held out: the rules were not tuned on them, and their figures stand apart.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

LANGUAGES = ("en", "de", "es", "fr", "pt")
SEED = 12
LINES_OF_A_KIND = 60
NOTHING = "nothing"


@dataclass(frozen=True)
class Line:
    """``value`` is the personal data in ``text``, empty in an ordinary line; ``user_name`` is what the app knows."""

    text: str
    value: str
    kind: str
    language: str
    is_held_out: bool
    user_name: str = ""


def corpus(seed: int = SEED) -> list[Line]:
    """Return the lines, the same for the same seed."""
    chance = random.Random(seed)
    return [*_personal(chance), *_ordinary(chance)]


def _personal(chance: random.Random) -> Iterator[Line]:
    for kind, form in KINDS.items():
        for number in range(LINES_OF_A_KIND):
            language = LANGUAGES[number % len(LANGUAGES)]
            group = "name" if kind == "spaced name" else kind if kind in TEMPLATES else "contact"
            templates = TEMPLATES[group][language]
            place = chance.randrange(len(templates))
            value = form(chance, language)
            name = value.replace(" ", "").replace("-", "") if group == "name" else ""
            text = templates[place].replace("{}", value)
            if kind == "handle on a network" or (kind == "postcode" and language != "en"):
                value = value.split()[-1 if kind == "postcode" else 0]
            yield Line(text, value, kind, language, place == len(templates) - 1, name)


def _ordinary(chance: random.Random) -> Iterator[Line]:
    """Yield every ordinary template with several fillings."""
    for language, templates in ORDINARY.items():
        for place, template in enumerate(templates):
            is_held_out = place % 3 == 2
            for text in sorted({_filled(template, chance) for _ in range(6)}):
                yield Line(text, "", NOTHING, language, is_held_out)


def _filled(template: str, chance: random.Random) -> str:
    while "#" in template:
        template = template.replace("#", str(chance.randrange(1, 10)), 1)
    return template


FIRST = (
    "jane",
    "otto",
    "lucia",
    "camille",
    "joana",
    "maxi",
    "sven",
    "ines",
    "hugo",
    "beatriz",
    "nora",
    "felix",
)
LAST = ("doe", "muster", "perez", "martin", "silva", "brandt", "garcia", "petit", "costa", "weber", "lopez", "moreau")  # fmt: skip
HOSTS = ("gmail.com", "hotmail.com", "proton.me", "web.de", "outlook.es", "orange.fr", "sapo.pt", "yahoo.com.br", "gmx.net")  # fmt: skip
AT_WORDS = {"en": ("at",), "de": ("ät", "at"), "es": ("arroba",), "fr": ("arobase", "arrobase"), "pt": ("arroba",)}  # fmt: skip
DOT_WORDS = {"en": "dot", "de": "punkt", "es": "punto", "fr": "point", "pt": "ponto"}
ON_WORDS = {"en": "on", "de": "auf", "es": "en", "fr": "sur", "pt": "no"}
DIGITS = {
    "en": "zero one two three four five six seven eight nine",
    "de": "null eins zwei drei vier fünf sechs sieben acht neun",
    "es": "cero uno dos tres cuatro cinco seis siete ocho nueve",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf",
    "pt": "zero um dois três quatro cinco seis sete oito nove",
}
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
VIN_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ0123456789"
LETTERS = "ABCDEFGHJKLMNPRSTVWXY"
Form = Callable[[random.Random, str], str]


def _local(chance: random.Random) -> str:
    first, last = chance.choice(FIRST), chance.choice(LAST)
    return chance.choice(
        (first, f"{first}.{last}", f"{first}_{last}", f"{first}{chance.randrange(10, 99)}")
    )


def _email(chance: random.Random, _language: str) -> str:
    return f"{_local(chance)}@{chance.choice(HOSTS)}"


def _spaced_email(chance: random.Random, language: str) -> str:
    return " ".join(_email(chance, language))


def _bracketed_email(chance: random.Random, language: str) -> str:
    at = chance.choice(("[at]", "(at)", " (at) ", "{at}", "<at>", "(a)", "(ät)", "(@)", " [ at ] "))
    dot = chance.choice((".", "[dot]", "(dot)", f"({DOT_WORDS[language]})", "[.]"))
    host = chance.choice(HOSTS)
    return f"{_local(chance)}{at}{host.replace('.', dot)}"


def _spoken_email(chance: random.Random, language: str) -> str:
    at, dot = chance.choice(AT_WORDS[language]), DOT_WORDS[language]
    local = _local(chance).replace(".", f" {dot} ")
    return f"{local} {at} {chance.choice(HOSTS).replace('.', f' {dot} ')}"


def _run_together_email(chance: random.Random, _language: str) -> str:
    at, dot = chance.choice((("AT", "DOT"), ("At", "Dot"), ("_at_", "_dot_"), ("-at-", "-dot-")))
    return f"{_local(chance)}{at}{chance.choice(HOSTS).replace('.', dot)}"


def _handle(chance: random.Random, language: str) -> str:
    name = chance.choice(FIRST) + chance.choice(LAST) + str(chance.randrange(10, 2000))
    where = chance.choice(
        ("gmail", "insta", "snap", "discord", "telegram", "hotmail", "kik", "tiktok")
    )
    return f"{name} {ON_WORDS[language]} {where}"


def _phone_digits(chance: random.Random, language: str) -> str:
    start = {"en": "0770090", "de": "0151234", "es": "6123", "fr": "061234", "pt": "1198765"}
    length = {"en": 11, "de": 11, "es": 9, "fr": 10, "pt": 11}[language]
    found = start[language]
    return found + "".join(chance.choices("0123456789", k=length - len(found)))


def _phone(chance: random.Random, language: str) -> str:
    digits = _phone_digits(chance, language)
    return chance.choice(
        (digits, f"{digits[:3]} {digits[3:6]} {digits[6:]}", f"{digits[:4]}-{digits[4:]}")
    )


def _phone_in_words(chance: random.Random, language: str) -> str:
    words = DIGITS[language].split()
    between = chance.choice((" ", ", ", "-", " "))
    return between.join(words[int(digit)] for digit in _phone_digits(chance, language))


def _phone_with_letters(chance: random.Random, language: str) -> str:
    digits = _phone_digits(chance, language)
    letters = {"0": chance.choice("Oo"), "1": chance.choice("lI")}
    text = "".join(letters.get(digit, digit) for digit in digits)
    return chance.choice((text, f"{text[:5]} {text[5:]}"))


def _spaced_name(chance: random.Random, _language: str) -> str:
    return chance.choice((" ", "-")).join(
        chance.choice((str.upper, str))(chance.choice(FIRST[2:]) + "a")
    )


def _national_insurance(chance: random.Random, _language: str) -> str:
    start = chance.choice(("AB", "CE", "JG", "PX", "SR", "WM"))
    digits, end = f"{chance.randrange(10**6):06}", chance.choice("ABCD")
    pairs = (digits[:2], digits[2:4], digits[4:])
    return chance.choice(
        (
            f"{start} {' '.join(pairs)} {end}",
            f"{start}{digits}{end}",
            f"{start}-{'-'.join(pairs)}-{end}",
            " ".join(start + digits + end),
        )
    )


def _mac(chance: random.Random, _language: str) -> str:
    octets = [f"{chance.randrange(256):02x}" for _ in range(5)] + ["a7"]
    return chance.choice(
        (
            ":".join(octets),
            "-".join(octets).upper(),
            ".".join(a + b for a, b in zip(octets[::2], octets[1::2], strict=True)),
        )
    )


def _postcode(chance: random.Random, language: str) -> str:
    three, four, five = (f"{chance.randrange(10 ** (n - 1), 10**n)}" for n in (3, 4, 5))
    return {
        "en": chance.choice(("SW1A 2AA", "EC1V 9LT", "M60 3BX", "BT7 1NN", "K1A 0B1", "LS1 4DY")),
        "de": chance.choice((f"PLZ {five}", f"D-{five}", f"Postleitzahl {five}")),
        "es": chance.choice((f"código postal {five}", f"CP {five}", f"codigo postal: {five}")),
        "fr": chance.choice((f"code postal {five}", f"F-{five}", f"CP: {five}")),
        "pt": chance.choice((f"CEP {five}-{three}", f"código postal {four}-{three}", f"{five}-{three}")),
    }[language]  # fmt: skip


def _plate(chance: random.Random, language: str) -> str:
    letters = "".join(chance.choices(LETTERS, k=6))
    two, four = chance.randrange(10, 70), chance.randrange(1000, 9999)
    return {
        "en": f"{letters[:2]}{chance.choice((12, 17, 19, 21, 65, 68))} {letters[2:4]}X",
        "de": f"{chance.choice(('B', 'M', 'HH', 'K', 'DD'))}-{letters[:2]} {four}",
        "es": f"{four} {chance.choice(('BCD', 'KLM', 'JHT', 'LNZ'))}",
        "fr": f"{letters[:2]}-{two}7-{letters[2:4]}",
        "pt": chance.choice((f"{letters[:2]}-{two}-{letters[2:4]}", f"{letters[:3]}{two // 10}{letters[3]}{two}")),
    }[language]  # fmt: skip


def _vin(chance: random.Random, _language: str) -> str:
    values = dict(zip("ABCDEFGHJKLMNPRSTUVWXYZ", "12345678123457923456789", strict=True))
    weights = (8, 7, 6, 5, 4, 3, 2, 10, 0, 9, 8, 7, 6, 5, 4, 3, 2)
    vin = "".join(chance.choices(VIN_LETTERS, k=11)) + f"{chance.randrange(10**6):06}"
    total = sum(
        int(values.get(sign, sign)) * weight for sign, weight in zip(vin, weights, strict=True)
    )
    return vin[:8] + "0123456789X"[total % 11] + vin[9:]


def _coordinates(chance: random.Random, _language: str) -> str:
    north, east = chance.uniform(36, 58), chance.uniform(-9, 14)
    return chance.choice(
        (
            f"{north:.5f}, {east:.5f}",
            f"{north:.4f}° N, {abs(east):.4f}° W",
            f"{int(north)}°{chance.randrange(60):02}'{chance.randrange(60):02}\"N {int(abs(east))}°{chance.randrange(60):02}'{chance.randrange(60):02}\"E",
        )
    )


def _wallet(chance: random.Random, _language: str) -> str:
    if chance.random() < 0.4:
        return "0x" + "".join(chance.choices("0123456789abcdef", k=40))
    payload = bytes([chance.choice((0, 5, 48, 30))]) + chance.randbytes(20)
    check = hashlib.sha256(hashlib.sha256(payload).digest()).digest()[:4]
    number, text = int.from_bytes(payload + check), ""
    while number:
        number, rest = divmod(number, 58)
        text = BASE58[rest] + text
    return "1" * (payload[0] == 0) + text


def _password(chance: random.Random, _language: str) -> str:
    return chance.choice(
        (
            f"{chance.choice(FIRST)}{chance.randrange(100, 9999)}!",
            f"{chance.choice(LAST).title()}_{chance.randrange(10, 99)}",
            f"{chance.choice(('blumen', 'sunset', 'cielo', 'lune', 'praia'))}{chance.choice(LAST)}",
            f"x{chance.randrange(10**5)}Kq#",
        )
    )


def _card(chance: random.Random, _language: str) -> str:
    digits = [4, *(chance.randrange(10) for _ in range(14))]
    doubled = [d if place % 2 else sum(divmod(2 * d, 10)) for place, d in enumerate(digits)]
    text = "".join(map(str, digits)) + str(-sum(doubled) % 10)
    return chance.choice((text, " ".join(text[place : place + 4] for place in (0, 4, 8, 12))))


def _iban(chance: random.Random, _language: str) -> str:
    bban = f"{chance.randrange(10**17, 10**18)}"
    check = 98 - int(bban + "131400") % 97
    text = f"DE{check:02}{bban}"
    return chance.choice((text, " ".join(text[place : place + 4] for place in range(0, 22, 4))))


def _link(chance: random.Random, _language: str) -> str:
    name = chance.choice(FIRST) + chance.choice(LAST)
    return chance.choice((f"https://{name}.example.com/me", f"www.{name}.org", f"{name}.com/about"))


def _ip(chance: random.Random, _language: str) -> str:
    return f"{chance.choice((81, 93, 203, 188))}." + ".".join(
        str(chance.randrange(1, 255)) for _ in range(3)
    )


KINDS: Mapping[str, Form] = {
    "email": _email,
    "email, spaced out": _spaced_email,
    "email, bracketed": _bracketed_email,
    "email, in words": _spoken_email,
    "email, run together": _run_together_email,
    "handle on a network": _handle,
    "phone": _phone,
    "phone, in words": _phone_in_words,
    "phone, letters for digits": _phone_with_letters,
    "spaced name": _spaced_name,
    "national insurance": _national_insurance,
    "MAC": _mac,
    "postcode": _postcode,
    "plate": _plate,
    "VIN": _vin,
    "coordinates": _coordinates,
    "wallet": _wallet,
    "password": _password,
    "card": _card,
    "IBAN": _iban,
    "link": _link,
    "IP": _ip,
}

# The last template of each list is held out.
TEMPLATES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "contact": {
        "en": ("write me: {}", "mine is {}, ok?", "here: {} thanks", "you can have {} if you want", "so, {}. Don't tell anyone"),
        "de": ("schreib mir: {}", "meine ist {}, ok?", "hier: {} danke", "ich geb dir {} wenn du magst", "also, {}. Sag es keinem"),
        "es": ("escríbeme: {}", "la mía es {}, ¿vale?", "aquí: {} gracias", "te doy {} si quieres", "pues, {}. No lo digas a nadie"),
        "fr": ("écris-moi : {}", "voici {}, d'accord ?", "ici : {} merci", "je te donne {} si tu veux", "alors, {}. Ne le dis à personne"),
        "pt": ("escreve-me: {}", "a minha é {}, ok?", "aqui: {} obrigado", "dou-te {} se quiseres", "então, {}. Não contes a ninguém"),
    },
    "handle on a network": {
        "en": ("I'm {}", "find me, {} lol", "it is {}, add me", "you can look for {}!"),
        "de": ("ich bin {}", "such mich, {} lol", "das ist {}, adde mich", "du findest mich als {}!"),
        "es": ("soy {}", "búscame, {} jaja", "es {}, agrégame", "me encuentras como {}!"),
        "fr": ("je suis {}", "cherche-moi, {} mdr", "c'est {}, ajoute-moi", "tu me trouves, {} !"),
        "pt": ("sou {}", "procura-me, {} kkk", "é {}, adiciona-me", "encontras-me como {}!"),
    },
    "name": {
        "en": ("I'm {}", "hi, {} here", "call me {} please", "everybody says {} to me"),
        "de": ("ich bin {}", "hallo, {} hier", "nenn mich {} bitte", "alle sagen {} zu mir"),
        "es": ("soy {}", "hola, aquí {}", "llámame {} por favor", "todos me dicen {}"),
        "fr": ("je suis {}", "salut, ici {}", "appelle-moi {} stp", "tout le monde me dit {}"),
        "pt": ("sou {}", "olá, aqui {}", "chama-me {} por favor", "todos me dizem {}"),
    },
    "password": {
        "en": ("my password is {}", "the password's {}, ok", "pw: {}", "log in with password {}", "I set the password to {}"),
        "de": ("mein Passwort ist {}", "das Kennwort lautet {}", "PW: {}", "das Passwort: {} bitte", "ich habe als Passwort {}"),
        "es": ("mi contraseña es {}", "la clave es {}", "contraseña: {}", "mi clave: {} ok", "puse de contraseña {}"),
        "fr": ("mon mot de passe est {}", "mdp : {}", "le mot de passe c'est {}", "mot de passe: {} ok", "j'ai mis comme mot de passe {}"),
        "pt": ("minha senha é {}", "a senha: {}", "minha palavra-passe é {}", "senha {} ok", "pus como senha {}"),
    },
    "plate": {
        "en": ("my car is {}", "look for {} outside", "number plate {}", "I drive {}, the red one"),
        "de": ("mein Auto ist {}", "such {} draußen", "Kennzeichen {}", "ich fahre {}, den roten"),
        "es": ("matrícula {}", "mi matrícula es {}", "la matrícula del coche: {}", "el coche con placa {}"),
        "fr": ("ma voiture est {}", "cherche {} dehors", "plaque {}", "je conduis {}, la rouge"),
        "pt": ("meu carro é {}", "procura {} lá fora", "matrícula {}", "conduzo {}, o vermelho"),
    },
    "postcode": {
        "en": ("I live at {}", "it's {} in town", "postcode {}", "we moved to {} last year"),
        "de": ("ich wohne in {}", "das ist {} dort", "schick es an {}", "wir zogen nach {} letztes Jahr"),
        "es": ("vivo en {}", "es {} allí", "envíalo a {}", "nos mudamos a {} el año pasado"),
        "fr": ("j'habite {}", "c'est {} là-bas", "envoie-le à {}", "on a déménagé, {}, l'an passé"),
        "pt": ("moro em {}", "é {} lá", "manda para {}", "mudámos para {} no ano passado"),
    },
}  # fmt: skip

# Each third template is held out; # becomes a digit.
ORDINARY: Mapping[str, Sequence[str]] = {
    "en": (
        "Hello there, how was your day?", "I got up at #:#5 and ran # miles.", "we met at a dot com party in 200#",
        "The password is wrong again, and so is my PIN.", "my password is too long to remember", "he forgot his password, poor guy",
        "She said one two three and jumped.", "It costs $#,#99.99 or #0% less", "one or two, maybe three or four at nine",
        "A B C D E F G, that's the song", "S T O P it right now", "h e l l o there sleepy",
        "version #.#.#1 beats #.#.#2", "set it to 0.25, 0.75 and 0.5", "pi is 3.14159, e is 2.71828, phi 1.61803",
        "I have an RTX 40#0 and 32GB of RAM", "my GT86 AND your R2D2", "the B52 and the F16 flew over at # PM",
        "my insta is private and discord is down", "I'm addicted to tiktok", "I saw it on snap yesterday",
        "my plate had # shrimps on it", "room #0#, floor #, at 10:30", "the code is in main.py line ##0",
        "look at the stars, on point", "at this point, come on", "(a) is true, (b) is not, see (at) signs",
        "we won 3-2 in 199# and 21-19 in 201#", "chapter #, verses 12-1#, page 2##", "from 1914-1918 to 1939-1945",
        "the scores were 12, 15, 18 and 2#", "he's 1m8# and 7#kg", "it took 1#h 30min, then #0 more",
        "I'll be there on the 1#th of May 202#", "at 5:30 AM or 6:#5 PM", "meet me at noon, ok. so?",
        "my vin is a red wine, haha", "my mac is an old macbook", "it is 2#°C outside, 10° less than in July",
        "bring me 2 kg, 3 l and 500 ml", "the M25 and the A1 are full", "route 66, exit 1#B",
        "GPT-4o and LLaMA-3 70B", "ISO 9001, DIN A4, MP3, H264", "X-ray 2#, T-800, R2-D2, C-3PO",
        "order #12 of 2#", "season # episode 1#", "I rolled 3d6+# and got 1#", "the wifi is slow, #0 Mbit/s",
    ),
    "de": (
        "Hallo, wie war dein Tag?", "Ich bin um #:#5 aufgestanden und # km gelaufen.", "Das kostet #.#99,99 Euro",
        "Das Passwort ist falsch, und die PIN auch.", "mein Passwort ist leider viel zu lang", "Er hat sein Kennwort vergessen.",
        "eins zwei drei vier, los geht's", "null Bock heute, acht Stunden Arbeit", "Es waren zwei oder drei, vielleicht vier um neun",
        "Am #. Mai 202# um 18:30 Uhr", "Seite 12, Kapitel #, Absatz 3", "von 1914 bis 1918 und 1939-1945",
        "mein Insta ist privat und Discord ist down", "ich hab es auf Snap gesehen", "sie ist auf Tiktok süchtig",
        "Auf den Punkt gebracht, komm", "an diesem Punkt de facto", "Das ist der Punkt, com on",
        "10000 Euro für 20000 Menschen", "Er wiegt 8# kg und ist 1,8# m", "die A7 und die B27 sind voll",
        "S-Bahn S3, Gleis 1#", "U-Boot U-96, E-Mail, X-Box 360", "Wir sahen T-Rex und Co-Pilot",
        "Das Auto hat 1#0 PS und E10", "Kennzeichen eines guten Films ist die Musik", "Punkt 12 Uhr gibt es Essen",
        "im Jahr 200# waren es # %", "H a l l o du", "Zug ICE 59# nach Ulm",
    ),
    "es": (
        "Hola, ¿qué tal tu día?", "Me levanté a las #:#5 y corrí # km.", "Cuesta #.#99,99 euros",
        "La contraseña es incorrecta otra vez.", "mi contraseña es muy larga", "la clave es la paciencia, amigo",
        "uno dos tres y ya", "cero ganas, ocho horas de trabajo", "eran dos o tres, quizá cuatro a las nueve",
        "el # de mayo de 202# a las 18:30", "página 12, capítulo #", "de 1914 a 1918 y 1936-1939",
        "mi insta es privado y discord no va", "lo vi en snap ayer", "está viciado en tiktok",
        "a este punto es tarde", "punto com ya no es moda", "el punto es que no vino",
        "la matrícula de la universidad cuesta #00 euros", "mido 1,8# y peso 7# kg", "la A6 y la M30 están llenas",
        "pesa una arroba de trigo", "2 kg, 3 l y 500 ml", "el código es fácil, línea 1#",
        "ganamos 3-2 en 199#", "temporada # episodio 1#", "h o l a dormilón", "el 50 % de # personas", "son las 10:30", "nivel #0 en 5 min",
    ),
    "fr": (
        "Bonjour, comment s'est passée ta journée ?", "Je me suis levé à #h#5 et j'ai couru # km.", "Ça coûte # 499,99 euros",
        "Le mot de passe est faux, encore.", "mon mot de passe est trop long", "il a oublié son mot de passe",
        "un deux trois soleil", "zéro envie, huit heures de travail", "il y en avait deux ou trois, peut-être quatre à neuf heures",
        "le # mai 202# à 18h30", "page 12, chapitre #", "de 1914 à 1918 et 1939-1945",
        "mon insta est privé et discord est en panne", "je l'ai vu sur snap hier", "elle est accro à tiktok",
        "à ce point de vue", "un point c'est tout", "au point com, on verra",
        "une plaque de chocolat de #00 g", "je mesure 1m8# et pèse 7# kg", "l'A6 et le N7 sont bouchés",
        "l'arobase est un signe", "2 kg, 3 l et 500 ml", "le code est simple, ligne 1#",
        "on a gagné 3-2 en 199#", "saison # épisode 1#", "s a l u t toi", "50 % de # personnes", "il est 10:30", "niveau #0 en 5 min",
    ),
    "pt": (
        "Olá, como foi o teu dia?", "Acordei às #h#5 e corri # km.", "Custa #.#99,99 reais",
        "A senha está errada outra vez.", "minha senha é muito longa", "ele esqueceu a senha",
        "um dois três e já", "zero vontade, oito horas de trabalho", "eram dois ou três, talvez quatro às nove",
        "no dia # de maio de 202# às 18:30", "página 12, capítulo #", "de 1914 a 1918 e 1939-1945",
        "meu insta é privado e o discord caiu", "vi no snap ontem", "está viciado no tiktok",
        "a este ponto é tarde", "ponto com já não é moda", "o ponto é que não veio",
        "a matrícula da faculdade custa #00 reais", "tenho 1,8# m e 7# kg", "a A1 e a BR-10# estão cheias",
        "pesa uma arroba de trigo", "2 kg, 3 l e 500 ml", "o código é fácil, linha 1#",
        "ganhámos 3-2 em 199#", "temporada # episódio 1#", "o l á dorminhoco", "50 % de # pessoas", "são 10:30", "nível #0 em 5 min",
    ),
}  # fmt: skip
