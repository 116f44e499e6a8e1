"""What a job has written already, so that one that was killed goes on where it was.

Nothing is in the journal that is not safe in the store. Written at most every INTERVAL_S; what was
written since is written again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pydantic import BaseModel, ValidationError

INTERVAL_S = 1.0


class PieceFacts(BaseModel):
    sha256: str
    crc32: int


class JournalState(BaseModel):
    """``pieces`` are by "tensor:piece"; ``parts`` are the uploaded parts' ETags by number, from 1."""

    plan: str
    upload: str
    pieces: dict[str, PieceFacts] = {}
    parts: dict[int, str] = {}


class Journal:
    """Thread-safe. ``save`` makes bytes durable in the store; it is called at most every ``interval_s``."""

    def __init__(
        self,
        plan: str,
        upload: str,
        earlier: bytes | None,
        save: Callable[[bytes], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._save = save
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._saved_at = time.monotonic()
        self._state = _state(earlier, plan, upload)

    @property
    def pieces(self) -> dict[str, PieceFacts]:
        return self._state.pieces

    @property
    def parts(self) -> dict[int, str]:
        return self._state.parts

    def note_piece(self, key: str, facts: PieceFacts) -> None:
        with self._lock:
            self._state.pieces[key] = facts

    def note_part(self, number: int, etag: str) -> None:
        with self._lock:
            self._state.parts[number] = etag

    def save_sometimes(self, make_durable: Callable[[], None] = lambda: None) -> None:
        """What was noted before this call, after ``make_durable`` has made it true; at most every INTERVAL_S."""
        with self._lock:
            now = time.monotonic()
            if now - self._saved_at < self._interval_s:
                return
            self._saved_at = now
            noted = self._state.model_dump_json().encode()
        make_durable()
        self._save(noted)


def _state(earlier: bytes | None, plan: str, upload: str) -> JournalState:
    fresh = JournalState(plan=plan, upload=upload)
    if earlier is None:
        return fresh
    try:
        state = JournalState.model_validate_json(earlier)
    except ValidationError:
        return fresh
    return state if (state.plan, state.upload) == (plan, upload) else fresh
