"""Draws the picture that a model's page is shared with: a PNG of 1200 by 630 pixels, in 256 colours, without a library.

A pixel is one byte: the upper bits name a colour, the lower four how much of it covers the ground. The letters (DejaVu Sans,
share_card.font) are made by scripts/card-font; its licence lets anybody use it.
"""

from __future__ import annotations

import json
import struct
import unicodedata
import zlib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

WIDTH, HEIGHT = 1200, 630
MARGIN = 80
GROUND, INK, SOFT, ACCENT, TRACK = (
    (0xFA, 0xF7, 0xF2),
    (0x22, 0x1C, 0x15),
    (0x65, 0x5B, 0x4F),
    (0x9A, 0x43, 0x19),
    (0xE4, 0xDC, 0xCF),
)
COLOURS = (INK, SOFT, ACCENT, TRACK)
SHADES = 16
FONT = Path(__file__).with_name("share_card.font")
BAR = range(470, 496)  # rows
DRAWN = 128  # pictures that are kept, of some 15 kB each


@dataclass(frozen=True)
class ShareCard:
    """``shares`` are the lower end, the value and the upper end of the score, from 0 to 1, where it is known."""

    name: str
    byline: str
    score: str
    shares: tuple[float, float, float] | None


@dataclass(frozen=True)
class GlyphSet:
    """One size of the font. A glyph is its rows, of one byte a pixel from 0 to 15."""

    height: int
    glyphs: dict[str, tuple[bytes, ...]]

    def width(self, text: str) -> int:
        return sum(len(self.glyphs[letter][0]) for letter in text)

    def known(self, text: str) -> str:
        """Write a text in letters that the font has; another one is taken apart, or becomes a question mark."""
        parts = (letter if letter in self.glyphs else _plain(letter) for letter in text)
        return "".join(part if part in self.glyphs else "?" for part in "".join(parts))

    def fitting(self, text: str, width: int) -> str:
        """Cut a text where the width ends."""
        if self.width(text) <= width:
            return text
        while text and self.width(f"{text}…") > width:
            text = text[:-1]
        return f"{text.rstrip()}…"


@lru_cache(maxsize=DRAWN)
def draw(card: ShareCard) -> bytes:
    """Return the PNG."""
    large, small = _letters("large"), _letters("small")
    canvas = [bytearray(WIDTH) for _ in range(HEIGHT)]
    room = WIDTH - 2 * MARGIN
    _fill(canvas, range(14), 0, WIDTH, ACCENT)
    _write(canvas, small, "Guanaco", 70, ACCENT)
    lines = _wrapped(large, large.known(card.name), room)
    top = 150
    for line in lines:
        _write(canvas, large, line, top, INK)
        top += large.height
    _write(canvas, small, small.fitting(small.known(card.byline), room), top + 8, SOFT)
    if card.shares is not None:
        low, at, high = (MARGIN + round(min(1.0, max(0.0, x)) * room) for x in card.shares)
        _fill(canvas, BAR, MARGIN, WIDTH - MARGIN, TRACK)
        _fill(canvas, BAR, low, max(low + 2, high), ACCENT, shade=7)
        _fill(canvas, range(BAR.start - 8, BAR.stop + 8), max(at - 4, 0), at + 4, ACCENT)
    _write(canvas, small, small.fitting(small.known(card.score), room), 525, INK)
    return _png(canvas)


def _wrapped(letters: GlyphSet, text: str, width: int) -> list[str]:
    """Break a text into at most two lines, between words where there are some."""
    if letters.width(text) <= width:
        return [text]
    end = next((at for at in range(len(text), 0, -1) if letters.width(text[:at]) <= width), 1)
    space = text.rfind(" ", 1, end + 1)
    at = space if space > 0 else end
    return [text[:at].rstrip(), letters.fitting(text[at:].lstrip(), width)]


def _write(
    canvas: list[bytearray], letters: GlyphSet, text: str, top: int, colour: tuple[int, int, int]
) -> None:
    ramp = bytes([0, *(COLOURS.index(colour) * SHADES + shade for shade in range(1, SHADES))])
    left = MARGIN
    for letter in text:
        glyph = letters.glyphs[letter]
        for row, pixels in enumerate(glyph):
            canvas[top + row][left : left + len(pixels)] = pixels.translate(ramp.ljust(256, b"\0"))
        left += len(glyph[0])


def _fill(
    canvas: list[bytearray],
    rows: range,
    left: int,
    right: int,
    colour: tuple[int, int, int],
    shade: int = SHADES - 1,
) -> None:
    pixel = COLOURS.index(colour) * SHADES + shade
    for row in rows:
        canvas[row][left:right] = bytes([pixel]) * (right - left)


def _plain(letter: str) -> str:
    """Take accents off."""
    return "".join(
        part for part in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(part)
    )


@cache
def _letters(size: str) -> GlyphSet:
    data = zlib.decompress(FONT.read_bytes())
    head_bytes = int.from_bytes(data[:4], "big")
    index = json.loads(data[4 : 4 + head_bytes])[size]
    pixels, height = data[4 + head_bytes :], index["height"]
    glyphs = {
        chr(int(code)): tuple(
            pixels[at + row * width : at + (row + 1) * width] for row in range(height)
        )
        for code, (at, width) in index["letters"].items()
    }
    return GlyphSet(height, glyphs)


def _png(canvas: list[bytearray]) -> bytes:
    """Write the format of https://www.w3.org/TR/png-3/: 8 bits a pixel, by a palette."""
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 3, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in canvas), 6)
    chunks = ((b"IHDR", header), (b"PLTE", _palette()), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _palette() -> bytes:
    """Give every colour its shades, from the ground to the whole colour. 0 is the ground."""
    mixed = (
        round(ground + (whole - ground) * shade / (SHADES - 1))
        for colour in COLOURS
        for shade in range(SHADES)
        for ground, whole in zip(GROUND, colour, strict=True)
    )
    return bytes(mixed)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
