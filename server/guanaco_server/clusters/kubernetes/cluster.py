"""Jobs and model servers in a namespace of a Kubernetes cluster.

    job           Job + what it owns          jobs.py
    model server  Deployment + what it owns   status.py reads their state
                  or pods that it claims      pools/
                  or a LeaderWorkerSet, where a replica takes several machines (manifests/groups.py)

The manifests are in manifests/. Everything is owned by its Job or Deployment, so deleting that one deletes all.
The state of the cluster comes from watches (api/informers.py). A replica is a pod and has the pod's address.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime

from guanaco.errors import ClusterRefused
from guanaco_server.clusters.cluster import (
    DeploymentSpec,
    JobResult,
    JobSpec,
    LineSink,
    ReplicaPhase,
    ReplicaState,
    Trouble,
)
from guanaco_server.clusters.kubernetes.api.client import (
    DEPLOYMENT,
    EVENT,
    GROUP_SET,
    JOB,
    KINDS,
    POD,
    KubernetesApi,
)
from guanaco_server.clusters.kubernetes.api.informers import Informers
from guanaco_server.clusters.kubernetes.api.logs import LogReader
from guanaco_server.clusters.kubernetes.jobs import JobRun
from guanaco_server.clusters.kubernetes.manifests.groups import workload_object
from guanaco_server.clusters.kubernetes.manifests.objects import (
    owned_objects,
    secret_of,
    spec_hash,
)
from guanaco_server.clusters.kubernetes.manifests.pods import affinity_of, near_of, place_object
from guanaco_server.clusters.kubernetes.names import (
    ASKED_REPLICAS,
    PLACE_MANAGER,
    SPEC,
    WORKER,
    Json,
    full_name,
    group_set_name,
    label_value,
    object_name,
)
from guanaco_server.clusters.kubernetes.options import KubernetesOptions
from guanaco_server.clusters.kubernetes.pools.pools import Pools
from guanaco_server.clusters.kubernetes.status import (
    ended_pods,
    has_started,
    is_group_set,
    is_leader,
    is_leaving,
    is_lost,
    pods_of,
    state_of,
    termination_of,
)

LOGS_S = 2.0  # a pipeline stage asks several times a second for what a starting server has said

logger = logging.getLogger(__name__)


class KubernetesCluster:
    """Jobs and model servers in one namespace. Model servers outlive the platform: ``close`` does not stop them."""

    def __init__(self, api: KubernetesApi, options: KubernetesOptions) -> None:
        self._api = api
        self._options = options
        self._informers = Informers(api, has_pools=bool(options.pools))
        self._pools = Pools(api, self._informers, options, self._dismiss)
        self._dismissed: set[str] = set()
        self._deleted: set[str] = set()
        self._logs: dict[str, tuple[LogReader, int]] = {}
        self._read_at: dict[str, float] = {}
        self._jobs: dict[str, asyncio.Task[JobResult]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def check(self) -> None:
        """Check before anything is started; ClusterRefused or ClusterUnreachable if the platform cannot use the cluster."""
        await self._api.list(DEPLOYMENT, limit="1")

    async def start(self) -> None:
        """Begin to watch, stop the jobs that an earlier process of this worker left, and keep the pools of the settings."""
        await self._informers.start()
        await self._pools.start()
        worker = label_value(self._options.worker)
        for name, job in list(self._informers.all(JOB).items()):
            if job["metadata"].get("labels", {}).get(WORKER) == worker:
                await self._api.delete(JOB, name)

    async def run_job(self, spec: JobSpec, on_line: LineSink) -> JobResult:
        if earlier := self._jobs.get(spec.name):
            earlier.cancel()
            await asyncio.wait([earlier])
        run = JobRun(self._api, self._informers, self._options, spec, on_line)
        job = asyncio.create_task(run.run(), name=spec.name)
        self._jobs[spec.name] = job
        try:
            return await job
        finally:
            if self._jobs.get(spec.name) is job:
                del self._jobs[spec.name]

    async def expect_server(self) -> None:
        """Keep the pools, whose pods can be any model's."""
        self._pools.expect()

    async def waiting_in_pools(self) -> dict[str, int]:
        return self._pools.count_waiting()

    async def has_room_ahead(self, spec: DeploymentSpec) -> bool:
        """Pods that wait in a pool are room, but the last one is left for a submission."""
        return self._pools.count_fitting(spec) > spec.replicas

    async def apply_deployment(self, spec: DeploymentSpec) -> None:
        """Apply the Deployment and what it owns. Applying again renews the secrets and restores what somebody deleted; the pods stay."""
        async with self._locks[spec.name]:
            self._require_groups(spec)
            current = self._deployment(spec.name)
            if current and is_group_set(current) != (spec.resources.nodes > 1):
                await self._delete(spec.name, current)
                current = None
            if current and is_leaving(current):
                await self._release(spec.name, current)
                current = None
            spec = self._as_placed(spec, current)
            owner = current or await self._api.apply(
                workload_object(replace(spec, replicas=0), self._options)
            )
            await self._apply_owned(spec, owner)
            wanted = await self._wanted(spec, owner)
            applied = await self._own_place(wanted, await self._api.apply(wanted))
            self._informers.note(KINDS[applied["kind"]], applied)
            if applied["metadata"]["uid"] != owner["metadata"]["uid"]:
                await self._apply_owned(spec, applied)  # somebody has deleted the owner meanwhile
            if current:
                await self._dismiss_ended(spec.name, applied)

    async def renew_secrets(self, spec: DeploymentSpec) -> None:
        """Give these secrets to the pods that start from now on; the present ones are left alone."""
        async with self._locks[spec.name]:
            current = self._deployment(spec.name)
            if current and not is_leaving(current):
                await self._api.apply(secret_of(spec, current))
                await self._pools.renew(spec, self._pods(spec.name))

    @property
    def can_relabel(self) -> bool:
        """Servers that were claimed from a pool may: their pods' template names no artifact."""
        return bool(self._options.pools)

    @property
    def has_control_routes(self) -> bool:
        """A Service's one address would give an order to any one of its pods."""
        return self._options.has_replica_addresses

    async def relabel(self, spec: DeploymentSpec) -> None:
        """Have the pod that was claimed for this server keep the new order, for a container that starts again. Nothing for a pod of its own."""
        async with self._locks[spec.name]:
            current = self._deployment(spec.name)
            if current is None or is_leaving(current) or is_group_set(current):
                return
            spec = self._as_placed(spec, current)
            if await self._pools.relabel(spec, current, self._pods(spec.name)):
                await self._apply_owned(spec, current)
                applied = await self._api.apply(await self._wanted(spec, current))
                self._informers.note(DEPLOYMENT, applied)

    async def observe(self, name: str) -> ReplicaState | None:
        deployment = self._deployment(name)
        if deployment is None or is_leaving(deployment):
            return None
        now = datetime.now(UTC)
        pods = self._pods(name)
        if is_group_set(deployment):
            gone = (pod for pod in self._informers.pods(name) if pod not in pods)
            pods += [pod for pod in gone if is_lost(pod, now)]
        events = self._informers.all(EVENT).values()
        return state_of(deployment, pods, self._options, now, self._informers.pulls, events)

    async def note_ready(self, name: str, endpoints: Collection[str]) -> None:
        """Do nothing: each pod has the processors that it requests."""

    async def stop_replica(self, name: str, endpoint: str) -> bool:
        """Delete the replica's pod, for which the Deployment makes another. False where one address stands for all pods."""
        async with self._locks[name]:
            deployment = self._deployment(name)
            if deployment is None or not self._options.has_replica_addresses:
                return False
            hanging = [
                pod
                for pod in pods_of(deployment, self._pods(name))
                if self._options.endpoint_of(object_name(name), pod) == endpoint
                and (is_leader(pod) or not is_group_set(deployment))
            ]
            for pod in hanging:
                await self._dismiss(pod)
            return bool(hanging)

    async def list_deployments(self) -> list[str]:
        return sorted(full_name(one) for one in self._all() if not self._is_deleted(one))

    async def logs(self, name: str, offset: int = 0) -> tuple[list[str], int]:
        """Read the log of a pod that ended, else of the newest pod, which is asked at most every LOGS_S. Offsets count bytes of UTF-8."""
        pod = self._pod_to_report(name)
        if pod is None:
            return [], 0
        fresh = LogReader(self._api, pod)
        reader, read_until = self._logs.get(name, (fresh, 0))
        is_other = reader.process != fresh.process
        if is_other or read_until != offset:
            reader, read_until = fresh, 0
        elif not termination_of(pod) and time.monotonic() - self._read_at.get(name, 0) < LOGS_S:
            return [], offset
        self._read_at[name] = time.monotonic()
        skipped = 0 if is_other else offset
        given: list[str] = []
        for line in await reader.rest():
            if read_until >= skipped:
                given.append(line)
            read_until += len(line.encode()) + 1
        self._logs[name] = reader, read_until
        return given, read_until

    async def delete(self, name: str) -> None:
        """Delete the Deployment, whose name is free at once. Its pods go when they have used their grace period, or their node is back."""
        async with self._locks[name]:
            await self._delete(name, self._deployment(name))
            self._forget_gone()
            self._logs.pop(name, None)
            self._read_at.pop(name, None)

    async def close(self) -> None:
        """Stop the jobs, whose output nobody would read. Model servers go on."""
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)
        await self._pools.stop()
        await self._informers.stop()

    async def _wanted(self, spec: DeploymentSpec, owner: Json) -> Json:
        """Make the workload: with a replica fewer for each pod that is claimed from a pool."""
        replaces_others = self._has_pods_of_another(spec)
        claimed = 0
        if not is_group_set(owner):
            claimed = await self._pools.settle(spec, owner, self._pods(spec.name))
        wanted = workload_object(
            replace(spec, replicas=spec.replicas - claimed),
            self._options,
            replaces_others=replaces_others,
        )
        if claimed:
            wanted["metadata"]["annotations"][ASKED_REPLICAS] = str(spec.replicas)
        return wanted

    async def _own_place(self, wanted: Json, applied: Json) -> Json:
        """Own the pods' preference by a second manager, which keeps it where a worker of the version before applies a template without one.

        A preference that is no longer wanted goes. The template of a Deployment that has the right one does not change.
        """
        affinity = affinity_of(wanted)
        if affinity == affinity_of(applied) == {}:
            return applied
        return await self._api.apply(place_object(wanted, affinity), PLACE_MANAGER)

    def _as_placed(self, spec: DeploymentSpec, current: Json | None) -> DeploymentSpec:
        """Keep the machines that the pods of this very spec prefer already: others would be another template, and restart them."""
        if current is None or is_group_set(current):
            return spec
        if current["metadata"]["labels"].get(SPEC) != spec_hash(spec, self._options):
            return spec
        return replace(
            spec, near=near_of(current["spec"]["template"]["spec"], self._options.server_fields)
        )

    async def _apply_owned(self, spec: DeploymentSpec, owner: Json) -> None:
        for owned in owned_objects(spec, self._options, owner):
            await self._api.apply(owned)

    def _require_groups(self, spec: DeploymentSpec) -> None:
        if spec.resources.nodes > 1 and not self._informers.has_groups:
            raise ClusterRefused(
                f"This cluster cannot serve a model over {spec.resources.nodes} machines: it has no LeaderWorkerSet that the platform may use.",
                hint="The operator installs it (docs/operating.md) and restarts the worker, or an admin sets a recipe for one machine.",
            )

    async def _delete(self, name: str, workload: Json | None) -> None:
        if workload is None:
            await self._api.delete(DEPLOYMENT, object_name(name))
        else:
            await self._api.delete(KINDS[workload["kind"]], workload["metadata"]["name"])
            self._deleted.add(workload["metadata"]["uid"])
        self._dismissed.update(pod["metadata"]["uid"] for pod in self._informers.pods(name))

    async def _release(self, name: str, workload: Json) -> None:
        """Free the name of a Deployment that somebody deletes in the foreground, so that it waits for its pods."""
        kind, metadata = KINDS[workload["kind"]], workload["metadata"]
        await self._api.delete(kind, metadata["name"], metadata["uid"])
        self._dismissed.update(pod["metadata"]["uid"] for pod in self._informers.pods(name))
        await self._informers.until_gone(kind, metadata["name"], metadata["uid"])

    def _has_pods_of_another(self, spec: DeploymentSpec) -> bool:
        present = spec_hash(spec, self._options)
        pods = [pod for pod in self._pods(spec.name) if not is_leaving(pod)]
        return any(pod["metadata"].get("labels", {}).get(SPEC) != present for pod in pods)

    def _deployment(self, name: str) -> Json | None:
        """Return the Deployment or the LeaderWorkerSet of this name."""
        found = (
            self._informers.all(DEPLOYMENT).get(object_name(name)),
            self._informers.all(GROUP_SET).get(group_set_name(name)),
        )
        return next((one for one in found if one and not self._is_deleted(one)), None)

    def _all(self) -> list[Json]:
        return [*self._informers.all(DEPLOYMENT).values(), *self._informers.all(GROUP_SET).values()]

    def _is_deleted(self, deployment: Json) -> bool:
        """Tell whether this process has deleted it; the watch reports that a little later."""
        return deployment["metadata"]["uid"] in self._deleted

    def _pods(self, name: str) -> list[Json]:
        found = self._informers.pods(name)
        return [pod for pod in found if pod["metadata"]["uid"] not in self._dismissed]

    def _pod_to_report(self, name: str) -> Json | None:
        deployment = self._deployment(name)
        if deployment is None:
            return None
        pods = self._pods(name)
        now = datetime.now(UTC)
        started = [pod for pod in pods_of(deployment, pods) if has_started(pod)]
        if is_group_set(deployment):
            started.sort(key=is_leader, reverse=True)
        reportable = [*ended_pods(deployment, pods), *started]
        return next((pod for pod in reportable if not is_lost(pod, now)), None)

    async def _dismiss_ended(self, name: str, deployment: Json) -> None:
        """Delete the pods that exited, so that new ones start without the cluster's back-off."""
        self._forget_gone()
        state = await self.observe(name)
        if state is None:
            return
        if is_group_set(deployment):
            await self._free_names(name)
        has_crashed = state.phase is ReplicaPhase.EXITED and state.trouble is Trouble.CRASHED
        find = pods_of if has_crashed else ended_pods  # those that wait for a machine go on waiting
        for pod in find(deployment, self._pods(name)):
            logger.info("%s exited: replacing %s", name, pod["metadata"]["name"])
            await self._dismiss(pod)

    async def _free_names(self, name: str) -> None:
        """Delete by force the pods of lost machines, whose names the rest of their group waits for."""
        now = datetime.now(UTC)
        for pod in self._informers.pods(name):
            if is_lost(pod, now):
                logger.info("%s: freeing the name %s", name, pod["metadata"]["name"])
                await self._dismiss(pod, is_forced=True)

    def _forget_gone(self) -> None:
        pods = {pod["metadata"]["uid"] for pod in self._informers.all(POD).values()}
        self._dismissed &= pods
        self._deleted &= {one["metadata"]["uid"] for one in self._all()}
        self._informers.pulls.forget_all_but(pods)

    async def _dismiss(self, pod: Json, *, is_forced: bool = False) -> None:
        """Delete the pod; it counts as gone from now on. By force its object goes at once, whatever its kubelet says."""
        uid = pod["metadata"]["uid"]
        if not is_forced:
            self._dismissed.add(uid)
        await self._api.delete(POD, pod["metadata"]["name"], uid, 0 if is_forced else None)
        self._dismissed.add(uid)
