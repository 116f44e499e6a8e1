"""Counts how the runs of a campaign ended: served, or failed with which error. It is reported, and is no finding by itself.

A run may fail, for a Hub that lies is believed, and a serializer that is killed three times is given up. What fails with an
incident number is a finding of the auditor's: nobody has foreseen it.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from sqlalchemy import Engine, text

from guanaco.submissions import RolloutPhase, Status


def outcomes(engine: Engine) -> Counter[str]:
    with engine.connect() as tables:
        found = list(tables.execute(text("SELECT data FROM submission_events")).scalars())
    ends = (_end(json.loads(data) if isinstance(data, str) else data or {}) for data in found)
    return Counter(end for end in ends if end is not None)


def _end(data: dict[str, Any]) -> str | None:
    if data.get("rollout") in (RolloutPhase.DONE, RolloutPhase.FAILED):
        return f"redeploy: {data['rollout']}"
    if data.get("status") == Status.FAILED:
        return f"submission: {(data.get('failure') or {}).get('code', 'failed')}"
    return "submission: deployed" if data.get("status") == Status.DEPLOYED else None
