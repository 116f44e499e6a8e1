"""A container's log, read on from where one was, without repeating or losing a line.

The API can be asked for lines since a second, and puts each line's nanosecond before it: what was read before
is recognized by its time, and among the lines of one time by their number. A kubelet writes the time in its node's
own zone (2026-11-22T02:28:07.123456789+02:00); here all times are in UTC.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime

from guanaco_server.clusters.kubernetes.api.client import POD, KubernetesApi, UnexpectedStatus
from guanaco_server.clusters.kubernetes.manifests.pods import CONTAINER
from guanaco_server.clusters.kubernetes.names import Json

SILENCE_S = 30.0  # then it is requested again: a connection may have died unnoticed
LINE_CHARS = 65_536  # the rest of a longer line is dropped


class LogReader:
    """Reads one pod's log. Each line is returned once, by one of the two methods."""

    def __init__(self, api: KubernetesApi, pod: Json) -> None:
        self.process = (pod["metadata"]["uid"], _restarts(pod))
        self._api = api
        self._path = f"{POD.path(api.namespace, pod['metadata']['name'])}/log"
        self._last = ""
        self._at_last = 0

    async def follow(self) -> AsyncGenerator[str, None]:
        """Yield lines until the container ends. ClusterUnreachable if the connection breaks."""
        unread = _Unread(self._last, self._at_last)
        query = {**self._query(), "follow": "true"}
        async with aclosing(self._api.stream(self._path, query, SILENCE_S)) as lines:
            async for line in lines:
                if (text := unread.take(line)) is not None:
                    self._last, self._at_last = unread.last, unread.at_last
                    yield text

    async def rest(self) -> list[str]:
        """Return the lines that are there now; none for a pod that is gone or has not begun."""
        try:
            output = await self._api.text("GET", self._path, self._query())
        except UnexpectedStatus:
            return []
        unread = _Unread(self._last, self._at_last)
        lines = [text for line in output.splitlines() if (text := unread.take(line)) is not None]
        if lines:
            self._last, self._at_last = unread.last, unread.at_last
        return lines

    def _query(self) -> dict[str, str]:
        since = f"{self._last[:19]}Z" if self._last else ""
        return {"container": CONTAINER, "timestamps": "true", "sinceTime": since}


class _Unread:
    def __init__(self, last: str, at_last: int) -> None:
        self.last, self.at_last = last, at_last
        self._read_until, self._to_skip = last, at_last

    def take(self, line: bytes) -> str | None:
        """Return the line's text, None if it was read before."""
        time, _, text = line.decode(errors="replace").partition(" ")
        time = _in_utc(time)
        if not time or time < self._read_until:
            return None
        if time == self._read_until and self._to_skip > 0:
            self._to_skip -= 1
            return None
        self.at_last = self.at_last + 1 if time == self.last else 1
        self.last = time
        return text[:LINE_CHARS]


def _in_utc(time: str) -> str:
    """Return the time in UTC, its fraction padded to nine digits: Go leaves zeros out. "" for what is no time."""
    second, zone = time[:19], time[19:].lstrip(".0123456789")
    fraction = time[20 : len(time) - len(zone)]
    try:
        moment = datetime.fromisoformat(second + zone).astimezone(UTC)
    except ValueError:  # the cluster's own words, such as "unable to retrieve container logs"
        return ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:0<9}"


def _restarts(pod: Json) -> int:
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return sum(int(status.get("restartCount", 0)) for status in statuses)
