"""Finds the layers of the confinement that work on this machine, by trying them in a process of their own.

    python -m guanaco_server.confinement.layers FILE PORT     prints one JSON list; see ``examine``

If one layer does not work, the others still hold. `guanaco doctor` lists all layers, so that none is skipped silently.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from guanaco.errors import InvalidSettings
from guanaco_server.confinement import landlock, privileges, seccomp, sockets
from guanaco_server.confinement.kernel import MACHINE
from guanaco_server.confinement.landlock import Access
from guanaco_server.confinement.sockets import MSG_FASTOPEN, Sockets

TIMEOUT_S = 60
FILES, PORTS, SOCKETS, SIGNALS = "files", "ports", "sockets", "signals"
CALLS, PROCESSES, USER, PRIVILEGES = "system calls", "new processes", "own user", "privileges"
MEMORY = "memory"
MPTCP, VSOCK, PACKET = 262, 40, 17  # a protocol and two families, by Linux's numbers


@dataclass(frozen=True)
class Layer:
    """A layer and whether it works here. ``sentence`` says what it does, or why it is not in force."""

    name: str
    is_in_force: bool
    sentence: str


def examine() -> tuple[Layer, ...]:
    """Try every layer. OSError, ValueError or SubprocessError where the trial itself cannot run."""
    with tempfile.NamedTemporaryFile() as file, socket.create_server(("127.0.0.1", 0)) as server:
        command = [
            sys.executable,
            "-s",
            "-P",
            "-m",
            __name__,
            file.name,
            str(server.getsockname()[1]),
        ]
        answer = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S)
    return tuple(Layer(**layer) for layer in json.loads(answer.stdout))


def unavailable() -> tuple[str, ...]:
    """Return the layers that this machine certainly lacks: the kernel is asked, and nothing is tried."""
    version = landlock.version()
    known = {
        FILES: version > 0,
        PORTS: version >= landlock.NET_VERSION,
        SIGNALS: version >= landlock.SCOPE_VERSION,
        SOCKETS: seccomp.is_supported(),
        CALLS: seccomp.is_supported(),
        PROCESSES: seccomp.is_supported(),
    }
    return tuple(name for name, is_there in known.items() if not is_there)


def require(examined: Iterable[Layer]) -> None:
    """Raise InvalidSettings unless each layer is in force. The user id of its own is not required, because only root can set it."""
    lacking = [one for one in examined if not one.is_in_force and one.name != USER]
    if lacking:
        raise InvalidSettings(
            f"require_confinement is set, and these layers are not in force: {', '.join(one.name for one in lacking)}.",
            hint=f"{lacking[0].sentence} `guanaco doctor` tries them all.",
        )


def _try_all(place: Path, port: int) -> list[Layer]:
    """Try all layers in one process, in an order in which none prevents the trial of the next."""
    was_root, parent = os.geteuid() == 0, os.getppid()
    return [
        _privileges(),
        _files(place),
        _ports(port),
        _sockets(port),
        _signals(parent),
        _user(was_root),
        _calls(),
        _processes(),
        Layer(
            MEMORY,
            True,
            "Each such process has a memory limit, which the kernel enforces; the memory of a model server on a GPU is watched by the platform.",
        ),
    ]


def _privileges() -> Layer:
    try:
        privileges.forbid_new_privileges()
    except OSError as error:
        return Layer(PRIVILEGES, False, f"The kernel refuses no_new_privs: {error.strerror}.")
    return Layer(
        PRIVILEGES, True, "No process gets new privileges, and root's capabilities are dropped."
    )


def _files(place: Path) -> Layer:
    version = landlock.version()
    if version == 0:
        return Layer(
            FILES,
            False,
            "The kernel has no Landlock (5.13, or switched off): files are protected by user rights only.",
        )
    try:
        landlock.restrict(Access(reads=(Path(sys.prefix), Path(sys.base_prefix))))
    except OSError as error:
        return Layer(FILES, False, f"Landlock {version} is refused: {error.strerror}.")
    if _is_possible(lambda: place.read_bytes()):
        return Layer(FILES, False, f"Landlock {version} does not hold.")
    return Layer(
        FILES,
        True,
        f"Each process sees only its own files, and cannot read other processes (Landlock {version}).",
    )


def _ports(port: int) -> Layer:
    if _is_possible(lambda: socket.create_connection(("127.0.0.1", port), timeout=5).close()):
        return Layer(
            PORTS,
            False,
            "The kernel is older than 6.7: serializer jobs and model servers may connect to any TCP port, and nothing else here prevents it.",
        )
    return Layer(
        PORTS,
        True,
        "Serializer jobs, and model servers of one process, use only their own TCP ports; templates and tokenizers none. Model servers on a GPU or of several ranks may use any.",
    )


def _sockets(port: int) -> Layer:
    try:
        sockets.restrict(Sockets())
    except (OSError, KeyError):
        return Layer(
            SOCKETS,
            False,
            "Without a filter of system calls, serializer jobs and model servers go past the limit of ports by MPTCP, TCP Fast Open, UDP and Unix sockets.",
        )
    if done := [name for name, act in _ways_around_ports(port).items() if _is_possible(act)]:
        return Layer(
            SOCKETS, False, f"The filter of sockets does not hold: {', '.join(done)} works."
        )
    return Layer(
        SOCKETS,
        True,
        "Nothing goes past the limit of ports: no MPTCP, TCP Fast Open, UDP, SCTP, vsock, netlink, or raw packets; names are resolved by another process. "
        "Model servers keep Unix sockets, by which vLLM's processes talk, and on a GPU or with several ranks UDP and three kinds of netlink.",
    )


def _ways_around_ports(port: int) -> dict[str, Callable[[], object]]:
    address = ("127.0.0.1", port)

    def fast_open() -> None:
        with socket.socket() as tried:
            tried.sendto(b"", MSG_FASTOPEN, address)

    def datagram() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
            tried.sendto(b"", address)

    def mptcp() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP) as tried:
            tried.connect(address)

    return {
        "MPTCP": mptcp,
        "TCP Fast Open": fast_open,
        "UDP": datagram,
        "a Unix socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "SCTP": lambda: socket.socket(socket.AF_INET, socket.SOCK_SEQPACKET).close(),
        "vsock": lambda: socket.socket(VSOCK, socket.SOCK_STREAM).close(),
        "netlink": lambda: socket.socket(sockets.NETLINK, socket.SOCK_RAW).close(),
        "a packet socket": lambda: socket.socket(PACKET, socket.SOCK_RAW).close(),
    }


def _signals(parent: int) -> Layer:
    if _is_possible(lambda: os.kill(parent, 0)):
        return Layer(
            SIGNALS,
            False,
            "The kernel is older than 6.12: serializer jobs and model servers may signal processes of their user.",
        )
    return Layer(SIGNALS, True, "No process can signal one outside.")


def _user(was_root: bool) -> Layer:
    if not was_root:
        return Layer(
            USER,
            False,
            "The platform does not run as root, so these processes run as its own user; the other layers hold.",
        )
    if not privileges.switch_to_unique_user():
        return Layer(USER, False, "This container does not allow another user id.")
    return Layer(
        USER,
        True,
        "Templates, tokenizers and checks each run as a user of their own, and so do serializer jobs and model servers of one process where Landlock limits their files. Model servers on a GPU or of several ranks run as root without capabilities.",
    )


def _calls() -> Layer:
    if not seccomp.is_supported():
        return Layer(CALLS, False, f"No filter of system calls is known for {MACHINE}.")
    try:
        seccomp.without(("getitimer",))
    except OSError as error:
        return Layer(CALLS, False, f"The kernel refuses filters of system calls: {error.strerror}.")
    return Layer(
        CALLS,
        True,
        "Templates and tokenizers can only compute; no other process can trace, mount or load code into the kernel.",
    )


def _processes() -> Layer:
    try:
        seccomp.without_processes()
    except (OSError, KeyError):
        return Layer(
            PROCESSES, False, "Without a filter of system calls, these processes may start others."
        )
    if _is_possible(_fork):
        return Layer(PROCESSES, False, "The filter of system calls does not hold.")
    return Layer(
        PROCESSES,
        True,
        "No child starts a process while it handles untrusted bytes, except a model server on a GPU.",
    )


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _is_possible(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    tried = _try_all(Path(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps([asdict(layer) for layer in tried]), flush=True)
