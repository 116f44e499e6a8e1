"""Character Cards: every field comes back, and what is hostile is refused in one sentence."""

from __future__ import annotations

import copy
import io
import json
import struct
import zipfile
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guanaco.characters import CardSpec
from guanaco.errors import InvalidCard, InvalidInput
from guanaco_server.characters.cards import MAX_CARD_BYTES
from guanaco_server.characters.casting import cast, require_castable
from guanaco_server.characters.containers import (
    UploadedCard,
    read_upload,
    write_charx,
    write_png,
)
from tests.fixtures.cards import V1, V2, V3, card_png, charx, chunk, png

MIB = 1_048_576
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=("Cs",)), max_size=8), inner, max_size=4
        )
    ),
    max_leaves=12,
)


def read(data: bytes | Any, max_bytes: int = MIB) -> UploadedCard:
    return read_upload(data if isinstance(data, bytes) else json.dumps(data).encode(), max_bytes)


def content(upload: UploadedCard) -> Any:
    return json.loads(upload.card.json)


@pytest.mark.parametrize(
    ("card", "spec", "keyword"),
    [(V1, CardSpec.V1, "chara"), (V2, CardSpec.V2, "chara"), (V3, CardSpec.V3, "ccv3")],
    ids=("v1", "v2", "v3"),
)
def test_card_survives_json_and_png_unchanged(
    card: dict[str, Any], spec: CardSpec, keyword: str
) -> None:
    for upload in (read(card), read(card_png(card, keyword)), read(write_png(read(card)))):
        assert upload.card.spec is spec
        assert content(upload) == card
        assert content(read(write_png(upload))) == card


def test_a_v3_card_comes_back_from_charx_with_its_files() -> None:
    files = {"assets/icon/images/main.png": png(width=4), "x_meta.json": b"{}", "a/b.lua": b"--"}
    upload = read(charx(V3, files))
    again = read(write_charx(upload))
    assert (again, content(again)) == (upload, V3)
    assert upload.picture == files["assets/icon/images/main.png"]
    assert {one.path: one.content for one in upload.files} == files
    by_png = read(write_png(upload))
    assert (content(by_png), set(by_png.files)) == (V3, set(upload.files))


@pytest.mark.parametrize("card", [V1, V2], ids=("v1", "v2"))
def test_older_card_is_upgraded_for_charx_with_all_fields(card: dict[str, Any]) -> None:
    upgraded = content(read(write_charx(read(card_png(card, "chara")))))
    data = card.get("data", card)
    assert (upgraded["spec"], upgraded["spec_version"]) == ("chara_card_v3", "3.0")
    assert {name: upgraded["data"][name] for name in data} == data
    assert upgraded["data"]["group_only_greetings"] == []


def test_png_keeps_its_picture_and_loses_hidden_data() -> None:
    made = png(("chara", json.dumps(V2).encode()), ("secret", b"x" * 99), width=7)
    upload = read(made)
    assert upload.picture is not None
    assert b"tEXt" not in upload.picture
    again = read(write_charx(upload))
    assert again.picture == upload.picture


def test_v3_card_in_a_png_is_readable_by_v2_readers() -> None:
    written = write_png(read(V3))
    both = [json.loads(one) for one in _texts(written).values()]
    assert [one["spec"] for one in both] == ["chara_card_v2", "chara_card_v3"]
    assert both[0]["data"]["creator_notes"].startswith("This character is a Character Card V3")
    older = read(png(("chara", json.dumps(V2).encode()), ("ccv3", json.dumps(V3).encode())))
    assert content(older) == V3


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(st.characters(exclude_categories=("Cs",)), max_size=8), JSON))
def test_fields_that_nobody_knows_are_given_back(unknown: dict[str, Any]) -> None:
    card = copy.deepcopy(V3)
    card["data"]["extensions"] = unknown
    card["data"] = {**unknown, **card["data"]}
    upload = read(card)
    assert content(upload) == card
    assert content(read(write_png(upload))) == card
    assert content(read(write_charx(upload))) == card


