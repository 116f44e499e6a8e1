"""Running one job to its end.

    make way → create the Job, apply what it owns → for each pod it gets, give on its log
                                                 → its last pod's exit status → delete it

An earlier Job of this worker is deleted; another worker's is left to end first, for it does the same work.
A pod that its machine loses is made anew by the cluster, and its log followed in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from contextlib import aclosing
from datetime import UTC, datetime

from guanaco.errors import ClusterRefused, ClusterUnreachable
from guanaco_server.clusters.cluster import JobResult, JobSpec, LineSink
from guanaco_server.clusters.kubernetes.api import (
    EVENT,
    JOB,
    POD,
    KubernetesApi,
    UnexpectedStatus,
)
from guanaco_server.clusters.kubernetes.informers import Informers
from guanaco_server.clusters.kubernetes.logs import LogReader
from guanaco_server.clusters.kubernetes.manifests import job_object, owned_by_job
from guanaco_server.clusters.kubernetes.names import (
    WORKER,
    Json,
    label_value,
    object_name,
)
from guanaco_server.clusters.kubernetes.options import KubernetesOptions
from guanaco_server.clusters.kubernetes.status import (
    Problem,
    creation_problem,
    ending_of,
    has_started,
    is_leaving,
    obstacle_of,
)

KEPT_LINES = 20
LOOK_S = 1.0
AGAIN_S = 0.5
READING_S = 15.0  # what has ended is left to its worker that long, which still reads its last lines
LATE_S = 30.0  # the cluster ends a job that takes too long; this is for a cluster that does not
WAITS = "Another worker does this very work already: waiting for it to end."
DELETED = "The job was deleted from the cluster before it had ended."


class JobRun:
    def __init__(
        self,
        api: KubernetesApi,
        informers: Informers,
        options: KubernetesOptions,
        spec: JobSpec,
        on_line: LineSink,
    ) -> None:
        self._api = api
        self._informers = informers
        self._options = options
        self._spec = spec
        self._on_line = on_line
        self._name = object_name(spec.name)
        self._uid = ""
        self._last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._read: set[str] = set()

    async def run(self) -> JobResult:
        timeout_s = self._spec.timeout_s
        try:
            await self._create()
            async with asyncio.timeout(None if timeout_s is None else timeout_s + LATE_S):
                result = await self._follow()
        except BaseException:
            await self._clean_up(is_waited_for=True)
            raise
        await self._clean_up(is_waited_for=False)
        return result

    async def _create(self) -> None:
        manifest, job = job_object(self._spec, self._options), None
        while job is None:
            await self._make_way()
            try:
                job = await self._api.create(manifest)
            except UnexpectedStatus as answered:
                if answered.status != 409:
                    raise ClusterRefused(f"The cluster does not take it: {answered}.") from None
                if found := await self._api.get(JOB, self._name):
                    self._informers.note(JOB, found)
        self._uid = job["metadata"]["uid"]
        self._informers.note(JOB, job)
        for owned in owned_by_job(self._spec, self._options, job):
            await self._api.apply(owned)

    async def _make_way(self) -> None:
        ours, is_told = label_value(self._options.worker), False
        ended_at: float | None = None
        while (job := self._informers.all(JOB).get(self._name)) is not None:
            now = time.monotonic()
            if _end_of(job) or is_leaving(job):
                ended_at = ended_at or now
            is_ours = job["metadata"].get("labels", {}).get(WORKER) == ours
            if is_ours or (ended_at is not None and now - ended_at > READING_S):
                await self._api.delete(JOB, self._name, job["metadata"]["uid"])
                await self._informers.until_gone(JOB, self._name)
                return
            if not is_told:
                is_told = True
                await self._on_line(WAITS)
            await self._informers.changed.wait(LOOK_S)

    async def _follow(self) -> JobResult:
        while True:
            job = self._informers.all(JOB).get(self._name)
            if job is None or job["metadata"]["uid"] != self._uid:
                return self._result(137, DELETED)
            if pod := self._unread_pod():
                await self._give_on(pod)
            elif ended := _end_of(job):
                return self._ended(ended)
            elif (problem := self._obstacle(job)) and problem.is_final:
                raise ClusterRefused(problem.sentence)
            else:
                await self._informers.changed.wait(LOOK_S)

    def _ended(self, condition: Json) -> JobResult:
        if condition.get("reason") == "DeadlineExceeded":
            raise TimeoutError
        if condition["type"] == "Complete":
            return self._result(0, None)
        for pod in reversed(self._pods()):
            if (ending := ending_of(pod)) and ending.exit_code != 0:
                return self._result(ending.exit_code, ending.problem)
        return self._result(137, f"The cluster ended the job: {condition.get('message')}")

    def _result(self, exit_code: int, problem: str | None) -> JobResult:
        return JobResult(exit_code, tuple(self._last_lines), problem)

    async def _give_on(self, pod: Json) -> None:
        """Pass on the pod's whole log, across broken connections."""
        reader, name = LogReader(self._api, pod), pod["metadata"]["name"]
        while True:
            with contextlib.suppress(ClusterUnreachable, UnexpectedStatus):
                async with aclosing(reader.follow()) as lines:
                    async for line in lines:
                        await self._give(line)
            present = self._informers.all(POD).get(name)
            if present is None or ending_of(present):
                break
            await self._informers.changed.wait(AGAIN_S)
        for line in await reader.rest():
            await self._give(line)
        self._read.add(pod["metadata"]["uid"])

    async def _give(self, line: str) -> None:
        self._last_lines.append(line)
        await self._on_line(line)

    def _unread_pod(self) -> Json | None:
        unread = (pod for pod in self._pods() if pod["metadata"]["uid"] not in self._read)
        return next((pod for pod in unread if has_started(pod)), None)

    def _obstacle(self, job: Json) -> Problem | None:
        pods, now, pending_s = self._pods(), datetime.now(UTC), self._options.pending_s
        if not pods:
            return creation_problem(job, self._informers.all(EVENT).values(), now, pending_s)
        return obstacle_of(pods[-1], now, pending_s)

    def _pods(self) -> list[Json]:
        """Return the pods of this run's Job, the oldest first."""
        ours = [
            pod
            for pod in self._informers.pods(self._spec.name)
            if any(
                owner["uid"] == self._uid for owner in pod["metadata"].get("ownerReferences", [])
            )
        ]
        return sorted(ours, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    async def _clean_up(self, *, is_waited_for: bool) -> None:
        """Delete the Job, even if the caller is cancelled again. What remains has a time to live."""
        with contextlib.suppress(ClusterUnreachable, ClusterRefused):
            await asyncio.shield(asyncio.create_task(self._delete(is_waited_for=is_waited_for)))

    async def _delete(self, *, is_waited_for: bool) -> None:
        """Delete this run's Job, and no later one of the same name."""
        if not self._uid:
            return
        await self._api.delete(JOB, self._name, self._uid)
        job = self._informers.all(JOB).get(self._name)
        if is_waited_for and job and job["metadata"]["uid"] == self._uid:
            await self._informers.until_gone(JOB, self._name)


def _end_of(job: Json) -> Json | None:
    for condition in job.get("status", {}).get("conditions", []):
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            found: Json = condition
            return found
    return None
