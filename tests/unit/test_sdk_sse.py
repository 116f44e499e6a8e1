from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from guanaco.sse import ServerEvent, SseDecoder

STREAM = (
    ": a comment\n\n"
    "id: 1\nevent: log\ndata: first\n\n"
    "data: two\r\ndata: lines\r\n\r\n"
    "id: 2\revent:status\rdata: wörds\r\r"
    "event: nothing\n\n"
    "retry: 5\nunknown: x\ndata\n\n"
    "data: never ended"
).encode()
EVENTS = [
    ServerEvent("log", "first", "1"),
    ServerEvent("message", "two\nlines", "1"),
    ServerEvent("status", "wörds", "2"),
    ServerEvent("message", "", "2"),
]


@given(st.lists(st.integers(min_value=0, max_value=len(STREAM)), max_size=12))
def test_events_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    decoder = SseDecoder()
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    assert [event for piece in pieces for event in decoder.feed(piece)] == EVENTS


def test_new_connection_forgets_half_an_event_but_keeps_the_id() -> None:
    decoder = SseDecoder()
    decoder.feed(b"id: 7\ndata: whole\n\ndata: ha")
    decoder.reset()
    assert decoder.last_id == "7"
    assert decoder.feed(b"data: next\n\n") == [ServerEvent("message", "next", "7")]
