"""The cluster as the platform sees it: whatever a job or a model server said comes through here, without secrets.

Everything that these processes print enters the platform by this port, so this is the one place where it is masked:
before it is stored, shown to a developer, or quoted in a failure. The secrets that a job or a server was given are known here, so
they are masked whatever they look like.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection
from dataclasses import replace

from guanaco_server.clusters.cluster import (
    Cluster,
    DeploymentSpec,
    JobResult,
    JobSpec,
    LineSink,
    ReplicaState,
)
from guanaco_server.observability.redaction import Redaction

KEPT_SECRETS = 4  # sets of them for each deployment: a server has those of its start, which are renewed meanwhile


class RedactedCluster:
    """Another cluster, whose processes' words are cleaned of secrets and of the servers' paths."""

    def __init__(self, cluster: Cluster, redaction: Redaction) -> None:
        self._cluster = cluster
        self._redaction = redaction
        self._given: defaultdict[str, deque[tuple[str, ...]]] = defaultdict(
            lambda: deque(maxlen=KEPT_SECRETS)
        )
        self._redactions: dict[str, Redaction] = {}

    async def check(self) -> None:
        await self._cluster.check()

    async def start(self) -> None:
        await self._cluster.start()

    async def run_job(self, spec: JobSpec, on_line: LineSink) -> JobResult:
        redaction = self._redaction.knowing(spec.secrets.values())

        async def on_clean_line(line: str) -> None:
            await on_line(redaction.clean_output(line))

        result = await self._cluster.run_job(spec, on_clean_line)
        return replace(
            result,
            last_lines=tuple(redaction.clean_output(line) for line in result.last_lines),
            problem=_clean_problem(redaction, result.problem),
        )

    async def expect_server(self) -> None:
        await self._cluster.expect_server()

    async def waiting_in_pools(self) -> dict[str, int]:
        return await self._cluster.waiting_in_pools()

    async def has_room_ahead(self, spec: DeploymentSpec) -> bool:
        return await self._cluster.has_room_ahead(spec)

    async def apply_deployment(self, spec: DeploymentSpec) -> None:
        self._note_secrets(spec)
        await self._cluster.apply_deployment(spec)

    async def renew_secrets(self, spec: DeploymentSpec) -> None:
        self._note_secrets(spec)
        await self._cluster.renew_secrets(spec)

    @property
    def can_relabel(self) -> bool:
        return self._cluster.can_relabel

    @property
    def has_control_routes(self) -> bool:
        return self._cluster.has_control_routes

    async def relabel(self, spec: DeploymentSpec) -> None:
        self._note_secrets(spec)
        await self._cluster.relabel(spec)

    async def observe(self, name: str) -> ReplicaState | None:
        state = await self._cluster.observe(name)
        return None if state is None else _clean_state(self._redaction_of(name), state)

    async def note_ready(self, name: str, endpoints: Collection[str]) -> None:
        await self._cluster.note_ready(name, endpoints)

    async def stop_replica(self, name: str, endpoint: str) -> bool:
        return await self._cluster.stop_replica(name, endpoint)

    async def list_deployments(self) -> list[str]:
        return await self._cluster.list_deployments()

    async def logs(self, name: str, offset: int = 0) -> tuple[list[str], int]:
        lines, offset = await self._cluster.logs(name, offset)
        redaction = self._redaction_of(name)
        return [redaction.clean_output(line) for line in lines], offset

    async def delete(self, name: str) -> None:
        await self._cluster.delete(name)
        self._given.pop(name, None)
        self._redactions.pop(name, None)

    async def close(self) -> None:
        await self._cluster.close()

    def _note_secrets(self, spec: DeploymentSpec) -> None:
        values = tuple(spec.secrets.values())
        given = self._given[spec.name]
        if values and values not in given:
            given.append(values)
            self._redactions[spec.name] = self._redaction.knowing(
                value for earlier in given for value in earlier
            )

    def _redaction_of(self, name: str) -> Redaction:
        return self._redactions.get(name, self._redaction)


def _clean_problem(redaction: Redaction, problem: str | None) -> str | None:
    return None if problem is None else redaction.clean_output(problem)


def _clean_state(redaction: Redaction, state: ReplicaState) -> ReplicaState:
    if state.problem is None and not state.replicas:
        return state
    return replace(
        state,
        problem=_clean_problem(redaction, state.problem),
        replicas=tuple(_clean_state(redaction, one) for one in state.replicas),
    )
