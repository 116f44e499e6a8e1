"""Deletes artifacts that nobody needs any more, and what dead serializer jobs left.

    found in the store ──▶ needed ──(nobody needs it for the grace)──▶ doomed ──(deleted)──▶ forgotten
                            ▲  │
                            └──┘ touched: by every sweep for what submissions need, by whoever is about to use it

An artifact is doomed by one guarded UPDATE, so that a touch comes either before, and saves it, or after, and is
told to wait. Whoever dooms deletes; one that was not deleted within LEASE_S is taken over. A folder of a store
belongs to one database: the artifacts of another would look like nobody's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.errors import StoreUnreachable
from guanaco_server.artifacts import queries
from guanaco_server.artifacts.stores.store import ArtifactStore
from guanaco_server.database.database import Database
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.clock import Clock

LEASE_S = 600  # many times what deleting a dozen files takes
RETRY_S = 1.0
SETTLED_S = 60  # whoever touched an artifact has recorded by then that it needs it

NeededKeys = Callable[[datetime], Awaitable[set[str]]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GracePeriods:
    """The time between two sweeps, and how long unneeded things are kept, in seconds."""

    sweep_s: float = 600
    artifact_s: float = 7 * 86_400  # a redeploy within this time need not serialize again
    staging_s: float = 86_400  # an unfinished job's output, for another job to continue


class ArtifactCollector:
    """``needed_keys`` names the artifacts of all submissions but those that ended before a time."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        store: ArtifactStore,
        needed_keys: NeededKeys,
        graces: GracePeriods,
    ) -> None:
        self._database = database
        self._clock = clock
        self._store = store
        self._needed_keys = needed_keys
        self._graces = graces
        self._background = Background("artifact collector")

    async def start(self) -> None:
        self._background.start(self._run())

    async def stop(self) -> None:
        await self._background.stop()

    async def touch(self, session: AsyncSession, key: str) -> bool:
        """Keep an artifact for the grace period and return True, or return False if it is being deleted. Call it before you look for one."""
        return await queries.touch(session, key, self._clock.now())

    async def keep(self, key: str) -> None:
        """Touch an artifact; where it is on its way out, once it is gone and can be made again."""
        while not await self._database.write_unit(lambda session: self.touch(session, key)):
            await self._take_over(key)
            await asyncio.sleep(RETRY_S)

    async def keep_within(self, room_bytes: int, unneeded: Mapping[str, int]) -> None:
        """Delete those of these artifacts that are beyond the room, before their grace is over. ``unneeded`` are sizes by key, the first of which stay.

        An unmerged adapter's takes its base's along. What a submission needs, or somebody has just touched, stays.
        """
        async with self._database.read() as session:
            stored = await queries.stored(session, unneeded)
        beyond = []
        for key, size_bytes in unneeded.items():
            if key in stored:
                room_bytes -= size_bytes
                if room_bytes < 0:
                    beyond.append(key)
        if not beyond:
            return
        needed = await self._needed_keys(self._clock.now())
        for key in beyond:
            manifest = await self._store.find(key)
            base = manifest.adapter.base_key if manifest and manifest.adapter else None
            for one in filter(None, (base, key)):
                if one not in needed:
                    await self._collect(one, self._clock.now() - timedelta(seconds=SETTLED_S))

    async def sweep(self) -> None:
        """Look at everything once. This may be repeated, and run on several platforms at once."""
        await self._note_needed()
        await self._finish_abandoned()
        await self._collect_expired()
        for key in await self._store.discard_stale(self._graces.staging_s):
            logger.info("dropped what an unfinished job for artifact %s left", key)

    async def _run(self) -> None:
        while True:
            try:
                await self.sweep()
            except (StoreUnreachable, DBAPIError, OSError) as error:
                logger.warning("collecting artifacts failed, trying again later: %s", error)
            await asyncio.sleep(self._graces.sweep_s)

    async def _note_needed(self) -> None:
        published = set(await self._store.list_keys())
        async with self._database.read() as session:
            unmeasured = published - await queries.measured(session)
        manifests = [await self._store.find(key) for key in sorted(unmeasured)]
        sizes = {found.key: found.size_bytes for found in manifests if found is not None}
        now = self._clock.now()
        needed = await self._needed_keys(now - timedelta(seconds=self._graces.artifact_s))

        async def note(session: AsyncSession) -> None:
            await queries.note_sizes(session, sizes, now)
            await queries.touch_all(session, needed, now)

        await self._database.write_unit(note)

    async def _collect_expired(self) -> None:
        before = self._clock.now() - timedelta(seconds=self._graces.artifact_s)
        async with self._database.read() as session:
            expired = await queries.expired(session, before)
        for key in sorted(expired):
            await self._collect(key, before)

    async def _collect(self, key: str, needed_before: datetime) -> None:
        """Delete an artifact unless it was needed since then, or another platform deletes it."""
        at = self._clock.now()
        is_ours = await self._database.write_unit(
            lambda session: queries.claim_deletion(session, key, at, needed_before)
        )
        if is_ours:
            await self._delete(key, at)

    async def _finish_abandoned(self) -> None:
        async with self._database.read() as session:
            abandoned = await queries.abandoned(session, self._lease_began_before())
        for key in sorted(abandoned):
            await self._take_over(key)

    async def _take_over(self, key: str) -> None:
        """Delete an artifact over whose deletion another platform died."""
        at = self._clock.now()
        is_ours = await self._database.write_unit(
            lambda session: queries.take_over(session, key, at, self._lease_began_before())
        )
        if is_ours:
            await self._delete(key, at)

    async def _delete(self, key: str, doomed_at: datetime) -> None:
        await self._store.delete(key)
        size_bytes = await self._database.write_unit(
            lambda session: queries.remove(session, key, doomed_at)
        )
        logger.info("deleted artifact %s (%d bytes): nobody needs it any more", key, size_bytes)

    def _lease_began_before(self) -> datetime:
        return self._clock.now() - timedelta(seconds=LEASE_S)
