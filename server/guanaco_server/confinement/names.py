"""Resolves names outside a process that may send no UDP: DNS needs it, and a filter cannot tell one destination from another.

    socket.getaddrinfo ── a name, and a socket for the answer ──▶ the resolver: a fork, confined by itself
                       ◀── the addresses, or the error ──────────     ends when all who could ask have ended

Its only input is names; it may read the system's files about them and use port 53. Each question brings a socket of its own,
so threads, and processes that are forked later, ask at the same time. What calls the C library itself resolves no
names: only numbers, and what is in /etc/hosts.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - its file cannot be read later
import json
import os
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

MAX_QUESTION_BYTES = 2_048
MAX_ANSWER_BYTES = 65_536
AT_ONCE = 4
MAX_FILES = 2**20
LONGEST_S = 60.0  # two resolvers that do not answer take 20

_own_getaddrinfo = socket.getaddrinfo


def resolve_outside(confine: Callable[[], None]) -> None:
    """Start the resolver, which takes ``confine`` upon itself, and have Python ask it from now on. The process must have one thread."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        try:
            _become_resolver(theirs, confine)
        finally:
            os._exit(0)
    theirs.close()
    socket.getaddrinfo = _asking(ours)


def _become_resolver(questions: socket.socket, confine: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    kept = questions.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, MAX_FILES)
    confine()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while True:
            question, files, _, _ = socket.recv_fds(questions, MAX_QUESTION_BYTES, 1)
            if not question:
                return
            if files:
                pool.submit(_answer, question, files[0])


def _answer(question: bytes, file: int) -> None:
    with suppress(OSError, ValueError), socket.socket(fileno=file) as asker:
        try:
            found: Any = {"found": _own_getaddrinfo(*json.loads(question))}
        except socket.gaierror as error:
            found = {"error": error.args}
        except (OSError, UnicodeError, TypeError) as error:
            found = {"error": (socket.EAI_FAIL, str(error)[:200])}
        asker.sendall(json.dumps(found).encode())


def _asking(resolver: socket.socket) -> Callable[..., Any]:
    def getaddrinfo(
        host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        name = host.decode("ascii") if isinstance(host, bytes) else host
        if name is None or _is_number(name):
            return _own_getaddrinfo(host, port, family, type, proto, flags)
        if isinstance(port, bytes):
            port = port.decode("ascii")
        answer = _ask(resolver, json.dumps((name, port, family, type, proto, flags)).encode())
        if "found" not in answer:
            raise socket.gaierror(*answer.get("error", (socket.EAI_AGAIN, "no answer")))
        return [
            (socket.AddressFamily(one), socket.SocketKind(kind), number, canonical, tuple(address))
            for one, kind, number, canonical, address in answer["found"]
        ]

    return getaddrinfo


def _ask(resolver: socket.socket, question: bytes) -> dict[str, Any]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            try:
                socket.send_fds(resolver, [question], [theirs.fileno()])
            except OSError:
                return {}
        ours.settimeout(LONGEST_S)
        answer = b""
        with suppress(TimeoutError):
            while len(answer) < MAX_ANSWER_BYTES and (more := ours.recv(MAX_ANSWER_BYTES)):
                answer += more
    with suppress(ValueError):
        parsed = json.loads(answer)
        return parsed if isinstance(parsed, dict) else {}
    return {}


def _is_number(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError, UnicodeError):
            socket.inet_pton(family, host.partition("%")[0])
            return True
    return False
