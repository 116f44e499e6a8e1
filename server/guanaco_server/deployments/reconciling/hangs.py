"""Tells which servers hang: they run, but do not answer for so long that they should be stopped.

    ready before     ``HANGS_AFTER`` silent health checks in a row
    still starting   ``ready_timeout``

A replica beside others that answer is judged alone. Where none answers, the deployment is judged as a whole. A server that nobody uses is judged like one
that was ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from guanaco_server.deployments.engines.health import HANGS_AFTER, DeploymentHealth, ServerState
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.runtime.clock import Clock


@dataclass
class _Unanswered:
    since: datetime
    was_ready: bool
    looks: int = 0


class HangDetector:
    def __init__(self, clock: Clock, ready_timeout_s: float) -> None:
        self._clock = clock
        self._ready_timeout = timedelta(seconds=ready_timeout_s)
        self._failed_looks: dict[str, int] = {}
        self._failed_idle_looks: dict[str, int] = {}  # by engine
        self._excused_until: dict[str, datetime] = {}
        self._silences: dict[str, dict[str, _Unanswered]] = {}

    def hanging(self, row: DeploymentRow, seen: DeploymentHealth) -> list[str]:
        """Return the endpoints of the replicas to stop, after a check at which others answered."""
        self._failed_looks.pop(row.submission_id, None)
        before, now = self._silences.get(row.submission_id, {}), self._clock.now()
        silences = {
            endpoint: before.get(endpoint) or _Unanswered(now, endpoint in row.endpoints)
            for endpoint in seen.silent
        }
        for silence in silences.values():
            silence.looks += 1
        hanging = [endpoint for endpoint, silence in silences.items() if self._is_over(silence)]
        for endpoint in hanging:  # from now on it is one that starts
            silences[endpoint] = _Unanswered(now, was_ready=False)
        self._silences[row.submission_id] = silences
        return hanging

    def restart_ready_timeout(self, row: DeploymentRow) -> None:
        """Note that the cluster has not let it begin until now: the time to get ready begins afterwards."""
        self._excused_until[row.submission_id] = self._clock.now()
        self._failed_looks.pop(row.submission_id, None)

    def hangs(self, row: DeploymentRow) -> bool:
        """Return whether to stop the whole deployment, after a check at which no server answered."""
        if row.phase is Phase.RESTARTING:
            since = max(row.updated_at, self._excused_until.get(row.submission_id, row.updated_at))
            return self._clock.now() - since > self._ready_timeout
        failed = self._failed_looks.get(row.submission_id, 0) + 1
        self._failed_looks[row.submission_id] = 0 if failed >= HANGS_AFTER else failed
        return failed >= HANGS_AFTER

    def idle_hangs(self, engine: str, seen: DeploymentHealth) -> bool:
        """Return whether to stop a server that nobody uses, after a check of it."""
        is_silent = seen.state is ServerState.STARTING
        failed = self._failed_idle_looks.get(engine, 0) + 1 if is_silent else 0
        self._failed_idle_looks[engine] = failed
        return failed >= HANGS_AFTER

    def forget_idle_but(self, engines: set[str]) -> None:
        """Forget the servers of engines that are gone."""
        for engine in self._failed_idle_looks.keys() - engines:
            del self._failed_idle_looks[engine]

    def forget_all_but(self, submission_ids: set[str]) -> None:
        for memory in (self._failed_looks, self._silences, self._excused_until):
            for submission_id in memory.keys() - submission_ids:
                del memory[submission_id]

    def _is_over(self, silence: _Unanswered) -> bool:
        if silence.was_ready:
            return silence.looks >= HANGS_AFTER
        return self._clock.now() - silence.since > self._ready_timeout
