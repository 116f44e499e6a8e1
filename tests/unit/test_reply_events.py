"""Replies as server-sent events."""

from __future__ import annotations

import json

import pytest

from guanaco_server.chat.gateway.routes import ENCODER


@pytest.mark.parametrize(
    "texts",
    [("Hello",), ("a", " b", "c"), ("one\n\ntwo\r", 'data: "x"\\'), ("é\u2028", "\x00", "🦙}\n\n")],
)
def test_each_text_is_one_event_whatever_is_in_it(texts: tuple[str, ...]) -> None:
    sent = ENCODER.pieces(texts)
    assert sent.endswith(b"\n\n")
    events = sent[:-2].split(b"\n\n")
    assert [event.split(b"\n")[0] for event in events] == [b"event: token"] * len(texts)
    data = [event.split(b"\n")[1].removeprefix(b"data: ") for event in events]
    assert [json.loads(one) for one in data] == [{"text": text} for text in texts]
