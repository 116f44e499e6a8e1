"""Fields that an operator adds to the pods of jobs and model servers: where they run, and how their images are pulled.

Objects are merged, lists are added to, anything else is replaced. What makes a pod ours, and what confines it (its
containers, volumes and security context), cannot be set here.
"""

from __future__ import annotations

from collections.abc import Mapping

from guanaco.errors import InvalidSettings
from guanaco_server.clusters.kubernetes.names import Json

ALLOWED = frozenset(
    {
        "affinity",
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "imagePullSecrets",
        "nodeSelector",
        "preemptionPolicy",
        "resourceClaims",
        "runtimeClassName",
        "schedulerName",
        "schedulingGates",
        "tolerations",
        "topologySpreadConstraints",
    }
)


def checked_fields(setting: str, fields: Json) -> Json:
    """Return the fields. InvalidSettings for one that is not the operator's to set."""
    if wrong := sorted(fields.keys() - ALLOWED):
        raise InvalidSettings(
            f"{setting} cannot set {', '.join(wrong)} of a pod.",
            hint=f"It sets {', '.join(sorted(ALLOWED))}.",
        )
    return fields


def with_fields(pod: Json, fields: Mapping[str, object]) -> Json:
    """Return the pod's spec with the operator's fields."""
    merged = dict(pod)
    for name, value in fields.items():
        present = merged.get(name)
        if isinstance(present, dict) and isinstance(value, Mapping):
            merged[name] = with_fields(present, value)
        elif isinstance(present, list) and isinstance(value, list):
            merged[name] = [*present, *value]
        else:
            merged[name] = value
    return merged
