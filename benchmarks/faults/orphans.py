"""Finds what nobody owns outside the database: model servers without a deployment, objects in the bucket, processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

import psutil
from sqlalchemy import Engine, text

from benchmarks.faults.auditor import Finding
from benchmarks.faults.stage import descendants
from guanaco_server.artifacts.stores.s3_client import S3Config
from guanaco_server.artifacts.stores.store import KEY
from guanaco_server.deployments.versions import submission_of
from guanaco_server.formats.manifest import MANIFEST_NAME
from tests.fixtures.s3 import left_in

STOP_S = 45.0  # longer than the lifeline's grace
OURS = ("tests.fixtures.warm_start", "postgres", "rclone")  # the campaign's own


def orphaned_engines(engines: Iterable[psutil.Process], engine: Engine) -> list[Finding]:
    """Find model servers that no deployment requests, and those that are there twice."""
    with engine.connect() as tables:
        keys = tables.execute(text("SELECT submission_id FROM deployments")).scalars()
        wished = Counter(
            submission_of(key) for key in keys
        )  # all versions go by their model's name
    running = Counter(_served_name(process) for process in engines)
    return [
        Finding("orphaned processes", f"{count - wished[name]} model servers too many of {name}")
        for name, count in running.items()
        if count > wished[name]
    ]


def orphaned_objects(store: S3Config, engine: Engine) -> list[Finding]:
    """Artifacts that no row names, and objects that the collector would never find.

    Leftovers of an unfinished job or a killed trial are kept for a day, and found by the form of their key.
    """
    query = "SELECT key FROM artifacts UNION SELECT artifact_key FROM submissions WHERE artifact_key IS NOT NULL"
    with engine.connect() as tables:
        known = set(tables.execute(text(query)).scalars())
    objects = left_in(store)
    published = {
        name.split("/")[2]
        for name in objects
        if name.endswith(f"/{MANIFEST_NAME}") and "/artifacts/" in name
    }
    found = [Finding("orphaned objects", f"artifact {key}") for key in published - known]
    found += [
        Finding("orphaned objects", name)
        for name in objects
        if not KEY.fullmatch([*name.split("/"), "", ""][2])
    ]
    needed = "SELECT artifact_key FROM deployments"
    with engine.connect() as tables:
        missing = set(tables.execute(text(needed)).scalars()) - published
    return found + [
        Finding("lost submissions", f"artifact {key} is served and not stored") for key in missing
    ]


def orphaned_processes(within_s: float = STOP_S) -> list[Finding]:
    """Find what lives on after the platform was stopped."""
    deadline = time.monotonic() + within_s
    while left := [process for process in descendants() if not _is_ours(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return [
        Finding("orphaned processes", f"{one.pid} {' '.join(_words(one))[:200]}") for one in left
    ]


def _served_name(process: psutil.Process) -> str:
    words = _words(process)
    return words[words.index("--name") + 1] if "--name" in words else "?"


def _is_ours(process: psutil.Process) -> bool:
    return any(name in " ".join(_words(process)) for name in OURS)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
