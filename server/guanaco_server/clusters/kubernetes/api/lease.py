"""Decides which of several workers acts: the one that holds the Lease.

A holder renews it every RENEW_S; whoever sees it unchanged for DURATION_S takes it over. A holder that could
not renew for ACT_S stops acting, before another one can begin. Clocks are never compared between machines.

Workers are elected by the database first (``workers/heartbeat.py``), and hold the Lease beside it, which also stops
one that is cut off from the database. All of them watch it, so the second lock adds nothing to a fail-over; and a
worker that is restarted finds its own name in it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime

from guanaco.errors import ClusterRefused, ClusterUnreachable
from guanaco_server.clusters.kubernetes.api.client import LEASE, KubernetesApi, UnexpectedStatus
from guanaco_server.clusters.kubernetes.names import MANAGED_BY, MANAGER, Json
from guanaco_server.runtime.background import Background

DURATION_S, ACT_S, RENEW_S = 15.0, 10.0, 3.0
NAME = "guanaco-reconciler"

logger = logging.getLogger(__name__)


class LeaseLeadership:
    """Leads while it holds the namespace's Lease. ``holder`` is this process's own name."""

    def __init__(
        self,
        api: KubernetesApi,
        holder: str,
        *,
        duration_s: float = DURATION_S,
        act_s: float = ACT_S,
        renew_s: float = RENEW_S,
    ) -> None:
        self._api = api
        self._holder = holder
        self._duration_s, self._act_s, self._renew_s = duration_s, act_s, renew_s
        self._acts_until = 0.0
        self._seen: tuple[str, float] = ("", 0.0)  # the Lease's version, and when it was first seen
        self._background = Background("leader election")
        self._watching = Background("watch of the lease")

    def is_leading(self) -> bool:
        return time.monotonic() < self._acts_until

    async def watch(self) -> None:
        """Begin to look at the Lease. A process that has seen it unchanged for long enough when it may lead need not wait then."""
        self._watching.start(self._watch())

    async def close(self) -> None:
        await self._watching.stop()

    async def start(self) -> None:
        """Try once to lead, then go on trying in the background."""
        await self.seek()
        self._background.start(self._run())

    async def stop(self) -> None:
        """Give the lease up, so that another process need not wait."""
        await self._background.stop()
        if self.is_leading():
            self._acts_until = 0.0
            try:
                lease = await self._api.get(LEASE, NAME)
                if lease and lease["spec"].get("holderIdentity") == self._holder:
                    lease["spec"]["holderIdentity"] = ""
                    await self._api.replace(lease)
            except (UnexpectedStatus, ClusterRefused, ClusterUnreachable) as error:
                logger.info("the lease runs out by itself: %s", error)

    async def seek(self) -> bool:
        """Renew the lease, or take it over if it has run out. Return whether this process leads."""
        began = time.monotonic()
        lease = await self._api.get(LEASE, NAME)
        try:
            if lease is None:
                await self._api.create(self._lease())
            elif self._may_take(lease):
                await self._api.replace(lease | {"spec": self._spec(lease["spec"])})
            else:
                self._acts_until = 0.0
                return False
        except UnexpectedStatus:  # another one was faster
            self._acts_until = 0.0
            return False
        self._acts_until = began + self._act_s
        return True

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._renew_s)
            try:
                await self.seek()
            except (UnexpectedStatus, ClusterRefused, ClusterUnreachable) as error:
                logger.warning("the lease could not be renewed: %s", error)

    async def _watch(self) -> None:
        while True:
            try:
                if (lease := await self._api.get(LEASE, NAME)) is not None:
                    self._see(lease)
            except (UnexpectedStatus, ClusterRefused, ClusterUnreachable) as error:
                logger.info("the lease could not be read: %s", error)
            await asyncio.sleep(self._renew_s)

    def _see(self, lease: Json) -> None:
        version = str(lease["metadata"]["resourceVersion"])
        if self._seen[0] != version:
            self._seen = (version, time.monotonic())

    def _may_take(self, lease: Json) -> bool:
        self._see(lease)
        now = time.monotonic()
        holder = lease["spec"].get("holderIdentity")
        return holder in (None, "", self._holder) or now - self._seen[1] > self._duration_s

    def _lease(self) -> Json:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME, "labels": {MANAGED_BY: MANAGER}},
            "spec": self._spec({}),
        }

    def _spec(self, earlier: Json) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_ours = earlier.get("holderIdentity") == self._holder
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": max(1, round(self._duration_s)),
            "acquireTime": earlier["acquireTime"] if is_ours else now,
            "renewTime": now,
            "leaseTransitions": int(earlier.get("leaseTransitions", -1)) + (not is_ours),
        }
