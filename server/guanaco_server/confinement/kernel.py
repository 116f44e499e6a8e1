"""The system calls that Python does not have, through the C library; each raises OSError where the kernel refuses."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

IS_LINUX = os.uname().sysname == "Linux"
MACHINE = platform.machine()

PR_CAPBSET_DROP = 24
PR_SET_KEEPCAPS = 8
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
PR_SET_DUMPABLE = 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def call(number: int, *arguments: Any) -> int:
    """Make a system call by its number."""
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments))


def prctl(option: int, value: int, further: int = 0) -> int:
    zero = ctypes.c_ulong(0)
    return _checked(_libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(further), zero, zero))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
