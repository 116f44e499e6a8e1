"""Pools: pods that wait with vLLM imported, and how a model server claims them (decision 0050).

    waiting ── claim ──▶ claimed ── order ──▶ ordered ──▶ serves
       ▲                    │                    └── ends ──▶ the pod is deleted, and the next look claims another
       │                    └── the order is not taken ──▶ the same
       └── the pool's Deployment makes a new one, because its selector has lost the pod

The claim is one change of the pod, which is refused if anybody was faster: the pod leaves the pool's selector and is owned
by the server's Deployment from then on. The order goes to the pod's control port and is marked at the pod when it was
taken. A platform that dies between two steps leaves a pod that is claimed and has no order: the next look gives it one, or
deletes it. The Deployment has as many replicas fewer as pods are claimed for it.

A pool with a ``max_size`` keeps as many waiting as were claimed lately: each claim is written at its pod, so that all workers count the same.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

from guanaco.errors import ClusterRefused, ClusterUnreachable
from guanaco_server.clusters.cluster import DeploymentSpec
from guanaco_server.clusters.kubernetes.api.client import (
    DEPLOYMENT,
    POD,
    SECRET,
    KubernetesApi,
    UnexpectedStatus,
)
from guanaco_server.clusters.kubernetes.api.informers import Informers
from guanaco_server.clusters.kubernetes.manifests.objects import server_labels, spec_hash, start_s
from guanaco_server.clusters.kubernetes.names import (
    FROM_POOL,
    ORDERED,
    POOL,
    POOLS,
    SPEC,
    WAITED,
    Json,
)
from guanaco_server.clusters.kubernetes.options import KubernetesOptions, PodPool
from guanaco_server.clusters.kubernetes.pools.claimed import (
    NEVER,
    claimed_at,
    has_served,
    is_claimed,
    is_claimed_for,
    is_ordered,
    is_owned,
)
from guanaco_server.clusters.kubernetes.pools.control_port import OrderNotTaken, PoolPort
from guanaco_server.clusters.kubernetes.pools.manifests import (
    claim_of,
    fits,
    named_secret,
    pool_deployment,
    pool_name,
    pool_policy,
    pool_secret,
)
from guanaco_server.clusters.kubernetes.status import (
    is_leaving,
    is_on_lost_node,
    is_ready,
    termination_of,
)
from guanaco_server.formats.pool import TOKEN_VARIABLE, PodOrder

ASKED_PODS = 8  # number of pods that are asked whether their node has the artifact
CLAIM_ROUNDS = 3
ORDER_TRIES, ORDER_PAUSE_S = 3, 0.5
ARTIFACT = "--artifact"
DEMAND = timedelta(minutes=15)  # a new node with GPUs takes some of them to come
LOOK_AGAIN_S = 60.0

Dismiss = Callable[[Json], Awaitable[None]]

logger = logging.getLogger(__name__)


class Pools:
    """The pools of one namespace. ``dismiss`` deletes a pod, which counts as gone from then on."""

    def __init__(
        self,
        api: KubernetesApi,
        informers: Informers,
        options: KubernetesOptions,
        dismiss: Dismiss,
        port: PoolPort | None = None,
    ) -> None:
        self._api = api
        self._informers = informers
        self._options = options
        self._dismiss = dismiss
        self._port = port or PoolPort()
        self._tokens: dict[str, str] = {}
        self._specs: dict[str, str] = {}
        self._taken: set[str] = set()
        self._upkeep: asyncio.Task[None] | None = None
        self._is_expected = False
        self._later: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Make the pools of the settings, and remove those that the settings do not have any more."""
        try:
            found = await self._api.list(DEPLOYMENT, labelSelector=POOLS)
            kept = {pool_name(pool.name) for pool in self._options.pools}
            for name in {one["metadata"]["name"] for one in found["items"]} - kept:
                logger.info("removing %s: the settings do not have it", name)
                await self._api.delete(DEPLOYMENT, name)
        except (ClusterRefused, ClusterUnreachable) as error:
            logger.warning("the pools cannot be looked at: %s", error)
        await self.maintain()

    def expect(self) -> None:
        """See to the pools in the background. What is expected during an upkeep is seen to after it."""
        self._is_expected = bool(self._options.pools)
        if self._is_expected and (self._upkeep is None or self._upkeep.done()):
            self._upkeep = asyncio.create_task(self._keep_up(), name="upkeep of pools")

    async def _keep_up(self) -> None:
        while self._is_expected:
            self._is_expected = False
            await self.maintain()

    async def stop(self) -> None:
        """Stop the upkeep. The pools stay."""
        if self._later is not None:
            self._later.cancel()
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait([self._upkeep])

    async def maintain(self) -> None:
        """Apply the pools again, which restores what somebody deleted. If there are none, servers start in pods of their own."""
        for pool in self._options.pools:
            try:
                await self._maintain(pool)
            except (ClusterRefused, ClusterUnreachable, UnexpectedStatus) as error:
                logger.warning("the pool %s cannot be kept: %s", pool.name, error)
        self._look_again()

    def count_waiting(self) -> dict[str, int]:
        """Count the pods of each pool that could be claimed now."""
        counts = {pool.name: 0 for pool in self._options.pools if pool.size}
        for pod in self._informers.waiting_pods():
            name = pod["metadata"]["labels"].get(POOL)
            if name in counts and self._can_be_claimed(pod):
                counts[name] += 1
        return counts

    def count_fitting(self, spec: DeploymentSpec) -> int:
        """Count the pods that wait and that could become this server."""
        return len(self._waiting(spec)) if spec.resources.nodes == 1 else 0

    async def settle(self, spec: DeploymentSpec, owner: Json, pods: Sequence[Json]) -> int:
        """Claim pods for replicas that have none, see that each claimed one has its order, and return how many there are."""
        present = spec_hash(spec, self._options)
        claimed: list[Json] = []
        for pod in sorted(filter(is_claimed, pods), key=has_served, reverse=True):
            is_ours = is_claimed_for(pod, owner, present)
            is_over = termination_of(pod) or len(claimed) >= spec.replicas
            if is_leaving(pod):
                continue
            if is_ours and not is_over:
                claimed.append(pod)
            else:
                await self._give_up(pod, "it ended, or is wanted no longer")
        missing = spec.replicas - _placed(pods, present)
        kept = await self._order_all(spec, claimed)
        for _ in range(CLAIM_ROUNDS):
            wanted = missing - len(kept)
            if wanted <= 0 or not (new := await self._claim(spec, owner, wanted)):
                break
            kept += await self._order_all(spec, new)
        return len(kept)

    async def relabel(self, spec: DeploymentSpec, owner: Json, pods: Sequence[Json]) -> bool:
        """Make the only pod that was claimed for the server one of another spec, which it keeps as its order. False if there is none.

        ClusterUnreachable if the pod does not take it: then it is what it was.
        """
        ours = [pod for pod in pods if is_owned(pod, owner) and not is_leaving(pod)]
        if len(ours) != 1 or not is_ordered(ours[0]):
            return False
        (pod,) = ours
        before, present = pod["metadata"]["labels"][SPEC], spec_hash(spec, self._options)
        if before == present:
            return True
        name = pod["metadata"]["name"]
        try:
            await self._give(spec, pod, replaces=before)
            change = {"uid": pod["metadata"]["uid"], "labels": server_labels(spec, self._options)}
            found = await self._api.merge(POD, name, {"metadata": change})
        except (OrderNotTaken, UnexpectedStatus) as error:
            raise ClusterUnreachable(
                f"The pod {name} does not take another order: {error}"
            ) from None
        self._informers.note(POD, found)
        return True

    async def renew(self, spec: DeploymentSpec, pods: Sequence[Json]) -> None:
        """Give these secrets to the pods that were claimed for the server, for containers that start again."""
        for pod in filter(is_claimed, pods):
            if is_ordered(pod) and not is_leaving(pod):
                try:
                    await self._give(spec, pod)
                except OrderNotTaken as error:
                    logger.info("%s keeps its secrets: %s", pod["metadata"]["name"], error)

    async def _maintain(self, pool: PodPool) -> None:
        token = await self._token_of(pool)
        deployment = pool_deployment(pool, self._options, token, self._claims(pool))
        owner = await self._api.apply(deployment)
        await self._api.apply(pool_policy(pool, self._options, owner))
        self._tokens[pool.name] = token
        self._specs[pool.name] = deployment["metadata"]["labels"][SPEC]

    def _claims(self, pool: PodPool) -> int:
        """Count the pods that were claimed from the pool lately, by any worker, and that are still there."""
        since = datetime.now(UTC) - DEMAND
        times = [
            claimed_at(pod)
            for pod in self._informers.all(POD).values()
            if pod["metadata"].get("labels", {}).get(FROM_POOL) == pool.name
        ]
        return sum(at is not None and at >= since for at in times)

    def _look_again(self) -> None:
        """Have a pool that has grown shrink again when its claims are long ago."""
        has_grown = any(
            pool.size_after(self._claims(pool)) > pool.size for pool in self._options.pools
        )
        if self._later is not None:
            self._later.cancel()
        self._later = None
        if has_grown:
            self._later = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self.expect)

    async def _token_of(self, pool: PodPool) -> str:
        """Return the pool's token, which the first worker makes. An apply that says nothing of the data answers with them."""
        made = pool_secret(pool, secrets.token_urlsafe(32))
        try:
            found = await self._api.create(made)
        except UnexpectedStatus as answered:
            if answered.status != 409:
                raise
            found = await self._api.apply(named_secret(pool))
        if TOKEN_VARIABLE not in (found.get("data") or {}):  # somebody has emptied it
            found = await self._api.merge(SECRET, pool_name(pool.name), {"data": made["data"]})
        return base64.b64decode(found["data"][TOKEN_VARIABLE]).decode()

    async def _claim(self, spec: DeploymentSpec, owner: Json, count: int) -> list[Json]:
        """Claim up to this number of waiting pods, first those whose nodes have the artifact."""
        claimed: list[Json] = []
        for pod in await self._nearest(spec, self._waiting(spec)):
            if len(claimed) == count:
                break
            uid = pod["metadata"]["uid"]
            if uid in self._taken:
                continue
            self._taken.add(uid)
            try:
                if found := await self._claim_one(pod, spec, owner):
                    claimed.append(found)
            except (ClusterRefused, ClusterUnreachable) as error:
                logger.warning("%s is started without a pool: %s", spec.name, error)
                break
            finally:
                self._taken.discard(uid)
        return claimed

    async def _claim_one(self, pod: Json, spec: DeploymentSpec, owner: Json) -> Json | None:
        """Return the pod as it is after the claim; None if somebody else was faster, or it has changed."""
        name = pod["metadata"]["name"]
        try:
            claim = claim_of(pod, spec, self._options, owner, datetime.now(UTC))
            found = await self._api.merge(POD, name, claim)
        except UnexpectedStatus as answered:
            logger.info("%s cannot be claimed: %s", name, answered)
            # If a claim is repeated because its answer was lost, the second one is refused.
            found_again = await self._find(name)
            present = spec_hash(spec, self._options)
            if found_again is None or not is_claimed_for(found_again, owner, present):
                return None
            found = found_again
        self._informers.note_claimed(found)
        self.expect()
        logger.info("%s claims %s of the pool", spec.name, name)
        return found

    async def _find(self, name: str) -> Json | None:
        found = await self._api.list(POD, fieldSelector=f"metadata.name={name}")
        return next(iter(found["items"]), None)

    def _waiting(self, spec: DeploymentSpec) -> list[Json]:
        """Return the pods that wait and fit, those of the smallest pool first, then those near the artifact, then the oldest."""
        pools = [pool for pool in self._options.pools if fits(pool, spec, self._options)]
        pools.sort(key=lambda pool: pool.resources.memory_bytes or 0)
        places = {pool.name: place for place, pool in enumerate(pools)}
        found = [
            pod
            for pod in self._informers.waiting_pods()
            if pod["metadata"]["labels"].get(POOL) in places and self._can_be_claimed(pod)
        ]
        return sorted(found, key=lambda pod: _claim_order(pod, places, spec.near))

    def _can_be_claimed(self, pod: Json) -> bool:
        labels = pod["metadata"]["labels"]
        is_current = labels.get(SPEC) == self._specs.get(labels[POOL])
        return is_current and is_ready(pod) and not is_leaving(pod) and not is_on_lost_node(pod)

    async def _nearest(self, spec: DeploymentSpec, pods: list[Json]) -> list[Json]:
        """Put those first whose nodes have the artifact. Where each pod has a cache of its own, or all share one, none is nearer."""
        artifact = _artifact_key(spec)
        if not self._options.cache_path or artifact is None or len(pods) < 2:
            return pods
        asked = pods[:ASKED_PODS]
        held = await asyncio.gather(
            *(self._port.holds(*self._control(pod), artifact) for pod in asked)
        )
        near = [pod for pod, has_it in zip(asked, held, strict=True) if has_it]
        return [*near, *(pod for pod in pods if pod not in near)]

    async def _order_all(self, spec: DeploymentSpec, pods: Sequence[Json]) -> list[Json]:
        """Return the pods that have their order; others are given up."""
        has_order = await asyncio.gather(*(self._order(spec, pod) for pod in pods))
        return [pod for pod, is_kept in zip(pods, has_order, strict=True) if is_kept]

    async def _order(self, spec: DeploymentSpec, pod: Json) -> bool:
        for attempt in range(ORDER_TRIES):
            try:
                await self._give(spec, pod)
            except OrderNotTaken as error:
                reason = error
                await asyncio.sleep(ORDER_PAUSE_S * (attempt < ORDER_TRIES - 1))
            else:
                return await self._mark_ordered(pod)
            if is_ordered(pod):  # it has its order; only its new secrets wait
                return True
        await self._give_up(pod, f"it does not take its order: {reason}")
        return False

    async def _mark_ordered(self, pod: Json) -> bool:
        """Note at the pod that it has its order, and since when it was ready when it was claimed. False if it is gone."""
        if is_ordered(pod):
            return True
        waited = pod["metadata"].get("annotations", {}).get(WAITED, NEVER)
        mark = {"annotations": {ORDERED: waited}, "uid": pod["metadata"]["uid"]}
        try:
            found = await self._api.merge(POD, pod["metadata"]["name"], {"metadata": mark})
        except UnexpectedStatus:
            return False
        self._informers.note(POD, found)
        return True

    async def _give(self, spec: DeploymentSpec, pod: Json, replaces: str = "") -> None:
        order = PodOrder(
            name=spec.name,
            spec=spec_hash(spec, self._options),
            arguments=spec.command[len(self._options.engine_command) :],
            environment=spec.environment,
            secrets=spec.secrets,
            start_s=start_s(spec),
            replaces=replaces,
        )
        await self._port.give(*self._control(pod), order)

    def _control(self, pod: Json) -> tuple[str, str]:
        """Return where the pod takes its order, and the token. Without a pool the token is gone, and so is the order refused."""
        token = self._tokens.get(pod["metadata"]["labels"][FROM_POOL], "")
        return self._options.control_endpoint_of(pod), token

    async def _give_up(self, pod: Json, why: str) -> None:
        logger.info("deleting %s, which was claimed from a pool: %s", pod["metadata"]["name"], why)
        await self._dismiss(pod)


def _placed(pods: Sequence[Json], spec: str) -> int:
    """Return how many pods of the Deployment's own have a machine, and so need no other in their place."""
    return sum(
        not is_claimed(pod)
        and not is_leaving(pod)
        and not termination_of(pod)
        and pod["metadata"].get("labels", {}).get(SPEC) == spec
        and bool(pod["spec"].get("nodeName"))
        for pod in pods
    )


def _claim_order(
    pod: Json, places: dict[str, int], near: Sequence[str]
) -> tuple[int, bool, str, str]:
    metadata = pod["metadata"]
    is_far = pod["spec"].get("nodeName") not in near
    age = str(metadata["creationTimestamp"])
    return places[metadata["labels"][POOL]], is_far, age, metadata["name"]


def _artifact_key(spec: DeploymentSpec) -> str | None:
    """Return the key of the artifact that the server's command names."""
    if ARTIFACT not in spec.command[:-1]:
        return None
    uri = spec.command[spec.command.index(ARTIFACT) + 1]
    return uri.rstrip("/").rpartition("/")[2]
