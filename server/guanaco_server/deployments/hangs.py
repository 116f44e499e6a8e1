"""Which servers run, but do not answer for so long that they are stopped.

    ready before     ``HANGS_AFTER`` silent looks in a row
    still starting   ``ready_timeout``

A replica beside others that answer is judged alone; where none answers, the deployment is judged as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from guanaco_server.deployments.looks import Sighting
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime.clock import Clock

HANGS_AFTER = 5  # failed health checks in a row, each with a timeout of its own


@dataclass
class _Silence:
    since: datetime
    was_ready: bool
    looks: int = 0


class HangWatch:
    def __init__(self, clock: Clock, ready_timeout_s: float) -> None:
        self._clock = clock
        self._ready_timeout = timedelta(seconds=ready_timeout_s)
        self._failed_looks: dict[str, int] = {}
        self._silences: dict[str, dict[str, _Silence]] = {}

    def hanging(self, row: DeploymentRow, seen: Sighting) -> list[str]:
        """At a look at which others answered: the endpoints of the replicas to stop."""
        self._failed_looks.pop(row.submission_id, None)
        before, now = self._silences.get(row.submission_id, {}), self._clock.now()
        silences = {
            endpoint: before.get(endpoint) or _Silence(now, endpoint in row.endpoints)
            for endpoint in seen.silent
        }
        for silence in silences.values():
            silence.looks += 1
        hanging = [endpoint for endpoint, silence in silences.items() if self._is_over(silence)]
        for endpoint in hanging:  # from now on it is one that starts
            silences[endpoint] = _Silence(now, was_ready=False)
        self._silences[row.submission_id] = silences
        return hanging

    def hangs(self, row: DeploymentRow) -> bool:
        """At a look at which none answered: whether to stop them all."""
        if row.phase is Phase.RESTARTING:
            return self._clock.now() - row.updated_at > self._ready_timeout
        failed = self._failed_looks.get(row.submission_id, 0) + 1
        self._failed_looks[row.submission_id] = 0 if failed >= HANGS_AFTER else failed
        return failed >= HANGS_AFTER

    def forget_all_but(self, submission_ids: set[str]) -> None:
        for memory in (self._failed_looks, self._silences):
            for submission_id in memory.keys() - submission_ids:
                del memory[submission_id]

    def _is_over(self, silence: _Silence) -> bool:
        if silence.was_ready:
            return silence.looks >= HANGS_AFTER
        return self._clock.now() - silence.since > self._ready_timeout
