"""Takes privileges away from a process: no new privileges, no capabilities, a user of its own."""

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
FIRST_USERS = (2_000_000_000, 60_600)  # the second where a container has only 65,536 users
USERS = 4_900  # of the second


def forbid_new_privileges() -> None:
    """Let no program that is started get more than this process has (setuid files, say)."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Leave root what any user has, for this process and all that it starts."""
    if MACHINE not in CAPSET:
        return
    for capability in range(CAPABILITIES):
        with suppress(
            OSError
        ):  # unknown to this kernel, or we are not allowed to and do not have it either
            prctl(PR_CAPBSET_DROP, capability)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    call(CAPSET[MACHINE], header, (ctypes.c_uint32 * 6)())


def become_nobody_else() -> bool:
    """Become a user that no other process is, and that owns nothing; False where only root can."""
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
