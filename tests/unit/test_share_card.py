"""Tests the picture that a model's page is shared with."""

from __future__ import annotations

import struct
import zlib

import pytest

from guanaco_server.web.share_card import HEIGHT, WIDTH, ShareCard, draw

HEADER = struct.Struct(">8sI4sII")


def pixels_of(picture: bytes) -> bytes:
    """Read the one IDAT chunk, checking each chunk's sum."""
    at, found = 8, b""
    while at < len(picture):
        (size,) = struct.unpack_from(">I", picture, at)
        body = picture[at + 4 : at + 8 + size]
        assert struct.unpack_from(">I", picture, at + 8 + size) == (zlib.crc32(body),)
        found += body[4:] if body.startswith(b"IDAT") else b""
        at += 12 + size
    return zlib.decompress(found)


@pytest.mark.parametrize(
    "name",
    [
        "Llama Bard",
        "",
        "W" * 64,
        "Ein sehr langer Name mit vielen Wörtern, der nicht passt",
        "駱馬 \u202e🦙",
    ],
)
def test_any_name_makes_a_whole_picture(name: str) -> None:
    card = ShareCard(name, f"by {name}", f"{name}: 78 %", (0.0, 0.5, 1.0))
    picture = draw(card)
    magic, _, kind, width, height = HEADER.unpack_from(picture)
    assert (magic, kind, width, height) == (b"\x89PNG\r\n\x1a\n", b"IHDR", WIDTH, HEIGHT)
    assert len(pixels_of(picture)) == HEIGHT * (WIDTH + 1)
    assert len(picture) < 40_000


def test_another_score_is_another_picture() -> None:
    shares = ((0.1, 0.2, 0.3), (0.6, 0.7, 0.8), None)
    assert len({draw(ShareCard("Bard", "by ada", "", one)) for one in shares}) == 3
