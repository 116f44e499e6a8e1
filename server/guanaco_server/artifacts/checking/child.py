"""The checking process: reads one repo's configs and headers after another, and tells what the check found.

    parent (process.py)                              this process
    {"check": {…}, "cpu_s": 30}
                                                     {"read": 7, "repo": …, "path": …, "start": 0, "length": 65536}
    {"of": 7, "bytes": n} and n bytes
                                                     {"resolve": 8, "repo": …, "revision": null}
    {"of": 8, "snapshot": {…}}
                                                     {"checked": {…}}, {"refused": {"error": …, "detail": …, "hint": …}}
    {"read": "config.json", "bytes": n, "cpu_s": 30} and n bytes
                                                     {"config": {…}}, {"refused": …}

Each message is JSON after its length. What is read of the Hub, the parent reads: this process has no network, no file and
no secret, and strangers' JSON never gets into the platform's own process, where a file of 10 MB held all else up for a
second. The process's own timer ends it when a check takes more CPU time than it may.
"""

from __future__ import annotations

import asyncio
import math
import os
import selectors
import signal
import sys
from typing import Any

import msgspec

from guanaco.errors import CorruptConfig, GuanacoError
from guanaco.submissions import SubmissionKind
from guanaco_server.artifacts.checking.checks import CheckLimits, check_repo
from guanaco_server.artifacts.checking.repo_json import parse_object
from guanaco_server.artifacts.hub.hub import Hub, RepoSnapshot
from guanaco_server.confinement.confined import confine_pipes
from guanaco_server.confinement.frames import read_bytes, receive, send

MAX_NAMES = 1_024
MAX_LEVELS = 6  # text_config, quantization_config, config_groups, one, its weights, a list
MAX_ENTRIES = 512  # more than a model has layers
MAX_CHARS = 256
MEMORY_BYTES = 1_000_000_000  # 32 MB of headers, and one of 10 MB that is malicious, take 600 MB

Json = dict[str, Any]


class _Input:
    """The pipe from the parent, read without a buffer: what select() sees is all that there is."""

    def read(self, count: int) -> bytes:
        pieces = []
        while count and (piece := os.read(sys.stdin.fileno(), count)):
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)


class ParentsHub:
    """The Hub, as the parent reads it for this process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._input: Any = _Input()
        self._asked: dict[int, asyncio.Future[Json]] = {}
        self._count = 0
        loop.add_reader(sys.stdin.fileno(), self._take)

    def with_token(self, token: str | None) -> Hub:
        raise NotImplementedError("the parent has chosen")

    async def resolve(self, repo: str, revision: str | None) -> RepoSnapshot:
        answer = await self._ask({"repo": repo, "revision": revision}, "resolve")
        return msgspec.convert(answer["snapshot"], RepoSnapshot)

    async def read(self, snapshot: RepoSnapshot, path: str, start: int, length: int) -> bytes:
        wanted = {"repo": snapshot.repo, "path": path, "start": start, "length": length}
        data: bytes = (await self._ask(wanted, "read"))["data"]
        return data

    async def _ask(self, content: Json, what: str) -> Json:
        self._count += 1
        answer = self._asked[self._count] = self._loop.create_future()
        send(sys.stdout.buffer, content | {what: self._count})
        given: Json = await answer
        return given

    def _take(self) -> None:
        try:
            answer = receive(self._input)
            data = read_bytes(self._input, answer.get("bytes", 0))
        except ValueError:
            os._exit(0)  # the parent needs no answer any more
        self._asked.pop(answer["of"]).set_result(answer | {"data": data})


def read_config(path: str, data: bytes) -> Json:
    """Read an artifact's config and leave out what is too large to be one of the figures that it is read for."""
    try:
        content = parse_object(path, data)
    except CorruptConfig as error:
        return {"refused": error.to_wire()}
    return {
        "config": {name: _small(content[name], MAX_LEVELS) for name in list(content)[:MAX_NAMES]}
    }


def _small(content: Any, levels: int) -> Any:
    """Return the content without long texts, long lists, deep objects and huge numbers; None stands for each of them."""
    if isinstance(content, str):
        return content if len(content) <= MAX_CHARS else None
    if isinstance(content, int):
        return content if abs(content) < 2**63 else None
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if not isinstance(content, (dict, list)):
        return content
    if len(content) > MAX_ENTRIES or not levels:
        return None
    if isinstance(content, list):
        return [_small(each, levels - 1) for each in content]
    return {
        name: _small(each, levels - 1)
        for name, each in content.items()
        if isinstance(name, str) and len(name) <= MAX_CHARS
    }


async def _check(hub: ParentsHub, asked: Json) -> Json:
    try:
        checked = await check_repo(
            hub,
            msgspec.convert(asked["snapshot"], RepoSnapshot),
            CheckLimits(**asked["limits"]),
            asked["base_commit"],
            SubmissionKind(asked["kind"]),
        )
    except GuanacoError as error:
        return {"refused": error.to_wire()}
    except RecursionError:
        return {"refused": CorruptConfig("A file of the repo is nested too deeply.").to_wire()}
    return {"checked": msgspec.to_builtins(checked)}


def main() -> None:
    """Check until the parent has gone."""
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())  # epoll is no call that computes
    source: Any = _Input()
    confine_pipes(MEMORY_BYTES)
    while True:
        try:
            asked = receive(source)
        except ValueError:
            return
        signal.setitimer(signal.ITIMER_PROF, asked["cpu_s"])  # its signal ends this process
        try:
            if "read" in asked:
                answer = read_config(asked["read"], read_bytes(source, asked["bytes"]))
            else:
                answer = loop.run_until_complete(_check(ParentsHub(loop), asked["check"]))
        except MemoryError:
            os._exit(1)
        loop.remove_reader(sys.stdin.fileno())
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(sys.stdout.buffer, answer)


if __name__ == "__main__":
    main()
