"""Names and labels of our objects. A label holds at most 63 characters of few kinds, so annotations hold the full names."""

from __future__ import annotations

import hashlib
import re
from typing import Any

Json = dict[str, Any]

MANAGER = "guanaco"  # the field manager of everything that we apply
PLACE_MANAGER = (
    "guanaco-place"  # of pods' preferences too, which a version that knows none so does not remove
)
MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
NAME = "guanaco.dev/name"
SUBMISSION = "guanaco.dev/submission"
WORKER = "guanaco.dev/worker"
SPEC = "guanaco.dev/spec"
QUEUE = "kueue.x-k8s.io/queue-name"
QUEUE_GATE = "kueue.x-k8s.io/admission"
GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
LEADER = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
OURS = f"{MANAGED_BY}={MANAGER}"
# A pool's pod that waits is managed by POOL_MANAGER, so that a version that knows no pools does not see it.
POOL_MANAGER = "guanaco-pool"
POOLS = f"{MANAGED_BY}={POOL_MANAGER}"
POOL = "guanaco.dev/pool"
FROM_POOL = "guanaco.dev/from-pool"  # stays when the pod is claimed
WAITED = "guanaco.dev/waited-since"
CLAIMED_AT = "guanaco.dev/claimed-at"
ORDERED = "guanaco.dev/ordered"
ASKED_REPLICAS = "guanaco.dev/replicas"
MAX_CHARS = 63
MAX_GROUP_SET_CHARS = 46  # beside "-", a number of five digits, "-" and a hash of ten characters

_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def object_name(name: str) -> str:
    """Return the name itself if every kind of object allows it, else a unique shortened one."""
    if _DNS_LABEL.fullmatch(name):
        return name
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return _shortened(slug if slug[:1].isalpha() else f"x-{slug}".rstrip("-"), name)


def group_set_name(name: str) -> str:
    """Do as ``object_name`` for a LeaderWorkerSet: pods' labels hold its StatefulSets' names with a number and a hash."""
    short = object_name(name)
    return (
        short if len(short) <= MAX_GROUP_SET_CHARS else _shortened(short, name, MAX_GROUP_SET_CHARS)
    )


def label_value(text: str) -> str:
    """Return the text itself if a label can hold it, else a unique shortened one."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    return _shortened(re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.") or "x", text)


def labels(name: str, submission_id: str, component: str) -> dict[str, str]:
    """Return the labels of each of our objects."""
    return {
        MANAGED_BY: MANAGER,
        COMPONENT: component,
        NAME: label_value(name),
        **({SUBMISSION: label_value(submission_id)} if submission_id else {}),
    }


def annotated(name: str, submission_id: str) -> dict[str, str]:
    return {NAME: name, **({SUBMISSION: submission_id} if submission_id else {})}


def full_name(found: Json) -> str:
    """Return the platform's name of this object."""
    return str(found["metadata"].get("annotations", {}).get(NAME, found["metadata"]["name"]))


def owned_by(owner: Json) -> list[Json]:
    """Owner references: deleting the owner deletes what carries them, in the background, so none blocks it."""
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
    ]


def _shortened(slug: str, text: str, chars: int = MAX_CHARS) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{slug[: chars - 9].rstrip('-_.')}-{digest}"
