"""Local copies of the cluster's objects: one list, then watches.

    list → watch from the list's version → (cut, timeout) watch from the last version seen
                                          → (410, that version is gone) list again

While the API is out of reach, the last known state is kept.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Mapping
from contextlib import aclosing

from guanaco.errors import ClusterRefused, ClusterUnreachable
from guanaco_server.clusters.kubernetes.api.client import (
    DEPLOYMENT,
    EVENT,
    GROUP_SET,
    JOB,
    POD,
    Kind,
    KubernetesApi,
    UnexpectedStatus,
)
from guanaco_server.clusters.kubernetes.names import NAME, OURS, POOLS, Json, label_value
from guanaco_server.clusters.kubernetes.status import PullFailures
from guanaco_server.runtime.background import Background
from guanaco_server.runtime.waiting import happens

WATCH_S = 60  # a connection that died unnoticed is noticed after this
SLACK_S = 10
FIRST_DELAY_S, LONGEST_DELAY_S = 0.2, 15.0

logger = logging.getLogger(__name__)


class ChangeSignal:
    """Wakes everyone who waits for a change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        woken, self._event = self._event, asyncio.Event()
        woken.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait for the next change, at most ``timeout_s``."""
        await happens(timeout_s, self._event)


class Informer:
    """A copy of the objects of one kind, by name. ``selectors`` are the API's (labelSelector, fieldSelector)."""

    def __init__(
        self, api: KubernetesApi, kind: Kind, changed: ChangeSignal, **selectors: str
    ) -> None:
        self.objects: dict[str, Json] = {}
        self._api = api
        self.kind = kind
        self._changed = changed
        self._selectors = selectors
        self._version = ""

    async def list(self) -> None:
        """Read the whole list."""
        found = await self._api.list(self.kind, **self._selectors)
        self._version = found["metadata"]["resourceVersion"]
        # A list leaves out what is the same in each.
        about = {"apiVersion": self.kind.api_version, "kind": self.kind.name}
        self.objects = {item["metadata"]["name"]: about | item for item in found["items"]}
        self._changed.notify()

    async def follow(self) -> None:
        """Keep ``objects`` up to date for ever, from where ``list`` left off."""
        delay_s = FIRST_DELAY_S
        while True:
            try:
                if not self._version:
                    await self.list()
                await self._watch()
                delay_s = FIRST_DELAY_S
            except UnexpectedStatus as answered:
                self._version = ""
                logger.info("listing %s again: %s", self.kind.plural, answered)
                await asyncio.sleep(FIRST_DELAY_S)  # an API that always says so is not hurried
            except (ClusterUnreachable, ClusterRefused) as error:
                logger.warning("watching %s: %s", self.kind.plural, error)
                await asyncio.sleep(delay_s * (1 + random.random()))  # noqa: S311 - against a herd
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def note(self, seen: Json) -> None:
        """Take an object that a call returned, before the watch reports it. An object older than the watch is ignored."""
        if _version(seen) <= int(self._version or 0):
            return
        known = self.objects.get(seen["metadata"]["name"])
        if known is None or _version(known) < _version(seen):
            self.objects[seen["metadata"]["name"]] = seen
            self._changed.notify()

    async def _watch(self) -> None:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_S),
            **self._selectors,
        }
        path = self.kind.path(self._api.namespace)
        async with aclosing(self._api.stream(path, query, WATCH_S + SLACK_S)) as lines:
            async for line in lines:
                if line:
                    self._take(_parsed(line))

    def _take(self, event: Json) -> None:
        seen = event["object"]
        if event["type"] == "ERROR":
            raise UnexpectedStatus(int(seen.get("code", 500)), str(seen.get("message", "")))
        if event["type"] == "DELETED":
            known = self.objects.get(seen["metadata"]["name"])
            if known and known["metadata"]["uid"] == seen["metadata"]["uid"]:
                del self.objects[seen["metadata"]["name"]]
        elif event["type"] != "BOOKMARK":
            self.note(seen)
        self._version = seen["metadata"]["resourceVersion"]
        self._changed.notify()


def _version(found: Json) -> int:
    return int(found["metadata"]["resourceVersion"])


