"""The events of a streamed reply: ``token`` again and again, then ``done`` or ``error``."""

from __future__ import annotations

import json

from guanaco.chat import Reply, Token
from guanaco.contract import reader
from guanaco.errors import GuanacoError
from guanaco.sse import ServerEvent

LAST_EVENT = "done"


def parse_reply_event(event: ServerEvent) -> Token | Reply:
    """A Token or the whole Reply; raises the error that an ``error`` event stands for."""
    if event.event == "error":
        raise GuanacoError.from_wire(json.loads(event.data))
    if event.event == LAST_EVENT:
        return reader(Reply).from_json(event.data)
    return reader(Token).from_json(event.data)
