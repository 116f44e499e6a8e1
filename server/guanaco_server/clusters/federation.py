"""Several clusters as one: each is a region, and a deployment lives in one or more of them.

``placement.py`` says where. A region that does not answer stops no other: what was last seen there is still given,
with a problem, for its model servers may well go on; only when they do not answer either is the deployment stopped
by the reconciler, and started elsewhere. What is in a region that should not have it is moved: it stays until
the others are ready. Nothing is remembered that the clusters do not know, but for the last look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from guanaco.errors import GuanacoError
from guanaco_server.clusters.cluster import (
    Cluster,
    DeploymentSpec,
    JobResult,
    JobSpec,
    LineSink,
    ReplicaPhase,
    ReplicaState,
)
from guanaco_server.clusters.placement import RegionShare, place

logger = logging.getLogger(__name__)

T = TypeVar("T")
IsReady = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True)
class Region:
    cluster: Cluster
    share: RegionShare = RegionShare()  # noqa: RUF009 - frozen


@dataclass
class _LogPlace:
    """The position up to which each region's log was read. The caller knows only the total."""

    total: int = 0
    offsets: dict[str, int] = field(default_factory=dict)


class Federation:
    """``near`` is the region whose servers come first, and where jobs run. ``is_ready`` asks a model server."""

    def __init__(self, regions: Mapping[str, Region], is_ready: IsReady, near: str) -> None:
        self._regions = dict(sorted(regions.items(), key=lambda item: (item[0] != near, item[0])))
        self._is_ready = is_ready
        self._down: dict[str, str] = {}
        self._seen: dict[str, dict[str, ReplicaState]] = {}
        self._replicas: dict[str, int] = {}
        self._logs: dict[str, _LogPlace] = {}

    async def check(self) -> None:
        """Check that at least one region answers; OSError otherwise."""
        if not await self._call_regions(lambda _, cluster: _checked(cluster)):
            raise OSError(f"No region answers: {self._why_down()}.")

    async def start(self) -> None:
        await self._call_regions(lambda _, cluster: cluster.start())

    async def run_job(self, spec: JobSpec, on_line: LineSink) -> JobResult:
        up = [name for name in self._regions if name not in self._down] or list(self._regions)
        return await self._regions[up[0]].cluster.run_job(spec, on_line)

    async def expect_server(self) -> None:
        """Do nothing: no region is chosen yet."""

    async def waiting_in_pools(self) -> dict[str, int]:
        """Count them by region and pool. A region that is down is left out."""
        found = await self._call_regions(lambda _, cluster: cluster.waiting_in_pools())
        return {
            f"{region}/{pool}": count
            for region, pools in found.items()
            for pool, count in pools.items()
        }

    async def has_room_ahead(self, spec: DeploymentSpec) -> bool:
        """Return False: no server of several clusters can be taken over."""
        return False

    async def apply_deployment(self, spec: DeploymentSpec) -> None:
        """Apply it in each region where it should be; OSError if none of them takes it."""
        self._replicas[spec.name] = spec.replicas
        present = await self._look(spec.name)
        counts = {name: len(found) for name, found in (await self._lists()).items()}
        while wanted := self._place(spec.name, present, counts):
            taken = await self._call_regions(
                lambda region, cluster: cluster.apply_deployment(
                    replace(spec, replicas=wanted[region])
                ),
                wanted,
            )
            if taken:
                await self._delete_when_others_ready(spec.name, set(present) - set(wanted))
                return
        raise OSError(f"No region takes {spec.name}: {self._why_down()}.")

    async def renew_secrets(self, spec: DeploymentSpec) -> None:
        present = self._seen.get(spec.name, {})
        await self._call_regions(lambda _, cluster: cluster.renew_secrets(spec), present)

    @property
    def can_relabel(self) -> bool:
        return False

    @property
    def has_control_routes(self) -> bool:
        return all(region.cluster.has_control_routes for region in self._regions.values())

    async def relabel(self, spec: DeploymentSpec) -> None:
        """Do nothing: a pod's template names its artifact, and a pod that starts again loads that one."""

    async def observe(self, name: str) -> ReplicaState | None:
        """Return the state of the nearest server that runs. ``replicas`` holds the servers of every region."""
        states = await self._look(name)
        if not states:
            return None
        each = sorted(states.values(), key=lambda state: state.phase is not ReplicaPhase.RUNNING)
        wanted = self._place(name, states, {}, trusted=states)
        serving = {r for r, state in states.items() if state.phase is ReplicaPhase.RUNNING}
        is_placed = not wanted or (set(wanted) <= serving and set(states) <= set(wanted))
        has_all = all(state.is_settled or r in self._down for r, state in states.items())
        return replace(
            each[0],
            replicas=tuple(one for state in each for one in _servers(state)),
            is_settled=is_placed and has_all,
            problem=next((state.problem for state in each if state.problem), None),
        )

    async def note_ready(self, name: str, endpoints: Collection[str]) -> None:
        await self._call_regions(
            lambda _, cluster: cluster.note_ready(name, endpoints), self._seen.get(name, {})
        )

    async def stop_replica(self, name: str, endpoint: str) -> bool:
        home = {
            region
            for region, seen in self._seen.get(name, {}).items()
            if endpoint in [one.endpoint for one in _servers(seen)]
        }
        stopped = await self._call_regions(
            lambda _, cluster: cluster.stop_replica(name, endpoint), home
        )
        return any(stopped.values())

    async def list_deployments(self) -> list[str]:
        return sorted({name for found in (await self._lists()).values() for name in found})

    async def logs(self, name: str, offset: int = 0) -> tuple[list[str], int]:
        """Read the logs of every region. Where there are several, each line begins with its region."""
        place = self._logs.get(name)
        if place is None or place.total != offset:
            place = _LogPlace(offset)
        regions = self._seen.get(name, {}) or self._regions
        read = await self._call_regions(
            lambda region, cluster: cluster.logs(name, place.offsets.get(region, 0)), regions
        )
        mark = "[{}] " if len(regions) > 1 else ""
        lines = [
            f"{mark.format(region)}{line}" for region, (found, _) in read.items() for line in found
        ]
        offsets = place.offsets | {region: end for region, (_, end) in read.items()}
        self._logs[name] = _LogPlace(sum(offsets.values()), offsets)
        return lines, self._logs[name].total

    async def delete(self, name: str) -> None:
        """Delete it in every region that answers. Another region deletes it when it answers again."""
        for memory in (self._seen, self._replicas, self._logs):
            memory.pop(name, None)
        await self._call_regions(lambda _, cluster: cluster.delete(name))

    async def close(self) -> None:
        await self._call_regions(lambda _, cluster: cluster.close())

    def _place(
        self,
        name: str,
        present: Mapping[str, ReplicaState],
        counts: Mapping[str, int],
        trusted: Collection[str] = (),
    ) -> dict[str, int]:
        """Place it. ``trusted`` regions count also while they do not answer."""
        usable = {
            region: each.share
            for region, each in self._regions.items()
            if region not in self._down or region in trusted
        }
        return place(name, self._replicas.get(name, 1), usable, set(present), counts)

    async def _look(self, name: str) -> dict[str, ReplicaState]:
        """Return the state by region, the near one first. A region that does not answer keeps the state last seen there."""
        found = await self._call_regions(lambda _, cluster: cluster.observe(name))
        before = self._seen.get(name, {})
        states = {}
        for region in self._regions:
            state = found.get(region)
            if region in self._down and region in before:
                problem = f"Region {region} does not answer: {self._down[region]}."
                state = replace(before[region], problem=problem)
            if state is not None:
                states[region] = replace(state, region=region)
        if states:
            self._seen[name] = states
        else:
            self._seen.pop(name, None)
        return states

    async def _lists(self) -> dict[str, list[str]]:
        return await self._call_regions(lambda _, cluster: cluster.list_deployments())

    async def _delete_when_others_ready(self, name: str, regions: set[str]) -> None:
        """Delete it from these regions once all the others are ready."""
        staying = [s for r, s in (await self._look(name)).items() if r not in regions]
        if not regions or not all([await self._serves(state) for state in staying]):
            return
        await self._call_regions(lambda _, cluster: cluster.delete(name), regions)
        to = ", ".join(state.region for state in staying)
        logger.info("moved %s from %s to %s", name, ", ".join(sorted(regions)), to)

    async def _serves(self, state: ReplicaState) -> bool:
        return state.is_ready and await self._is_ready(state.endpoint)

    def _why_down(self) -> str:
        return "; ".join(f"{region}: {why}" for region, why in self._down.items()) or "all are full"

    async def _call_regions(
        self, call: Callable[[str, Cluster], Awaitable[T]], regions: Collection[str] | None = None
    ) -> dict[str, T]:
        """Call each region and return the answers. A region that fails is noted as down and asked again next time."""
        asked = [name for name in self._regions if regions is None or name in regions]
        answers = await asyncio.gather(
            *(self._ask(name, call(name, self._regions[name].cluster)) for name in asked)
        )
        return {name: answer[0] for name, answer in zip(asked, answers, strict=True) if answer}

    async def _ask(self, region: str, answer: Awaitable[T]) -> tuple[T] | None:
        try:
            given = await answer
        except (OSError, GuanacoError) as error:
            why = str(error).rstrip(".") or type(error).__name__
            if region not in self._down:
                logger.warning("region %s does not answer: %s", region, why)
            self._down[region] = why
            return None
        if self._down.pop(region, None):
            logger.info("region %s answers again", region)
        return (given,)


def _servers(state: ReplicaState) -> list[ReplicaState]:
    """Return the servers of one region."""
    return [replace(one, region=state.region) for one in state.replicas or (state,)]


async def _checked(cluster: Cluster) -> bool:
    await cluster.check()
    return True
