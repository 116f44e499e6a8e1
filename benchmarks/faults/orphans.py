"""Finds what nobody owns outside the database: model servers without a deployment, objects in the bucket, processes."""

from __future__ import annotations

import time
from collections import Counter

import psutil
from sqlalchemy import Engine, text

from benchmarks.faults.auditor import Finding
from benchmarks.faults.stage import Stage, descendants
from tests.fixtures.s3 import left_in

STOP_S = 45.0  # longer than the lifeline's grace
OURS = ("tests.fixtures.warm_start", "postgres", "rclone")  # the campaign's own


def orphaned_engines(stage: Stage, engine: Engine) -> list[Finding]:
    """Model servers that no deployment wishes for, and those that are there twice."""
    query = "SELECT coalesce(server, submission_id) FROM deployments"
    with engine.connect() as tables:
        wished = Counter(tables.execute(text(query)).scalars())
    running = Counter(_served_name(process) for process in stage.engines())
    return [
        Finding("orphaned processes", f"{count - wished[name]} model servers too many of {name}")
        for name, count in running.items()
        if count > wished[name]
    ]


def orphaned_objects(stage: Stage, engine: Engine) -> list[Finding]:
    """Objects of artifacts that no row names. What an unfinished job left in staging is kept for a day, for the next one."""
    query = "SELECT key FROM artifacts UNION SELECT artifact_key FROM submissions WHERE artifact_key IS NOT NULL"
    with engine.connect() as tables:
        known = set(tables.execute(text(query)).scalars())
    objects = left_in(stage.store)
    published = {name.split("/")[2] for name in objects if name.startswith("models/artifacts/")}
    found = [Finding("orphaned objects", f"artifact {key}") for key in published - known]
    needed = "SELECT artifact_key FROM deployments"
    with engine.connect() as tables:
        missing = set(tables.execute(text(needed)).scalars()) - published
    return found + [
        Finding("lost submissions", f"artifact {key} is served and not stored") for key in missing
    ]


def orphaned_processes() -> list[Finding]:
    """What lives on after the platform was stopped."""
    deadline = time.monotonic() + STOP_S
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
