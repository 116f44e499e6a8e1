"""Writes API requests that schemathesis makes of an OpenAPI document: the document in, JSON lines out.

Runs in an environment of its own. No request is written twice. Half of the requests fit the document and half do not, where an operation has anything
that can be wrong. Path parameters are left as {name} in half of them, for the caller to fill in with ids that exist.

    python requests_peer.py COUNT SEED SECONDS <openapi.json >requests.jsonl
"""

from __future__ import annotations

import base64
import json
import sys
import time
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisException, Unsatisfiable
from schemathesis import GenerationMode

HAS_BODY = frozenset(("post", "put", "patch"))


def main() -> None:
    count, start, seconds = (int(text) for text in sys.argv[1:])
    schema = schemathesis.openapi.from_dict(json.load(sys.stdin))
    operations = [found.ok() for found in schema.get_all_operations()]
    deadline, turn = time.monotonic() + seconds, 0
    exhausted: set[str] = set()  # operations of which a turn made nothing new
    written: set[str] = set()
    while len(written) < count and time.monotonic() < deadline:
        before = len(written)
        for operation in operations:
            if time.monotonic() > deadline:
                break
            most = min(8, count - len(written))
            found = _write_some(operation, start + turn, most, deadline, written)
            if turn > 1 and not found:
                exhausted.add(operation.label)
        operations = [one for one in operations if one.label not in exhausted]
        if len(written) == before and turn > 1:
            break
        turn += 1


def _write_some(operation: Any, number: int, count: int, deadline: float, known: set[str]) -> int:
    """Write at most ``count`` requests that are not ``known``, and add them. Return how many."""
    can_be_wrong = bool(operation.body) or bool(operation.query)
    mode = GenerationMode.NEGATIVE if can_be_wrong and number % 2 else GenerationMode.POSITIVE
    written = 0

    @seed(number)
    @settings(
        max_examples=max(1, count),
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def write(case: Any) -> None:
        nonlocal written
        if written >= count or time.monotonic() > deadline:
            return
        if written % 2 and case.path_parameters:
            case.path_parameters = {name: f"@@{name}@@" for name in case.path_parameters}
        arguments = case.as_transport_kwargs(base_url="http://guanaco")
        wanted = ("method", "url", "headers", "params", "data", "json", "files")
        made = requests.Request(**{name: arguments[name] for name in wanted if name in arguments})
        try:
            prepared = made.prepare()
        except (ValueError, requests.exceptions.RequestException):
            return
        body: Any = prepared.body or b""
        line = json.dumps(
            {
                "operation": operation.label,
                "method": prepared.method,
                "path": prepared.path_url.replace("%40%40", "@@"),
                "type": prepared.headers.get("Content-Type"),
                "body": base64.b64encode(body.encode() if isinstance(body, str) else body).decode(),
            }
        )
        if line in known:
            return
        known.add(line)
        print(line)
        written += 1

    try:
        write()
    except (Unsatisfiable, HypothesisException):
        return written
    return written


if __name__ == "__main__":
    main()
