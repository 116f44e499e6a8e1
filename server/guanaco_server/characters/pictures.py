"""Pictures of characters: known by their first bytes, and a PNG's chunks and size looked through.

A PNG is taken apart and rewritten with only the chunks that show the picture. Its pixels are unpacked piece by piece
and counted against what its header says, so a small file cannot become a huge picture in somebody's browser.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator

from guanaco.errors import InvalidCard

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_CHUNKS = 20_000
MAX_SIDE = 8_192
MAX_UNPACKED_BYTES = 67_108_864  # 4,096 by 4,096 pixels in colour
PIECE_BYTES = 65_536
SHOWN = frozenset((b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"sRGB"))
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
PLACEHOLDER_SIDES = (400, 600)

Chunk = tuple[bytes, bytes]


def media_type(data: bytes) -> str | None:
    """Return the type of a picture that browsers show; None for anything else."""
    if data.startswith(SIGNATURE):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[4:12] == b"ftypavif":
        return "image/avif"
    return None


def chunks_of(data: bytes) -> list[Chunk]:
    """Return the chunks of a PNG, from IHDR to IEND. InvalidCard where it is cut off or out of order."""
    found = []
    for chunk in _chunks(data):
        found.append(chunk)
        if len(found) > MAX_CHUNKS:
            raise InvalidCard(f"The PNG has more than {MAX_CHUNKS:,} chunks.")
    if not found or found[0][0] != b"IHDR" or found[-1][0] != b"IEND":
        raise InvalidCard("The PNG is cut off: it does not go from a header to an end.")
    return found


def shown_chunks(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Return the chunks that show the picture. InvalidCard where its pixels are not what its header says."""
    kept = [(kind, data) for kind, data in chunks if kind in SHOWN]
    expected = _expected_bytes(kept[0][1])
    found = 0
    for size in _unpacked(data for kind, data in kept if kind == b"IDAT"):
        found += size
        if found > expected:
            break
    if found != expected:
        raise InvalidCard("The PNG's pixels are more or fewer than its header says.")
    return kept


def written(chunks: Iterable[Chunk]) -> bytes:
    """Return a PNG of these chunks."""
    pieces = [SIGNATURE]
    for kind, data in chunks:
        body = kind + data
        pieces += (struct.pack(">I", len(data)), body, struct.pack(">I", zlib.crc32(body)))
    return b"".join(pieces)


def placeholder(name: str) -> list[Chunk]:
    """Return a picture for a card that has none: one colour, which the name decides."""
    width, height = PLACEHOLDER_SIDES
    colour = bytes(64 + byte // 2 for byte in hashlib.sha256(name.encode()).digest()[:3])
    rows = (b"\x00" + colour * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]


def _chunks(data: bytes) -> Iterator[Chunk]:
    at = len(SIGNATURE)
    while at + 12 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind = data[at + 4 : at + 8]
        if size > len(data) - at - 12:
            raise InvalidCard("A chunk of the PNG is longer than the file.")
        yield kind, data[at + 8 : at + 8 + size]
        if kind == b"IEND":
            return
        at += size + 12


def _expected_bytes(header: bytes) -> int:
    """Return how many bytes the pixels have when they are unpacked, with a filter's byte for each row."""
    if len(header) != 13:
        raise InvalidCard("The PNG's header is not one.")
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", header)
    if depth not in DEPTHS.get(colour, ()) or interlace > 1:
        raise InvalidCard("The PNG's header names a kind of pixels that there is not.")
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        raise InvalidCard(
            f"The picture has {width:,} by {height:,} pixels; {MAX_SIDE:,} are allowed for a side."
        )
    bits = depth * CHANNELS[colour]
    passes = [(width, height)]
    if interlace:
        passes = [(-(-(width - x) // dx), -(-(height - y) // dy)) for x, y, dx, dy in ADAM7]
    sizes = (rows * (1 + -(-columns * bits // 8)) for columns, rows in passes if columns > 0 < rows)
    expected: int = sum(sizes)
    if expected > MAX_UNPACKED_BYTES:
        raise InvalidCard(
            f"The picture has {width:,} by {height:,} pixels, which take {expected:,} bytes; {MAX_UNPACKED_BYTES:,} are allowed."
        )
    return expected


def _unpacked(pieces: Iterable[bytes]) -> Iterator[int]:
    """Yield the sizes of what the pieces unpack to, never much at once."""
    inflater = zlib.decompressobj()
    try:
        for piece in pieces:
            rest = piece
            while rest:
                yield len(inflater.decompress(rest, PIECE_BYTES))
                rest = inflater.unconsumed_tail
        while not inflater.eof:
            if not (more := len(inflater.decompress(b"", PIECE_BYTES))):
                return
            yield more
    except zlib.error:
        raise InvalidCard("The PNG's pixels cannot be unpacked.") from None
