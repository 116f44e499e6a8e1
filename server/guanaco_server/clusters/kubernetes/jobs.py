"""Running one job to its end.

    make way → create the Job suspended, apply what it owns, let it begin
             → for each pod it gets, give on its log → that pod's exit status → delete the Job

An earlier Job of this worker is deleted; another worker's is left to end first, for it does the same work.
A pod whose machine is lost or drained is replaced by the cluster, and its log followed in turn. A pod that fails by
itself ends the run: the Job, which would try again, is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from contextlib import aclosing
from datetime import UTC, datetime

from guanaco.errors import ClusterRefused, ClusterUnreachable
from guanaco_server.clusters.cluster import JobResult, JobSpec, LineSink, Trouble
from guanaco_server.clusters.kubernetes.api.client import (
    EVENT,
    JOB,
    KubernetesApi,
    UnexpectedStatus,
)
from guanaco_server.clusters.kubernetes.api.informers import Informers
from guanaco_server.clusters.kubernetes.api.logs import LogReader
from guanaco_server.clusters.kubernetes.manifests.objects import job_object, owned_by_job
from guanaco_server.clusters.kubernetes.names import (
    WORKER,
    Json,
    label_value,
    object_name,
)
from guanaco_server.clusters.kubernetes.options import KubernetesOptions
from guanaco_server.clusters.kubernetes.status import (
    PodTermination,
    Problem,
    creation_problem,
    has_started,
    is_leaving,
    is_lost,
    obstacle_of,
    termination_of,
)

KEPT_LINES = 20
LOOK_S = 1.0
AGAIN_S = 0.5
READING_S = 15.0  # what has ended is left to its worker that long, which still reads its last lines
LATE_S = 30.0  # the cluster ends a job that takes too long; this is for a cluster that does not
ENDS = (
    "Complete",
    "Failed",
    "FailureTarget",
)  # the last one: it will have failed when its pods have ended
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
        manifest, job = job_object(self._spec, self._options, is_suspended=True), None
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
        await self._api.apply(job_object(self._spec, self._options))

    async def _make_way(self) -> None:
        ours, is_logged = label_value(self._options.worker), False
        ended_at: float | None = None
        while (job := self._informers.all(JOB).get(self._name)) is not None:
            now = time.monotonic()
            if _end_of(job) or is_leaving(job):
                ended_at = ended_at or now
            is_ours = job["metadata"].get("labels", {}).get(WORKER) == ours
            if is_ours or (ended_at is not None and now - ended_at > READING_S):
                await self._delete(job["metadata"]["uid"])
                return
            if not is_logged:
                is_logged = True
                await self._on_line(WAITS)
            await self._informers.changed.wait(LOOK_S)

    async def _follow(self) -> JobResult:
        while True:
            job = self._informers.all(JOB).get(self._name)
            if job is None or job["metadata"]["uid"] != self._uid:
                return self._result(137, DELETED)
            if pod := self._unread_pod():
                if crash := await self._forward_log(pod):
                    return self._result(crash.exit_code, crash.problem)
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
            if (ending := termination_of(pod)) and ending.exit_code != 0:
                return self._result(ending.exit_code, ending.problem)
        return self._result(137, f"The cluster ended the job: {condition.get('message')}")

    def _result(self, exit_code: int, problem: str | None) -> JobResult:
        return JobResult(exit_code, tuple(self._last_lines), problem)

    async def _forward_log(self, pod: Json) -> PodTermination | None:
        """Pass on the pod's whole log, across broken connections. Return how it failed, if that was its own doing."""
        reader = LogReader(self._api, pod)
        reading = asyncio.create_task(self._give_log(reader, pod))
        lost = asyncio.create_task(self._until_lost(pod))
        try:
            await asyncio.wait({reading, lost}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await reading
        finally:
            for task in (reading, lost):
                task.cancel()
            await asyncio.gather(reading, lost, return_exceptions=True)
        self._read.add(pod["metadata"]["uid"])
        ending = termination_of(self._present(pod) or pod)
        is_crash = ending and ending.exit_code != 0 and ending.trouble is Trouble.CRASHED
        return ending if is_crash else None

    async def _give_log(self, reader: LogReader, pod: Json) -> None:
        while True:
            with contextlib.suppress(ClusterUnreachable, UnexpectedStatus):
                async with aclosing(reader.follow()) as lines:
                    async for line in lines:
                        await self._give(line)
            present = self._present(pod)
            if present is None or termination_of(present):
                break
            await self._informers.changed.wait(AGAIN_S)
        for line in await reader.rest():
            await self._give(line)

    async def _until_lost(self, pod: Json) -> None:
        """Wait until nobody can read this pod's log any more: its connections would hang."""
        while (present := self._present(pod)) is None or not is_lost(present, datetime.now(UTC)):
            await self._informers.changed.wait(LOOK_S)

    def _present(self, pod: Json) -> Json | None:
        return self._informers.present(pod)

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
        return obstacle_of(pods[-1], now, pending_s, self._informers.pulls)

    def _pods(self) -> list[Json]:
        """Return the pods of this run's Job, the oldest first."""
        return self._pods_of(self._uid)

    def _pods_of(self, uid: str) -> list[Json]:
        ours = [
            pod
            for pod in self._informers.pods(self._spec.name)
            if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", []))
        ]
        return sorted(ours, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    async def _clean_up(self, *, is_waited_for: bool) -> None:
        """Delete the Job, even if the caller is cancelled again. What remains has a time to live."""
        if not self._uid:
            return
        with contextlib.suppress(ClusterUnreachable, ClusterRefused):
            deleting = self._delete(self._uid) if is_waited_for else self._begin_delete(self._uid)
            await asyncio.shield(asyncio.create_task(deleting))

    async def _begin_delete(self, uid: str) -> None:
        """Delete this Job, and no later one of the same name."""
        await self._api.delete(JOB, self._name, uid)

    async def _delete(self, uid: str) -> None:
        """Delete this Job and wait for its pods, but for those of which nobody can say that they have ended."""
        await self._begin_delete(uid)
        await self._informers.until_gone(JOB, self._name, uid)
        while any(not is_lost(pod, datetime.now(UTC)) for pod in self._pods_of(uid)):
            await self._informers.changed.wait(LOOK_S)


def _end_of(job: Json) -> Json | None:
    for condition in job.get("status", {}).get("conditions", []):
        if condition["type"] in ENDS and condition["status"] == "True":
            found: Json = condition
            return found
    return None
