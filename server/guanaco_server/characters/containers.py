"""Takes cards out of what is uploaded, a PNG, a CHARX zip or JSON, and puts them back into such files.

Everything is bounded before it is read: an upload by its own size, a zip by its directory and by what it unpacks to, a
picture by its pixels. It is work for a thread, never for the event loop.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from guanaco.characters import CardSpec
from guanaco.errors import InvalidCard
from guanaco_server.characters import pictures
from guanaco_server.characters.cards import MAX_CARD_BYTES, Card, as_v2, as_v3, read_card

CARD_NAME = "card.json"
V2_KEYWORD, V3_KEYWORD = b"chara", b"ccv3"
ASSET_KEYWORD = b"chara-ext-asset_:"
EMBEDDED = re.compile(r"(?:embeded|embedded)://(.+)|__asset:(.+)", re.DOTALL)
DEFAULT_ICON = "assets/icon/images/main.png"
ZIP_SIGNATURE, ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
ZIP_END_BYTES, ZIP_COMMENT_BYTES = 22, 65_535
MAX_FILES = 256
MAX_PATH_CHARS = 256
MAX_DIRECTORY_BYTES = MAX_FILES * 1_024
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ENCRYPTED = 0x1
MADE_AT = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip can name


@dataclass(frozen=True)
class CardFile:
    """A file that came with a card."""

    path: str
    content: bytes


@dataclass(frozen=True)
class UploadedCard:
    """A card with its files. The picture is one of them, or the PNG that the card came in."""

    card: Card
    files: tuple[CardFile, ...] = ()
    picture: bytes | None = None


def read_upload(data: bytes, max_bytes: int) -> UploadedCard:
    """Take the card out of a PNG, a CHARX zip or JSON, known by the first bytes. InvalidCard in one sentence.

    ``max_bytes`` limits what a zip's files unpack to.
    """
    if data.startswith(pictures.SIGNATURE):
        return _read_png(data)
    if data.startswith((ZIP_SIGNATURE, ZIP_END)):
        return _read_charx(data, max_bytes)
    if (kind := pictures.media_type(data)) is not None:
        raise InvalidCard(
            f"This is a picture of the type {kind}, which holds no card.",
            hint="A card may be JSON, a PNG, or a CHARX file.",
        )
    return UploadedCard(read_card(data))


def write_png(upload: UploadedCard) -> bytes:
    """Return the card in its picture, or in a plain one. A V3 card is there as V2 too, for older readers."""
    card = upload.card
    shown = pictures.placeholder(card.texts.name)
    if upload.picture is not None and pictures.media_type(upload.picture) == "image/png":
        shown = pictures.shown_chunks(pictures.chunks_of(upload.picture))
    texts = [(V2_KEYWORD, card.json.encode())]
    if card.spec in (CardSpec.V3, CardSpec.FORM):
        texts = [(V2_KEYWORD, as_v2(card)), (V3_KEYWORD, card.json.encode())]
    texts += [(ASSET_KEYWORD + one.path.encode(), one.content) for one in upload.files]
    chunks = [(b"tEXt", word + b"\x00" + base64.b64encode(content)) for word, content in texts]
    return pictures.written([*shown[:-1], *chunks, shown[-1]])


def write_charx(upload: UploadedCard) -> bytes:
    """Return the card as V3 with its files. The same card makes the same bytes."""
    files = [CardFile(CARD_NAME, as_v3(upload.card)), *upload.files]
    if upload.picture is not None and _is_missing(upload.picture, files):
        files.append(CardFile(DEFAULT_ICON, upload.picture))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for one in files:
            archive.writestr(zipfile.ZipInfo(one.path, MADE_AT), one.content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def _is_missing(picture: bytes, files: Sequence[CardFile]) -> bool:
    """Return whether it is a PNG that is no file of the card's own, so that there is a place for it."""
    is_there = any(one.content == picture or one.path == DEFAULT_ICON for one in files)
    return pictures.media_type(picture) == "image/png" and not is_there


