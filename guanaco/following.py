"""One stream across as many connections as it takes: what both clients decide the same way."""

from __future__ import annotations

from dataclasses import replace
from typing import Generic, TypeVar

from guanaco.errors import GuanacoError, ServerUnreachable, Unavailable
from guanaco.sse import SseDecoder
from guanaco.translation import parsed
from guanaco.wire import StreamCall

T = TypeVar("T")

FIRST_TRIES = 3
RESUME_DELAYS_S = (0.25, 0.5, 1, 2, 4, 5, 5, 5)  # 23 s: longer than a platform takes to restart


class Following(Generic[T]):
    def __init__(self, call: StreamCall[T], url: str) -> None:
        self._call = call
        self._url = url
        self._decoder = SseDecoder()
        self._has_begun = False
        self._failures = 0
        self._last_event = ""

    def request(self) -> StreamCall[T]:
        """The request for all that has not come yet."""
        self._decoder.reset()
        if self._decoder.last_id is None:
            return self._call
        headers = {**self._call.headers, "Last-Event-ID": self._decoder.last_id}
        return replace(self._call, headers=headers)

    def take(self, chunk: bytes) -> list[T]:
        """The items that this chunk completes."""
        self._has_begun = True
        items = []
        for event in self._decoder.feed(chunk):
            self._failures = 0
            self._last_event = event.event
            items.append(parsed(self._call.parse, event, self._url))
        return items

    def check_end(self) -> None:
        """The stream has ended in good order: was it complete?"""
        wanted = self._call.must_end_with
        if wanted is not None and self._last_event != wanted:
            raise self._cut_off()

    def pause_s(self, error: GuanacoError) -> float:
        """How long to wait before connecting again; raises the error when that makes no sense."""
        if not isinstance(error, ServerUnreachable):
            raise error
        if not self._call.is_resumable:
            raise self._cut_off() if self._has_begun else error
        tries = len(RESUME_DELAYS_S) if self._has_begun else FIRST_TRIES - 1
        if self._failures >= tries:
            raise error
        self._failures += 1
        return RESUME_DELAYS_S[self._failures - 1]

    def _cut_off(self) -> Unavailable:
        return Unavailable(
            f"The connection to {self._url} broke before the reply was complete.",
            hint="Read the conversation again, or regenerate the reply.",
        )
