"""What somebody said in a conversation, as slim as it can be: histories of thousands of conversations are in memory."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from guanaco.chat import Sender


class Utterance(NamedTuple):
    sender: Sender
    content: str


class Spoken(Protocol):
    """An utterance, or a turn as clients send it."""

    @property
    def sender(self) -> Sender: ...

    @property
    def content(self) -> str: ...
