"""Logs that a model server fails: once when it begins, then how often, then that it is over.

    the model server of acme-llama_v1 at http://127.0.0.1:9001 failed: connection refused
    the model server of acme-llama_v1 at http://127.0.0.1:9001 failed 1,402 times more in 10 s: connection refused
    the model server of acme-llama_v1 at http://127.0.0.1:9001 has not failed for 10 s; 1,403 replies failed before

While a busy server starts again, each reply that is asked of it fails within milliseconds: 140 lines a second.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

COUNT_EVERY_S = 10.0

logger = logging.getLogger(__name__)


@dataclass
class FailingServer:
    submission_id: str
    endpoint: str
    why: str
    count: int = 1
    count_logged: int = 1


class FailureLog:
    def __init__(self, count_every_s: float = COUNT_EVERY_S) -> None:
        self._count_every_s = count_every_s
        self._failing: dict[str, FailingServer] = {}

    def note(self, submission_id: str, endpoint: str, why: str) -> None:
        """Note one failure. Call it on the event loop."""
        if known := self._failing.get(endpoint):
            known.count += 1
            known.why = why
            return
        self._failing[endpoint] = failing = FailingServer(submission_id, endpoint, why)
        self._tell(logging.WARNING, failing, f"failed: {why}")
        self._look_later(endpoint)

    def look(self, endpoint: str) -> None:
        """Tell how often the server failed since the last line, or that it no longer does."""
        failing = self._failing[endpoint]
        more, failing.count_logged = failing.count - failing.count_logged, failing.count
        if more:
            times = "once more" if more == 1 else f"{more:,} times more"
            self._tell(
                logging.WARNING,
                failing,
                f"failed {times} in {self._count_every_s:g} s: {failing.why}",
            )
            self._look_later(endpoint)
            return
        del self._failing[endpoint]
        replies = "1 reply" if failing.count == 1 else f"{failing.count:,} replies"
        self._tell(
            logging.INFO,
            failing,
            f"has not failed for {self._count_every_s:g} s; {replies} failed before",
        )

    def _look_later(self, endpoint: str) -> None:
        asyncio.get_running_loop().call_later(self._count_every_s, self.look, endpoint)

    def _tell(self, level: int, failing: FailingServer, what: str) -> None:
        logger.log(
            level,
            "the model server of %s at %s %s",
            failing.submission_id,
            failing.endpoint,
            what,
            extra={"submission_id": failing.submission_id},
        )
