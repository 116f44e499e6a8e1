"""Versions beside those that serve: a redeploy brings one up, lets it take conversations, and lets it take over.

    (ready) ── open ──▶ takes a share of the conversations that begin ── take_over ──▶ serves; the other drains
                                     └── drain ──▶ takes none, and finishes its replies

Rollouts write all of this within their own transactions (submissions/rollouts/). Which conversation talks to which version is
kept in memory, where routing asks for it.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco_server.database.database import Database, after_commit
from guanaco_server.deployments import queries
from guanaco_server.deployments.engines import assignment
from guanaco_server.deployments.model_servers.model_server import ModelServer, ModelServerFault
from guanaco_server.deployments.service import DeploymentService
from guanaco_server.deployments.tables import DeploymentRow, Phase
from guanaco_server.deployments.versions import (
    Arm,
    ConversationStart,
    ServedVersion,
    VersionBeside,
    submission_of,
)
from guanaco_server.runtime.clock import Clock


class VersionsBeside:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        model_server: ModelServer,
        deployments: DeploymentService,
    ) -> None:
        self._database = database
        self._clock = clock
        self._model_server = model_server
        self._deployments = deployments
        self._beside: dict[str, VersionBeside] = {}

    async def open(self, session: AsyncSession, key: str, share: float, since: datetime) -> None:
        """Let a version beside take this share of the conversations that begin from now on."""
        await queries.note(session, key, share=share, takes_since=since)

    async def take_over(self, session: AsyncSession, key: str) -> tuple[str, ...]:
        """Let a version beside serve in the place of the other, which drains, and return its endpoints.

        Within the caller's transaction; afterwards the caller calls ``note_replicas``.
        """
        await assignment.lock(session)
        fresh = await queries.locked(session, key)
        served = await queries.locked(session, submission_of(key))
        assert fresh is not None, "the caller has seen it ready, and holds its submission"
        now = self._clock.now()
        for name in (key, submission_of(key)):
            await self._deployments.meter.end(session, name, now)
        if served is None:
            served = DeploymentRow(submission_id=submission_of(key), wanted_replicas=1)
            queries.copy_server(fresh, served)
            session.add(served)
            await session.delete(fresh)
        else:
            served.wanted_replicas = max(served.wanted_replicas, fresh.wanted_replicas)
            had_server = served.phase.has_server
            queries.swap_servers(fresh, served)
            fresh.phase, fresh.updated_at = Phase.DRAINING, now
            if not had_server:
                await session.delete(fresh)
        served.updated_at = now
        await self._deployments.meter_replicas(session, served)
        await self._deployments.divide_costs(session, fresh)  # those that it has left
        return tuple(served.endpoints)

    async def drain(self, session: AsyncSession, key: str) -> None:
        """Let a version beside take no more turns and finish the replies that it has begun, within the caller's transaction."""
        await assignment.lock(session)
        row = await queries.locked(session, key)
        if row is not None and row.phase is Phase.READY:
            row.phase, row.updated_at = Phase.DRAINING, self._clock.now()
            row.share = row.takes_since = None
        else:
            await self._deployments.withdraw(session, key)
        after_commit(session, partial(self._deployments.note_replicas, key, ()))

    async def draining(self) -> list[tuple[str, datetime]]:
        """Return the key of each deployment that finishes its replies, and since when."""
        rows = await self._deployments.list_wishes()
        return [(row.submission_id, row.updated_at) for row in rows if row.is_draining]

    async def withdraw(self, session: AsyncSession, submission_id: str) -> None:
        """Withdraw every version beside the submission's own, within the caller's transaction."""
        for key in await queries.keys_beside(session, submission_id):
            await self._deployments.withdraw(session, key)

    async def served_within(
        self, session: AsyncSession, submission_id: str
    ) -> ServedVersion | None:
        """Return how the submission is served now, within the caller's transaction."""
        row = await queries.by_submission(session, submission_id)
        return ServedVersion.model_validate(row, from_attributes=True) if row else None

    async def can_take_over(self, key: str) -> bool:
        """Return whether the version beside answers with as many replicas as the version that serves."""
        fresh, served = (
            await self._deployments.find(key),
            await self._deployments.find(submission_of(key)),
        )
        if fresh is None or fresh.phase is not Phase.READY or not fresh.endpoints:
            return False
        return served is None or len(fresh.endpoints) >= min(
            len(served.endpoints), fresh.wanted_replicas
        )

    async def is_idle(self, key: str) -> bool:
        """Return whether none of its servers works on a request. One that does not answer may still do so.

        A server that others use is not stopped when this version goes, so nothing of it has to end before.
        """
        async with self._database.read() as session:
            row = await queries.by_submission(session, key)
            is_shared = row is not None and bool(await queries.others_of_engine(session, row))
        if row is None or is_shared:
            return True
        try:
            loads = await asyncio.gather(*(self._model_server.load(at) for at in row.endpoints))
        except ModelServerFault:
            return False
        return not any(load.running or load.waiting for load in loads)

    async def refresh(self) -> None:
        """Read which versions beside take conversations now."""
        async with self._database.read() as session:
            rows = await queries.taking(session)
        self._beside = {
            row.owner: VersionBeside(row.submission_id, row.share, row.takes_since)
            for row in rows
            if row.share is not None and row.takes_since is not None
        }

    def arm_of(self, submission_id: str, talk: ConversationStart | None) -> Arm | None:
        """Return which version of a canary this conversation tells of; None without one."""
        beside = self._beside.get(submission_id)
        return beside.arm_of(talk) if beside else None

    def version_for(self, submission_id: str, talk: ConversationStart | None) -> str:
        """Return the key of the version that this conversation talks to now: the one beside only while it answers."""
        beside = self._beside.get(submission_id)
        if beside is not None and beside.takes(talk) and self._deployments.replicas(beside.key):
            return beside.key
        return submission_id
