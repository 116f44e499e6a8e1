"""How our own API writes a reply: one object, or the events token, done and error."""

from __future__ import annotations

import msgspec

from guanaco.chat import Reply
from guanaco.errors import GuanacoError
from guanaco_server.chat.sample import Pieces
from guanaco_server.chat.streaming import Encoder
from guanaco_server.http.errors import answer
from guanaco_server.http.sse import encode_event

_json = msgspec.json.Encoder().encode


def _pieces(pieces: Pieces) -> bytes:
    return b"".join([b'event: token\ndata: {"text":' + _json(text) + b"}\n\n" for text in pieces])


def _end(reply: Reply) -> bytes:
    return encode_event("done", reply)


def _error(error: GuanacoError) -> bytes:
    return encode_event("error", error.to_wire())


def _whole(reply: Reply) -> bytes:
    return reply.model_dump_json().encode()


ENCODER = Encoder(pieces=_pieces, end=_end, error=_error, whole=_whole, problem=answer)