def test_every_field_of_the_specifications_is_read() -> None:
    texts = read(V3).card.texts
    data = V3["data"]
    assert (texts.name, texts.nickname) == (data["name"], data["nickname"])
    for field in (
        "description",
        "personality",
        "scenario",
        "system_prompt",
        "post_history_instructions",
        "creator",
        "creator_notes",
        "character_version",
    ):
        assert getattr(texts, field) == data[field]
    assert texts.example_messages == data["mes_example"]
    assert texts.greetings == (data["first_mes"], *data["alternate_greetings"])
    assert (list(texts.tags), texts.lorebook_entries) == (data["tags"], 1)


def test_our_form_is_a_card_too() -> None:
    upload = read({"name": "Ada", "description": "An owl.", "greetings": ["Hoo, {{user}}!", "Ah."]})
    assert upload.card.spec is CardSpec.FORM
    assert content(upload)["data"]["alternate_greetings"] == ["Ah."]
    assert read(write_png(upload)).card.texts == upload.card.texts


def test_a_bot_is_cast_with_names_greeting_and_instructions() -> None:
    bot = cast(read(V3).card.texts, user_name="Kim", seed="conv_1", greeting=1)
    assert bot.name == "Marlowe"
    assert bot.memory == (
        "Stay in your part.\nMarlowe steers the sky-ship Thistle. She calls Kim sailor.\n"
        "Marlowe's personality: brave, dry-witted"
    )
    assert bot.prompt == (
        "Scenario: Kim comes aboard in the fog.\n"
        "<START>\nKim: Are we lost?\nMarlowe: The islands have moved."
    )
    assert bot.first_message == "Mind the rope, Kim."
    assert bot.post_history == "Answer Kim in two sentences."
    assert "evening" not in bot.model_dump_json(), "creator notes are for people"
    assert cast(read(V3).card.texts, user_name="Kim", seed="", greeting=-1).first_message == ""
    with pytest.raises(InvalidInput, match="3 greetings, so there is none with the number 3"):
        cast(read(V3).card.texts, user_name="Kim", seed="", greeting=3)


def test_a_persona_that_no_conversation_could_hold_is_refused() -> None:
    texts = read({"name": "A", "description": "{{user}}" * 2_000}).card.texts
    with pytest.raises(InvalidInput, match="persona has 128,000 characters"):
        require_castable(texts)


