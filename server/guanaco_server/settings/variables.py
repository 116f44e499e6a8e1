"""Every ``GUANACO_*`` variable that may be in the environment of a start without being a setting, and why."""

from __future__ import annotations

import re

PREFIX = "GUANACO_"
CONFIG = "GUANACO_CONFIG"

OTHER_VARIABLES = {
    CONFIG: "names the TOML file of settings",
    # The CLI and the SDK, which may share a shell with a platform
    "GUANACO_URL": "the server that the CLI and the SDK talk to",
    "GUANACO_API_KEY": "the key that they send",
    "GUANACO_PROFILE": "the file in which `guanaco login` keeps both",
    "GUANACO_DEBUG": "makes the CLI show tracebacks",
    # Passed by the platform to the processes that it starts
    "GUANACO_PROCESS": "marks a process of the local cluster, so that a restart finds it",
    "GUANACO_LIFELINE": "the file by which a model server sees that its platform died",
    "GUANACO_RUN": "the run of a deployment",
    "GUANACO_ENGINE_THREADS": "threads of a model server on the CPU",
    "GUANACO_ARTIFACT_URLS": "signed URLs of the artifact that a model server reads",
    "GUANACO_CONTROL_TOKEN": "what whoever swaps a model server's weights shows to it",
    "GUANACO_POOL_TOKEN": "what whoever gives a waiting pod its order shows to it",
    "GUANACO_ENGINE_MEMORY": "the memory limit of a model server's processes, in bytes",
    "GUANACO_OWN_FOLDERS": "the folders that were made for a model server alone, whose user it becomes",
    "GUANACO_TICKET": "where a serializer job finds its work",
    # Scripts and tests
    "GUANACO_TORCH_INDEX": "package index of scripts/setup-engine",
    "GUANACO_GOLDEN": "`write` renews golden files of tests",
    "GUANACO_SCREENSHOTS": "`write` renews the pictures of docs/web.md",
}

# Settings that became constants. An upgrade must not stop because one is still set: the start says so and goes on.
REMOVED: dict[str, str] = {
    "max_body_bytes": "a request body may always have 262144 bytes.",
    "schema_wait_s": "a start always waits up to 300 s for the migration of the database.",
    "hub_timeout_s": "an answer of the Hub may always take 20 s.",
    "artifact_sweep_s": "artifacts that nobody needs are always searched for every 600 s.",
    "artifact_grace_s": "an artifact that no submission needs is always kept for 604800 s (7 days).",
    "staging_grace_s": "the output of an unfinished serializer job is always kept for 86400 s (1 day).",
    "kubernetes_patience_s": "a call to the Kubernetes API is always retried for 60 s.",
    "stress_max_error_rate": "every request of the stress check must succeed (error rate 0.0).",
    "stress_request_timeout_s": "a request of the stress check always fails after 30 s.",
    "scale_target": "another replica is always started when 0.7 of the capacity is in use.",
    "scale_down_window_s": "a replica is always stopped when fewer were enough for 300 s.",
    "record_patience_s": "a finished turn always waits up to 60 s for the database.",
    "history_cache_chars": "a process always keeps up to 64000000 characters of conversations in memory.",
    "heartbeat_s": "a silent stream always gets a comment every 10 s.",
    "assignment_snapshot_days": "an assignment can always be made again for 30 days.",
    "webhook_poll_s": "events for webhooks are always searched for every 5 s.",
    "conversation_open_s": "an open conversation always counts for 0.0 s against its model's capacity: only its turns do.",
    "warm_model_servers": "model servers of one machine are forked from one process that has imported vLLM, unless engine_nursery is false.",
    "ratings_per_minute": "a user may always give 30 ratings within a minute.",
}

_SERVICE_LINK = re.compile(
    r"GUANACO(_[A-Z0-9_]+)?_("
    r"SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)",
    re.ASCII,
)
_LINKED_PORT = re.compile(r"(tcp|udp|sctp)://\S+:\d+", re.ASCII)


def is_test_variable(name: str) -> bool:
    """Return whether the variable chooses what the tests run against (``GUANACO_TEST_POSTGRES``)."""
    return name.upper().startswith("GUANACO_TEST_")


def is_service_link(name: str, text: str) -> bool:
    """Return whether Kubernetes wrote this variable for a Service whose name begins with ``guanaco``.

    A Service ``guanaco`` gives ``GUANACO_PORT=tcp://10.0.0.1:80``, which has the name of a setting: its value tells.
    """
    if _SERVICE_LINK.fullmatch(name):
        return True
    return name.endswith("_PORT") and _LINKED_PORT.fullmatch(text) is not None
