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
    # What the platform passes to the processes that it starts
    "GUANACO_PROCESS": "marks a process of the local cluster, so that a restart finds it",
    "GUANACO_LIFELINE": "the file by which a model server sees that its platform died",
    "GUANACO_RUN": "the run of a deployment",
    "GUANACO_ENGINE_THREADS": "threads of a model server on the CPU",
    "GUANACO_ARTIFACT_URLS": "signed URLs of the artifact that a model server reads",
    "GUANACO_TICKET": "where a serializer job finds its work",
    # Scripts and tests
    "GUANACO_TORCH_INDEX": "package index of scripts/setup-engine",
    "GUANACO_GOLDEN": "`write` renews golden files of tests",
    "GUANACO_SCREENSHOTS": "`write` renews the pictures of docs/web.md",
}

# Settings that became constants. An upgrade must not stop because one is still set: the start says so and goes on.
REMOVED: dict[str, str] = {}

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
