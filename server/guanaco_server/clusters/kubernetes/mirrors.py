"""What the cluster has of ours, kept up to date by watches, and waiting for it to change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from guanaco.errors import ClusterUnreachable
from guanaco_server.clusters.kubernetes.api import (
    DEPLOYMENT,
    EVENT,
    JOB,
    POD,
    Kind,
    KubernetesApi,
)
from guanaco_server.clusters.kubernetes.names import NAME, OURS, Json, label_value
from guanaco_server.clusters.kubernetes.watching import Bell, Mirror
from guanaco_server.runtime.background import Background

LOOK_S = 2.0  # without news that long, ask: the watch may be cut
GONE_S = 90.0


class Mirrors:
    def __init__(self, api: KubernetesApi) -> None:
        self.bell = Bell()
        self._api = api
        self._mirrors = {
            DEPLOYMENT: Mirror(api, DEPLOYMENT, self.bell, labelSelector=OURS),
            JOB: Mirror(api, JOB, self.bell, labelSelector=OURS),
            POD: Mirror(api, POD, self.bell, labelSelector=OURS),
            EVENT: Mirror(api, EVENT, self.bell, fieldSelector="type=Warning"),
        }
        self._watches: list[Background] = []

    async def start(self) -> None:
        """Everything is listed when this returns, and watched from then on."""
        await asyncio.gather(*(mirror.list() for mirror in self._mirrors.values()))
        for kind, mirror in self._mirrors.items():
            watch = Background(f"watch of {kind.plural}")
            watch.start(mirror.follow())
            self._watches.append(watch)

    async def stop(self) -> None:
        await asyncio.gather(*(watch.stop() for watch in self._watches))
        self._watches.clear()

    def all(self, kind: Kind) -> Mapping[str, Json]:
        return self._mirrors[kind].objects

    def pods(self, name: str) -> list[Json]:
        """Of what the platform calls so."""
        wanted = label_value(name)
        found = self.all(POD).values()
        return [pod for pod in found if pod["metadata"].get("labels", {}).get(NAME) == wanted]

    def note(self, kind: Kind, seen: Json) -> None:
        self._mirrors[kind].note(seen)

    async def until_gone(self, kind: Kind, name: str) -> None:
        """ClusterUnreachable where it will not go."""
        uid = self._uid(kind, name)
        deadline = time.monotonic() + GONE_S
        while uid and self._uid(kind, name) == uid:
            if time.monotonic() > deadline:
                raise ClusterUnreachable(f"{kind.name} {name} does not go away.")
            rung = asyncio.create_task(self.bell.wait(LOOK_S))
            await rung
            if self._uid(kind, name) == uid and not await self._is_there(kind, name, uid):
                return

    async def _is_there(self, kind: Kind, name: str, uid: str) -> bool:
        found = await self._api.get(kind, name)
        return found is not None and found["metadata"]["uid"] == uid

    def _uid(self, kind: Kind, name: str) -> str:
        found = self.all(kind).get(name)
        return str(found["metadata"]["uid"]) if found else ""
