"""Objects of one kind, kept as the cluster has them: listed once, then watched.

    list → watch from the list's version → (cut, timeout) watch from the last version seen
                                          → (410, that version is forgotten) list again

While the API is out of reach, what was last known stands.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from contextlib import aclosing, suppress

from guanaco.errors import ClusterRefused, ClusterUnreachable
from guanaco_server.clusters.kubernetes.api import Answered, Kind, KubernetesApi
from guanaco_server.clusters.kubernetes.names import Json

WATCH_S = 60  # a connection that died unnoticed is noticed after this
SLACK_S = 10
FIRST_DELAY_S, LONGEST_DELAY_S = 0.2, 15.0

logger = logging.getLogger(__name__)


class Bell:
    """Rung at each change; whoever waits looks again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        rung, self._event = self._event, asyncio.Event()
        rung.set()

    async def wait(self, timeout_s: float) -> None:
        """Until the next change, or that long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout_s)


class Mirror:
    """``objects`` by name. ``selectors`` are the API's (labelSelector, fieldSelector)."""

    def __init__(self, api: KubernetesApi, kind: Kind, bell: Bell, **selectors: str) -> None:
        self.objects: dict[str, Json] = {}
        self._api = api
        self._kind = kind
        self._bell = bell
        self._selectors = selectors
        self._version = ""

    async def list(self) -> None:
        """As it is now."""
        found = await self._api.list(self._kind, **self._selectors)
        self._version = found["metadata"]["resourceVersion"]
        # A list leaves out what is the same in each.
        about = {"apiVersion": self._kind.api_version, "kind": self._kind.name}
        self.objects = {item["metadata"]["name"]: about | item for item in found["items"]}
        self._bell.ring()

    async def follow(self) -> None:
        """For ever, from where ``list`` left off."""
        delay_s = FIRST_DELAY_S
        while True:
            try:
                if not self._version:
                    await self.list()
                await self._watch()
                delay_s = FIRST_DELAY_S
            except Answered as answered:
                self._version = ""
                logger.info("listing %s again: %s", self._kind.plural, answered)
            except (ClusterUnreachable, ClusterRefused) as error:
                logger.warning("watching %s: %s", self._kind.plural, error)
                await asyncio.sleep(delay_s * (1 + random.random()))  # noqa: S311 - against a herd
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def note(self, seen: Json) -> None:
        """What a call answered is known before the watch tells it; what is older than the watch, it has told."""
        if _version(seen) <= int(self._version or 0):
            return
        known = self.objects.get(seen["metadata"]["name"])
        if known is None or _version(known) < _version(seen):
            self.objects[seen["metadata"]["name"]] = seen
            self._bell.ring()

    async def _watch(self) -> None:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_S),
            **self._selectors,
        }
        path = self._kind.path(self._api.namespace)
        async with aclosing(self._api.stream(path, query, WATCH_S + SLACK_S)) as lines:
            async for line in lines:
                if line:
                    self._take(_parsed(line))

    def _take(self, event: Json) -> None:
        seen = event["object"]
        if event["type"] == "ERROR":
            raise Answered(int(seen.get("code", 500)), str(seen.get("message", "")))
        if event["type"] == "DELETED":
            known = self.objects.get(seen["metadata"]["name"])
            if known and known["metadata"]["uid"] == seen["metadata"]["uid"]:
                del self.objects[seen["metadata"]["name"]]
        elif event["type"] != "BOOKMARK":
            self.note(seen)
        self._version = seen["metadata"]["resourceVersion"]
        self._bell.ring()


def _version(found: Json) -> int:
    return int(found["metadata"]["resourceVersion"])


def _parsed(line: bytes) -> Json:
    try:
        event: Json = json.loads(line)
    except ValueError:
        raise ClusterUnreachable("The Kubernetes API broke off in the middle of a line.") from None
    return event