def _parsed(line: bytes) -> Json:
    try:
        event: Json = json.loads(line)
    except ValueError:
        raise ClusterUnreachable("The Kubernetes API broke off in the middle of a line.") from None
    return event


LOOK_S = 2.0  # without news that long, ask: the watch may be cut
GONE_S = 15.0


class Informers:
    def __init__(self, api: KubernetesApi, *, has_pools: bool = False) -> None:
        self.changed = ChangeSignal()
        self.pulls = PullFailures()
        self._api = api
        self._informers = {
            DEPLOYMENT: Informer(api, DEPLOYMENT, self.changed, labelSelector=OURS),
            JOB: Informer(api, JOB, self.changed, labelSelector=OURS),
            POD: Informer(api, POD, self.changed, labelSelector=OURS),
            EVENT: Informer(api, EVENT, self.changed, fieldSelector="type=Warning"),
        }
        waiting = Informer(api, POD, self.changed, labelSelector=POOLS)
        self._waiting = waiting if has_pools else None
        self.has_groups = False
        self._watches: list[Background] = []

    async def start(self) -> None:
        """List everything, then watch it in the background."""
        waiting = [self._waiting] if self._waiting else []
        await asyncio.gather(
            *(mirror.list() for mirror in (*self._informers.values(), *waiting)),
            self._find_groups(),
        )
        for mirror in (*self._informers.values(), *waiting):
            watch = Background(f"watch of {mirror.kind.plural}")
            watch.start(mirror.follow())
            self._watches.append(watch)

    async def _find_groups(self) -> None:
        """Watch LeaderWorkerSets too, where they are installed and the platform may use them."""
        groups = Informer(self._api, GROUP_SET, self.changed, labelSelector=OURS)
        try:
            await groups.list()
        except (UnexpectedStatus, ClusterRefused) as answered:
            logger.info("models over several machines cannot be served here: %s", answered)
            return
        self._informers[GROUP_SET] = groups
        self.has_groups = True

    async def stop(self) -> None:
        await asyncio.gather(*(watch.stop() for watch in self._watches))
        self._watches.clear()

    def all(self, kind: Kind) -> Mapping[str, Json]:
        informer = self._informers.get(kind)
        return informer.objects if informer else {}

    def pods(self, name: str) -> list[Json]:
        """Return the pods of the job or model server that the platform knows by this name."""
        wanted = label_value(name)
        found = self.all(POD).values()
        return [pod for pod in found if pod["metadata"].get("labels", {}).get(NAME) == wanted]

    def waiting_pods(self) -> list[Json]:
        """Return the pods that wait in pools."""
        return list(self._waiting.objects.values()) if self._waiting else []

    def note(self, kind: Kind, seen: Json) -> None:
        self._informers[kind].note(seen)

    def note_claimed(self, pod: Json) -> None:
        """Take a pod that was claimed from its pool, before the watches report it."""
        if self._waiting:
            self._waiting.objects.pop(pod["metadata"]["name"], None)
        self.note(POD, pod)

    def present(self, pod: Json) -> Json | None:
        """Return this pod as it is now; None if it is gone."""
        found = self.all(POD).get(pod["metadata"]["name"])
        is_same = found is not None and found["metadata"]["uid"] == pod["metadata"]["uid"]
        return found if is_same else None

    async def until_gone(self, kind: Kind, name: str, uid: str) -> None:
        """Wait until this object is gone; ClusterUnreachable if it does not go."""
        deadline = time.monotonic() + GONE_S
        while self._uid(kind, name) == uid:
            if time.monotonic() > deadline:
                raise ClusterUnreachable(f"{kind.name} {name} does not go away.")
            woken = asyncio.create_task(self.changed.wait(LOOK_S))
            await woken
            if self._uid(kind, name) == uid and not await self._is_there(kind, name, uid):
                return

    async def _is_there(self, kind: Kind, name: str, uid: str) -> bool:
        found = await self._api.get(kind, name)
        return found is not None and found["metadata"]["uid"] == uid

    def _uid(self, kind: Kind, name: str) -> str:
        found = self.all(kind).get(name)
        return str(found["metadata"]["uid"]) if found else ""