DEEP = b'{"spec": "chara_card_v3", "data": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
NESTED = {"name": "A", "description": "{{reverse:" * 9 + "x" + "}}" * 9}
REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not JSON"),
    "latin": ('{"name": "é"}'.encode("latin-1"), "not JSON in UTF-8"),
    "a list": (b"[]", "not an object"),
    "deep": (DEEP, "deeper than 200 levels"),
    "a huge number": (b'{"name": "A", "first_mes": "", "n": ' + b"9" * 9_999 + b"}", "not JSON"),
    "NaN": (b'{"name": "A", "first_mes": "", "n": NaN}', "not JSON"),
    "half a character": (b'{"name": "\\ud800", "first_mes": ""}', "not JSON"),
    "much JSON": (b'{"first_mes": "' + b"x" * MAX_CARD_BYTES + b'"}', "1,048,576 are allowed"),
    "an unknown spec": (b'{"spec": "chara_card_v9", "data": {}}', "spec is 'chara_card_v9'"),
    "no data": (b'{"spec": "chara_card_v2"}', "no object `data`"),
    "no name": (b'{"spec": "chara_card_v2", "data": {"name": " "}}', "data.name is empty"),
    "a number for a text": (
        b'{"spec": "chara_card_v2", "data": {"name": "A", "scenario": 3}}',
        "data.scenario is not a text",
    ),
    "a text for a list": (
        b'{"spec": "chara_card_v2", "data": {"name": "A", "tags": "a"}}',
        "data.tags is not a list of texts",
    ),
    "a long text": (
        json.dumps({"name": "A", "first_mes": "x" * 16_385}).encode(),
        "first_mes has 16,385 characters; 16,384 are allowed",
    ),
    "a long name": (json.dumps({"name": "A" * 65, "first_mes": ""}).encode(), "64 are allowed"),
    "a typo in our form": (b'{"name": "A", "descripton": ""}', "not in our form"),
    "nested macros": (json.dumps(NESTED).encode(), "nested 9 deep; 8 are allowed"),
    "a JPEG": (b"\xff\xd8\xff\xe0 a picture", "holds no card"),
    "a PNG without a card": (png(), "neither a ccv3 nor a chara"),
    "a PNG cut off": (card_png(V3)[:-20], "longer than the file|cut off"),
    "a chunk of unknown size": (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 2**32 - 1) + b"IHDR" + b"x" * 40,
        "longer than the file",
    ),
    "a PNG of chunks": (
        png()[:33] + chunk(b"tEXt", b"a\x00b") * 20_001 + png()[33:],
        "more than 20,000 chunks",
    ),
    "a PNG bomb": (card_png(V3, width=8_193), "8,192 are allowed for a side"),
    "a wide PNG bomb": (
        png(("chara", json.dumps(V2).encode()), width=8_192, height=8_192, pixels=b""),
        "67,108,864 are allowed",
    ),
    "more pixels than it says": (
        png(("chara", json.dumps(V2).encode()), pixels=b"\x00" * 50_000_000),
        "more or fewer",
    ),
    "fewer pixels than it says": (
        png(("chara", json.dumps(V2).encode()), pixels=b"\x00"),
        "more or fewer",
    ),
    "a card that is no base64": (
        png()[:33] + chunk(b"tEXt", b"chara\x00abcde") + png()[33:],
        "not in base64|not JSON",
    ),
    "a zip cut off": (charx(V3, {})[:-30], "cut off"),
    "a zip without a card": (charx(V3, {}).replace(b"card.json", b"cord.json"), "no card.json"),
    "a zip bomb": (charx(V3, {"a.bin": b"\x00" * (2 * MIB)}), "unpacks to more than 1,048,576"),
    "a zip of many files": (charx(V3, {f"f{n}": b"" for n in range(300)}), "more than 256 files"),
    "a path out of the zip": (charx(V3, {"../../etc/passwd": b""}), "not allowed"),
    "an absolute path": (charx(V3, {"/etc/passwd": b""}), "not allowed"),
    "another packing": (charx(V3, {"a": b"x" * 99}, zipfile.ZIP_LZMA), "other than deflate"),
    "an encrypted zip": (
        charx(V3, {}).replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"),
        "encrypted",
    ),
    "a damaged zip": (
        charx(V3, {"a": b"y" * 300})[:120] + b"\xff" * 60 + charx(V3, {"a": b"y" * 300})[180:],
        "no zip that can be unpacked",
    ),
    "a bomb as picture": (
        charx(V3, {"assets/icon/images/main.png": png(width=8_192, height=8_192, pixels=b"")}),
        "67,108,864 are allowed",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_hostile_or_broken_is_refused_in_a_sentence(case: str) -> None:
    data, sentence = REFUSED[case]
    with pytest.raises(InvalidCard, match=sentence) as refused:
        read(data)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith(".")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from((card_png(V3), charx(V3, {"a.png": png()}))))
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(4, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        upload = read(bytes(damaged))
        write_charx(upload)
        write_png(upload)
    except InvalidCard:
        pass


def _texts(data: bytes) -> dict[str, bytes]:
    import base64

    from guanaco_server.characters.pictures import chunks_of

    found = {}
    for kind, value in chunks_of(data):
        if kind == b"tEXt":
            word, _, said = value.partition(b"\x00")
            found[word.decode()] = base64.b64decode(said)
    return found


def test_a_picture_of_any_kind_of_pixels_is_measured_rightly() -> None:
    from guanaco_server.characters.pictures import chunks_of, shown_chunks

    for depth, colour, channels in ((1, 0, 1), (8, 0, 1), (16, 6, 4), (4, 3, 1), (8, 4, 2)):
        for width, height in ((1, 1), (9, 5), (17, 16)):
            row = 1 + -(-width * depth * channels // 8)
            header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
            made = b"".join(
                (
                    b"\x89PNG\r\n\x1a\n",
                    chunk(b"IHDR", header),
                    chunk(b"IDAT", zlib.compress(b"\x00" * row * height)),
                    chunk(b"IEND", b""),
                )
            )
            assert shown_chunks(chunks_of(made))


def test_the_same_card_makes_the_same_charx() -> None:
    upload = read(charx(V3, {"a.txt": b"a"}))
    assert write_charx(upload) == write_charx(upload)
    assert zipfile.ZipFile(io.BytesIO(write_charx(upload))).namelist() == ["card.json", "a.txt"]
