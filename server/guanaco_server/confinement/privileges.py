"""Reduces what a process may do: no new privileges, no capabilities, a user id of its own."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

from guanaco_server.confinement.kernel import (
    MACHINE,
    PR_CAPBSET_DROP,
    PR_SET_NO_NEW_PRIVS,
    call,
    prctl,
)

CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION_3 = 0x20080522
CAPABILITIES = 64
FIRST_USERS = (2_000_000_000, 60_600)  # the second is for containers with only 65,536 user ids
USERS = 4_900  # how many ids the second range has


def forbid_new_privileges() -> None:
    """Forbid this process and its children to gain privileges, for example by setuid files."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Drop all of root's capabilities, for this process and all that it starts."""
    if MACHINE not in CAPSET:
        return
    for capability in range(CAPABILITIES):
        # The kernel does not know it, or forbids the call to a process without it.
        with suppress(OSError):
            prctl(PR_CAPBSET_DROP, capability)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    call(CAPSET[MACHINE], header, (ctypes.c_uint32 * 6)())


def switch_to_unique_user() -> bool:
    """Switch to a user id that no other process has and that owns no files. Return False if this process is not root."""
    if os.geteuid() != 0:
        return False
    for first in FIRST_USERS:
        user = first + (os.getpid() if first == FIRST_USERS[0] else os.getpid() % USERS)
        with suppress(OSError):
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            return True
    return False
