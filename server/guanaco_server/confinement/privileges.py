"""Reduces what a process may do: no new privileges, no capabilities, a user id of its own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from guanaco_server.confinement.kernel import (
    MACHINE,
    PR_CAP_AMBIENT,
    PR_CAP_AMBIENT_RAISE,
    PR_CAPBSET_DROP,
    PR_SET_KEEPCAPS,
    PR_SET_NO_NEW_PRIVS,
    call,
    prctl,
)

CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION_3 = 0x20080522
CAPABILITIES = 64
FIRST_USERS = (2_000_000_000, 60_600)  # the second is for containers with only 65,536 user ids
SHARING_GROUPS = (1_999_999_999, 60_599)  # of those who share a folder, beside each of these users
DAC_READ_SEARCH = 2
USERS = 4_900  # how many ids the second range has
SHARING_UMASK = 0o002
SHARED_FILE, SHARED_FOLDER = 0o060, 0o2070
PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def forbid_new_privileges() -> None:
    """Forbid this process and its children to gain privileges, for example by setuid files."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Drop all of root's capabilities, for this process and all that it starts."""
    _keep_capabilities(0)


def keep_reading() -> bool:
    """Drop all capabilities but the one to read every file, which the child of such a process inherits.

    Only for a process whose files Landlock limits. Return False if this process is root or has not inherited it.
    """
    if os.geteuid() == 0 or MACHINE not in CAPSET:
        return False
    with suppress(OSError):  # capset refuses what the process does not have
        _keep_capabilities(1 << DAC_READ_SEARCH)
        return True
    return False


def _keep_capabilities(kept: int) -> None:
    """Drop all others; ``kept`` has a bit for each, and those are inherited by the programs that it starts."""
    if MACHINE not in CAPSET:
        return
    for capability in range(CAPABILITIES):
        # The kernel does not know it, or forbids the call to a process without it.
        with suppress(OSError):
            if not kept >> capability & 1:
                prctl(PR_CAPBSET_DROP, capability)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    call(CAPSET[MACHINE], header, (ctypes.c_uint32 * 6)(kept, kept, kept))


def switch_to_owner(folders: Iterable[Path], shared: Iterable[Path] = ()) -> bool:
    """Give these folders, and what is in them, to a user of its own and become that user, who may read every file.

    Others who switch with the same ``shared`` folders write in them too. Only for a process whose files Landlock limits: the
    artifact and often the Python environment lie below folders that are closed to others. Return False if this process is
    not root, or may not do it.
    """
    if os.geteuid() != 0 or MACHINE not in CAPSET:
        return False
    owned = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    common = tuple(shared)
    for user, group in zip(_unique_users(), SHARING_GROUPS, strict=True):
        with suppress(OSError):
            for folder in common:
                _share(folder, group)
            os.setgroups([group] if common else [])
            for path in owned:
                os.chown(path, user, user, follow_symlinks=False)
            prctl(PR_SET_KEEPCAPS, 1)
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            _keep_capabilities(1 << DAC_READ_SEARCH)
            prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, DAC_READ_SEARCH)
            if common:
                os.umask(SHARING_UMASK)
            return True
    return False


def _share(folder: Path, group: int) -> None:
    """Let the group write into the folder and all that is in it, and give it what is made there later.

    No link is followed, because those who write there are not trusted. Servers of the version before, who are root, add to it
    as long as they run, so it is looked through each time.
    """
    for _, _, files, place in os.fwalk(folder, topdown=False, follow_symlinks=False):
        for name in files:
            with suppress(OSError):  # a link, or gone meanwhile
                _give_group(os.open(name, PLAIN, dir_fd=place), group, SHARED_FILE)
        _give_group(os.dup(place), group, SHARED_FOLDER)


def _give_group(handle: int, group: int, mode: int) -> None:
    try:
        now = os.fstat(handle)
        if now.st_gid != group or now.st_mode & mode != mode:
            os.fchown(handle, -1, group)
            os.fchmod(handle, now.st_mode & 0o777 | mode)
    finally:
        os.close(handle)


def switch_to_unique_user() -> bool:
    """Switch to a user id that no other process has and that owns no files. Return False if this process is not root."""
    if os.geteuid() != 0:
        return False
    for user in _unique_users():
        with suppress(OSError):
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            return True
    return False


def _unique_users() -> tuple[int, int]:
    first, second = FIRST_USERS
    return first + os.getpid(), second + os.getpid() % USERS
