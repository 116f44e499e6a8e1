"""Who wants to know that a submission's status changed, in this process. Called after the commit."""

from __future__ import annotations

from collections.abc import Callable

from guanaco.submissions import Status

Listener = Callable[[str, Status], None]


class StatusChanges:
    """Listeners must be quick: they set an event, and somebody else does the work."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def announce(self, submission_id: str, status: Status) -> None:
        for listener in self._listeners:
            listener(submission_id, status)
