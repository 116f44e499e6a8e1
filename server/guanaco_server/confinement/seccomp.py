"""Filters of system calls (seccomp), assembled for the kernel's packet filter machine (BPF).

A process can only add filters, for all of its threads and all of its later children; none is ever taken away.

    only(names)      what is not named fails with EPERM: for a process that computes and talks through its pipes
    without(names)   what is named fails with EPERM: for a process whose libraries make many other calls

``{name: (argument, values)}`` allows a call with these values of one argument only. A new process is a ``clone`` without
CLONE_THREAD; ``clone3``, whose flags a filter cannot see, is told to be missing, and the C library then uses ``clone``.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable, Mapping

from guanaco_server.confinement.kernel import MACHINE, call

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column below, AUDIT_ARCH
X32_BIT = 0x40000000  # another numbering of x86_64's calls
CLONE_THREAD = 0x00010000
SECCOMP = (317, 277)
SET_MODE_FILTER, TSYNC = 1, 1
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, JUMP_EQUAL, JUMP_SET, JUMP_GREATER, AND, RETURN = 0x20, 0x15, 0x45, 0x35, 0x54, 0x06
NUMBER, ARCH, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data

# name: number on x86_64, on aarch64; None where it does not exist
CALLS: dict[str, tuple[int | None, int | None]] = {
    "accept": (43, 202), "accept4": (288, 242), "access": (21, None), "acct": (163, 89), "add_key": (248, 217),
    "adjtimex": (159, 171), "bind": (49, 200), "bpf": (321, 280), "brk": (12, 214), "chmod": (90, None),
    "chown": (92, None), "chroot": (161, 51), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "fchown": (93, 55), "fchownat": (260, 54), "fremovexattr": (199, 16), "fsetxattr": (190, 7),
    "futimesat": (261, None), "lchown": (94, None), "lremovexattr": (198, 15), "lsetxattr": (189, 6),
    "removexattr": (197, 14), "setxattr": (188, 5), "utime": (132, None), "utimensat": (280, 88), "utimes": (235, None),
    "clock_adjtime": (305, 266), "clock_getres": (229, 114), "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115), "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435),
    "close": (3, 57), "connect": (42, 203), "delete_module": (176, 106), "dup": (32, 23), "execve": (59, 221),
    "execveat": (322, 281), "exit": (60, 93), "exit_group": (231, 94), "faccessat": (269, 48),
    "faccessat2": (439, 439), "fadvise64": (221, 223), "fcntl": (72, 25), "finit_module": (313, 273),
    "fork": (57, None), "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "fstat": (5, 80), "ftruncate": (77, 46), "futex": (202, 98), "getcwd": (79, 17), "getdents64": (217, 61),
    "getegid": (108, 177), "geteuid": (107, 175), "getgid": (104, 176), "getitimer": (36, 102), "getpid": (39, 172),
    "getppid": (110, 173), "getrandom": (318, 278), "getrlimit": (97, 163), "getrusage": (98, 165),
    "gettid": (186, 178), "gettimeofday": (96, 169), "getuid": (102, 174), "init_module": (175, 105),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioctl": (16, 29),
    "ioperm": (173, None), "iopl": (172, None), "kcmp": (312, 272), "kexec_file_load": (320, 294),
    "kexec_load": (246, 104), "keyctl": (250, 219), "kill": (62, 129), "listen": (50, 201), "lseek": (8, 62), "lstat": (6, None),
    "madvise": (28, 233), "membarrier": (324, 283), "mkdir": (83, None), "mkdirat": (258, 34), "mknod": (133, None),
    "mknodat": (259, 33), "mmap": (9, 222), "modify_ldt": (154, None), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "mprotect": (10, 226), "mremap": (25, 216),
    "munmap": (11, 215), "name_to_handle_at": (303, 264), "nanosleep": (35, 101), "newfstatat": (262, 79),
    "open": (2, None), "open_by_handle_at": (304, 265), "open_tree": (428, 428), "openat": (257, 56),
    "perf_event_open": (298, 241), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434), "pivot_root": (155, 41),
    "poll": (7, None), "ppoll": (271, 73), "pread64": (17, 67), "prlimit64": (302, 261),
    "process_madvise": (440, 440), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pselect6": (270, 72), "ptrace": (101, 117), "pwrite64": (18, 68), "quotactl": (179, 60), "read": (0, 63),
    "readlink": (89, None), "readlinkat": (267, 78), "readv": (19, 65), "reboot": (169, 142),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "request_key": (249, 218),
    "restart_syscall": (219, 128), "rseq": (334, 293), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sched_getaffinity": (204, 123), "sched_yield": (24, 124), "select": (23, None), "sendmmsg": (307, 269), "sendmsg": (46, 211),
    "sendto": (44, 206),
    "set_robust_list": (273, 99), "setitimer": (38, 103), "setns": (308, 268), "setsockopt": (54, 208), "settimeofday": (164, 170),
    "sigaltstack": (131, 132), "socket": (41, 198), "socketpair": (53, 199), "stat": (4, None), "statx": (332, 291),
    "swapoff": (168, 225), "swapon": (167, 224), "sysinfo": (99, 179), "syslog": (103, 116), "tgkill": (234, 131),
    "time": (201, None), "times": (100, 153), "umount2": (166, 39), "uname": (63, 160), "unlink": (87, None),
    "unlinkat": (263, 35), "unshare": (272, 97), "userfaultfd": (323, 282), "vfork": (58, None),
    "vhangup": (153, 58), "write": (1, 64), "writev": (20, 66),
}  # fmt: skip

COMPUTE = (
    *("read", "write", "readv", "writev", "close", "fstat", "newfstatat", "lseek", "fcntl", "poll", "ppoll"),
    *("select", "pselect6", "mmap", "mprotect", "munmap", "mremap", "brk", "madvise", "futex", "membarrier"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall", "setitimer", "getitimer"),
    *("clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time", "times", "getrusage"),
    *("getrandom", "getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getrlimit", "uname"),
    *("sched_yield", "sched_getaffinity", "sysinfo", "exit", "exit_group"),
)  # fmt: skip
THREADS = ("clone", "set_robust_list", "rseq")
FILES = (
    *("open", "openat", "stat", "lstat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat"),
    *("getdents64", "getcwd", "pread64", "pwrite64", "ftruncate", "fadvise64", "mkdir", "mkdirat", "unlink", "unlinkat"),
    *("rename", "renameat", "renameat2", "dup", "ioctl"),
)  # fmt: skip
# Nothing that serves or makes a model does these; each has been a way out of a sandbox.
DANGEROUS = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd", "perf_event_open"),
    *("bpf", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "add_key", "request_key", "keyctl"),
    *("mount", "umount2", "pivot_root", "chroot", "setns", "unshare", "open_tree", "move_mount", "fsopen", "fsconfig"),
    *("fsmount", "fspick", "mount_setattr", "open_by_handle_at", "name_to_handle_at", "mknod", "mknodat"),
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "swapon", "swapoff"),
    *("settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "syslog", "quotactl", "acct", "iopl", "ioperm"),
    *("modify_ldt", "vhangup"),
)  # fmt: skip
# Landlock does not limit these, and the platform's user owns the platform's files.
OWNERS = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "setxattr", "lsetxattr"),
    *("fsetxattr", "removexattr", "lremovexattr", "fremovexattr", "utime", "utimes", "utimensat", "futimesat"),
)  # fmt: skip
PROCESSES = ("fork", "vfork", "execve", "execveat")

Only = Mapping[str, tuple[int, tuple[int, ...]]]


def only(names: Iterable[str], restricted: Only | None = None) -> None:
    """Let this process make no other calls, for good."""
    rules = b"".join(rule(name, ALLOW) for name in names)
    rules += b"".join(_allowed_with(name, *allowed) for name, allowed in (restricted or {}).items())
    install(rules, ERRNO | errno.EPERM)


def without(names: Iterable[str]) -> None:
    """Take these calls from this process, for good."""
    install(b"".join(rule(name, ERRNO | errno.EPERM) for name in names), ALLOW)


def without_processes() -> None:
    """Let this process start threads, but neither a process nor a program."""
    rules = b"".join(rule(name, ERRNO | errno.EPERM) for name in PROCESSES)
    install(rules + threads_only(), ALLOW)


def threads_only() -> bytes:
    number = number_of("clone")
    flags = load(ARGUMENTS) + jump(JUMP_SET, CLONE_THREAD, 0, 1)
    body = flags + returns(ALLOW) + returns(ERRNO | errno.EPERM)
    assert number is not None, "every architecture has it"
    return rule("clone3", ERRNO | errno.ENOSYS) + jump(JUMP_EQUAL, number, 0, len(body) // 8) + body


def is_supported() -> bool:
    return MACHINE in ARCHITECTURES


def install(rules: bytes, otherwise: int) -> None:
    """Raise OSError where the kernel has no filters. ``PR_SET_NO_NEW_PRIVS`` must be set, or the process be root."""
    column, arch = ARCHITECTURES[MACHINE]
    program = load(ARCH) + jump(JUMP_EQUAL, arch, 1, 0) + returns(KILL) + load(NUMBER)
    if MACHINE == "x86_64":
        program += jump(JUMP_GREATER, X32_BIT, 0, 1) + returns(ERRNO | errno.EPERM)
    program += rules + returns(otherwise)
    kept = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(kept))
    call(_seccomp(column), ctypes.c_ulong(SET_MODE_FILTER), ctypes.c_ulong(TSYNC), header)


def _seccomp(column: int) -> int:
    return SECCOMP[column]


def number_of(name: str) -> int | None:
    return CALLS[name][ARCHITECTURES[MACHINE][0]]


def rule(name: str, action: int) -> bytes:
    number = number_of(name)
    return b"" if number is None else jump(JUMP_EQUAL, number, 0, 1) + returns(action)


def _allowed_with(name: str, argument: int, values: tuple[int, ...]) -> bytes:
    number = number_of(name)
    if number is None:
        return b""
    body = load(ARGUMENTS + 8 * argument)
    body += b"".join(jump(JUMP_EQUAL, value, 0, 1) + returns(ALLOW) for value in values)
    body += returns(ERRNO | errno.EPERM)
    return jump(JUMP_EQUAL, number, 0, len(body) // 8) + body


def masked(mask: int) -> bytes:
    """Keep only these bits of what was loaded."""
    return struct.pack("HBBI", AND, 0, 0, mask)


def load(offset: int) -> bytes:
    return struct.pack("HBBI", LOAD, 0, 0, offset)


def jump(kind: int, value: int, if_true: int, if_false: int) -> bytes:
    """Both are numbers of instructions to leave out."""
    return struct.pack("HBBI", kind, if_true, if_false, value)


def returns(action: int) -> bytes:
    return struct.pack("HBBI", RETURN, 0, 0, action)
