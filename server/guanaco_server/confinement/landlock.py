"""Limits which files and TCP ports a process may use (Landlock, since Linux 5.13; ports since 6.7; signals since 6.12).

A process can only give up access, for itself and its later children. Whatever it cannot name, it cannot reach; nor can
it look into a process outside: neither its memory nor its environment in /proc, even as root. The rules hold for the
calling thread, so they are taken before any other starts.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from guanaco_server.confinement.kernel import call

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH, NET_PORT = 1, 1, 2
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR = 1, 2, 4, 8, 16
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
READ = READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2
FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many rights each version of Landlock knows
NET_VERSION, SCOPE_VERSION = 4, 6


@dataclass(frozen=True)
class Access:
    """The access that a process keeps. Paths that are not there are left out. ``None`` for ports leaves them all.

    Beneath ``tidies`` empty folders may be removed, so that a process can remove its own temporary one.
    """

    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    executes: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    tidies: tuple[Path, ...] = ()
    connects: tuple[int, ...] | None = ()
    listens: tuple[int, ...] | None = ()


def version() -> int:
    """0 where the kernel has no Landlock, or it is switched off."""
    try:
        return call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(VERSION_FLAG))
    except OSError:
        return 0


def restrict(access: Access) -> None:
    """Give up everything else. OSError where the kernel refuses; ``PR_SET_NO_NEW_PRIVS`` must be set."""
    known = version()
    rights = (1 << FS_BITS.get(known, 16)) - 1
    ruleset = _create(known, rights, access)
    try:
        writing = rights & ~(EXECUTE | IOCTL_DEV)
        for paths, allowed in (
            (access.reads, READ),
            (access.executes, READ | EXECUTE),
            (access.writes, writing),
            (access.devices, READ | WRITE_FILE | IOCTL_DEV),
            (access.tidies, REMOVE_DIR),
        ):
            _add_paths(ruleset, paths, allowed & rights)
        if known >= NET_VERSION:
            _add_ports(ruleset, access.connects or (), CONNECT_TCP)
            _add_ports(ruleset, access.listens or (), BIND_TCP)
        call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)


def _create(known: int, rights: int, access: Access) -> int:
    ports = (BIND_TCP if access.listens is not None else 0) | (
        CONNECT_TCP if access.connects is not None else 0
    )
    attributes = struct.pack("QQQ", rights, ports, SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS)
    size = 24 if known >= SCOPE_VERSION else 16 if known >= NET_VERSION else 8
    return call(CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint(0))


def _add_paths(ruleset: int, paths: Iterable[Path], allowed: int) -> None:
    for path in paths:
        with suppress(FileNotFoundError, PermissionError):
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
                rule = struct.pack("=Qi", allowed if is_folder else allowed & OF_FILES, handle)
                call(
                    ADD_RULE,
                    ctypes.c_int(ruleset),
                    ctypes.c_int(PATH_BENEATH),
                    rule,
                    ctypes.c_uint(0),
                )
            finally:
                os.close(handle)


def _add_ports(ruleset: int, ports: Iterable[int], allowed: int) -> None:
    for port in ports:
        rule = struct.pack("QQ", allowed, port)
        call(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(NET_PORT), rule, ctypes.c_uint(0))