def _read_png(data: bytes) -> UploadedCard:
    chunks = pictures.chunks_of(data)
    texts: dict[bytes, bytes] = {}
    for kind, content in chunks:
        if kind == b"tEXt":
            keyword, _, value = content.partition(b"\x00")
            if keyword.lower() in (V2_KEYWORD, V3_KEYWORD):
                keyword = keyword.lower()
            texts.setdefault(keyword, value)
    card_text = texts.get(V3_KEYWORD) or texts.get(V2_KEYWORD)
    if card_text is None:
        raise InvalidCard(
            "The PNG holds no card: it has neither a ccv3 nor a chara text chunk.",
            hint="Programs that edit or send pictures often remove it; use the file as it was saved.",
        )
    card = read_card(_decoded(card_text, MAX_CARD_BYTES, "card"))
    files = [
        CardFile(_path(word.removeprefix(ASSET_KEYWORD)), _decoded(value, len(data), "asset"))
        for word, value in texts.items()
        if word.startswith(ASSET_KEYWORD)
    ]
    if len(files) > MAX_FILES:
        raise InvalidCard(f"The PNG holds {len(files)} assets; {MAX_FILES} are allowed.")
    picture = pictures.written(pictures.shown_chunks(chunks))
    return UploadedCard(card, tuple(files), picture)


def _decoded(value: bytes, most: int, what: str) -> bytes:
    if len(value) > most * 4 // 3 + 4:
        raise InvalidCard(f"The {what} in the PNG has more than {most:,} bytes.")
    try:
        return base64.b64decode(value)
    except binascii.Error:
        raise InvalidCard(f"The {what} in the PNG is not in base64.") from None


def _read_charx(data: bytes, max_bytes: int) -> UploadedCard:
    _require_small_directory(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = _unpacked(archive, max_bytes)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, OSError):
        raise InvalidCard("The CHARX file is no zip that can be unpacked.") from None
    if CARD_NAME not in files:
        raise InvalidCard(f"The CHARX file has no {CARD_NAME}.")
    card = read_card(files.pop(CARD_NAME))
    picture = files.get(_icon_path(card.icon)) or files.get(DEFAULT_ICON)
    kind = pictures.media_type(picture) if picture is not None else None
    if picture is not None and kind == "image/png":
        pictures.shown_chunks(pictures.chunks_of(picture))
    kept = tuple(CardFile(path, content) for path, content in files.items())
    return UploadedCard(card, kept, picture if kind else None)


def _require_small_directory(data: bytes) -> None:
    """The directory is read as a whole, however many files it lists."""
    at = data.rfind(ZIP_END, max(0, len(data) - ZIP_END_BYTES - ZIP_COMMENT_BYTES))
    if at < 0 or at + ZIP_END_BYTES > len(data):
        raise InvalidCard("The CHARX file is cut off: it has no directory.")
    count = int.from_bytes(data[at + 10 : at + 12], "little")
    size = int.from_bytes(data[at + 12 : at + 16], "little")
    if count > MAX_FILES or size > MAX_DIRECTORY_BYTES:
        raise InvalidCard(f"The CHARX file has more than {MAX_FILES} files.")


def _unpacked(archive: zipfile.ZipFile, max_bytes: int) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    left = max_bytes
    for entry in archive.infolist():
        if entry.is_dir():
            continue
        path = _path(entry.filename.encode("utf-8", "replace"))
        if entry.flag_bits & ENCRYPTED:
            raise InvalidCard("The CHARX file is encrypted.")
        if entry.compress_type not in METHODS:
            raise InvalidCard("The CHARX file is packed in a way other than deflate.")
        if path in files or len(files) >= MAX_FILES:
            raise InvalidCard(f"The CHARX file has a file twice, or more than {MAX_FILES}.")
        with archive.open(entry) as packed:
            files[path] = packed.read(left + 1)
        left -= len(files[path])
        if left < 0:
            raise InvalidCard(f"The CHARX file unpacks to more than {max_bytes:,} bytes.")
    return files


def _path(name: bytes) -> str:
    """Return a path that leads nowhere but below where it is unpacked."""
    path = name.decode("utf-8", "replace")
    parts = path.split("/")
    is_inside = all(part not in ("", ".", "..") for part in parts)
    if not (is_inside and path.isprintable() and "\\" not in path and ":" not in parts[0]):
        raise InvalidCard(f"A file of the card has the path {path[:40]!r}, which is not allowed.")
    if len(path) > MAX_PATH_CHARS:
        raise InvalidCard(f"A file of the card has a path of over {MAX_PATH_CHARS} characters.")
    return path


def _icon_path(uri: str | None) -> str:
    found = EMBEDDED.fullmatch(uri or "")
    return unquote(found[1] or found[2]) if found else ""
