"""Defines the access that each kind of process keeps. All else is taken from it before it sees the first untrusted byte.

    computation   templates, tokenizers: memory and its open pipes; no file, no network, no process, no one to signal
    checker       a try of a repo's small files: the same, and one folder
    program       serializer job, model server: the files, ports and sockets that it names; no way into other processes
    resolver      what looks names up for a program (names.py): the files about names, and DNS

Layers, of which each that this machine has is in force (``layers.py`` says which, and the platform logs the others at its start): no new privileges, a user of its own
where root starts us, no capabilities, Landlock, a filter of system calls. All are taken by the process itself, after its
imports, and never given back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import guanaco
import guanaco_server
from guanaco_server.confinement import landlock, names, privileges, seccomp, sockets
from guanaco_server.confinement.kernel import IS_LINUX
from guanaco_server.confinement.landlock import Access
from guanaco_server.confinement.sockets import Sockets


def _paths(names: str) -> tuple[Path, ...]:
    return tuple(map(Path, names.split()))


SYSTEM_LIBRARIES = _paths(
    "/lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /usr/local/cuda /opt/rocm"
)
SYSTEM_FILES = _paths(
    """
    /usr/share /usr/include /proc /sys /run/systemd/resolve
    /etc/resolv.conf /etc/hosts /etc/nsswitch.conf /etc/host.conf /etc/gai.conf /etc/services /etc/protocols
    /etc/ld.so.cache /etc/localtime /etc/passwd /etc/group /etc/mime.types /etc/os-release
    /etc/ssl/certs /etc/ssl/cert.pem /etc/ssl/ca-bundle.pem /etc/ssl/openssl.cnf /etc/ca-certificates
    /etc/pki/tls/certs /etc/pki/tls/cert.pem /etc/pki/tls/openssl.cnf /etc/pki/tls/openssl.d /etc/pki/ca-trust
    /etc/alternatives /etc/OpenCL /etc/vulkan
    """
)
# Not /dev: a disk is there as well, which root reads whole.
DEVICES = _paths(
    "/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx /dev/pts"
)
ACCELERATORS = (
    *("nvidia*", "kfd", "dri", "accel", "infiniband", "gdrdrv", "dxg", "davinci*", "hisi_hdc", "devmm_svm"),
)  # fmt: skip
SYSTEM_PROGRAMS = _paths("/bin /sbin /usr/bin /usr/sbin")
OWN_FOLDERS_VARIABLE = "GUANACO_OWN_FOLDERS"  # which folders were made for this process alone
DNS_PORT = 53
PORTS = {"http": 80, "https": 443}


def confine_computation() -> None:
    """Leave this process nothing but computing and the pipes that it has open, as a user of its own."""
    _confine(Access())
    _try(privileges.switch_to_unique_user)
    _try(privileges.drop_capabilities)
    _only(seccomp.COMPUTE)


def confine_checker(folder: Path) -> None:
    """Leave this process computing, its open files, and reading and writing in one folder.

    The folder may lie below one that is closed to others, so a serializer job's child reads on by the job's capability.
    """
    _confine(Access(reads=_libraries(), writes=(folder,)))
    if not (landlock.version() and privileges.keep_reading()):
        _try(privileges.drop_capabilities)
    _only((*seccomp.COMPUTE, *seccomp.FILES))


def confine_program(
    access: Access,
    made: Sockets,
    owned: tuple[Path, ...] = (),
    shared: tuple[Path, ...] = (),
) -> None:
    """Leave this process what it names, and what a Python program reads to run; before it starts its first thread.

    One that connects, and makes no UDP sockets, has names resolved by a process of their own. Where root starts it, one that
    names folders which it can own becomes a user of its own, who writes in the ``shared`` ones with others of its kind; else
    it stays root without its powers.
    """
    if IS_LINUX and access.connects and not made.udp:
        names.resolve_outside(_confine_resolver)
    given = replace(
        access,
        reads=(*_libraries(), *SYSTEM_FILES, *_certificates(), *access.reads),
        executes=(*SYSTEM_LIBRARIES, Path(sys.executable).resolve(), *access.executes),
    )
    _confine(given)
    if not (owned and landlock.version() and privileges.switch_to_owner(owned, shared)):
        _try(privileges.drop_capabilities)
    # A server on a GPU compiles, and who compiles sets the modes of files.
    owners = seccomp.OWNERS if access.connects is not None else ()
    _try(lambda: seccomp.without((*seccomp.DANGEROUS, *owners)))
    _try(lambda: sockets.restrict(made))


def _confine_resolver() -> None:
    """Leave this process the system's files about names, and DNS."""
    _confine(Access(reads=(*SYSTEM_LIBRARIES, *SYSTEM_FILES), connects=(DNS_PORT,)))
    _try(privileges.switch_to_unique_user)
    _try(privileges.drop_capabilities)
    _try(lambda: seccomp.without((*seccomp.DANGEROUS, *seccomp.PROCESSES)))
    _try(lambda: sockets.restrict(Sockets(udp=True, netlink=(sockets.ROUTE,))))


def accelerators() -> tuple[Path, ...]:
    """Return the devices of this machine's GPUs, and of the networks between them."""
    return tuple(path for name in ACCELERATORS for path in Path("/dev").glob(name))


def forbid_processes() -> None:
    """Forbid this process and its threads to start another process or program from now on."""
    _try(seccomp.without_processes)


def ports_of(*urls: str) -> tuple[int, ...]:
    """Return the ports that a client of these URLs connects to; a file URL has none."""
    found = set[int]()
    for url in urls:
        parts = urlsplit(url)
        if port := parts.port or PORTS.get(parts.scheme):
            found.add(port)
    return tuple(sorted(found))


def _confine(access: Access) -> None:
    _try(privileges.forbid_new_privileges)
    _try(lambda: landlock.restrict(access))


def _only(names: tuple[str, ...]) -> None:
    own = (0, (os.getpid(),))
    _try(lambda: seccomp.only(names, {"kill": own, "tgkill": own}))


def _try(take: Callable[[], object]) -> None:
    """Take a layer where this machine has it; ``layers.py`` reports those that it lacks."""
    if IS_LINUX:
        with suppress(OSError, KeyError):  # KeyError: an architecture whose calls are not known
            take()


def _libraries() -> tuple[Path, ...]:
    """Return the Python environment and our own packages: not the folder they lie in, which may be a checkout with a data folder."""
    packages = [
        Path(path) for path in sys.path if Path(path).name in ("site-packages", "dist-packages")
    ]
    own = [
        Path(package.__file__).parent for package in (guanaco, guanaco_server) if package.__file__
    ]
    prefixes = [
        Path(prefix) / name
        for prefix in (sys.prefix, sys.base_prefix)
        for name in ("bin", "lib", "lib64", "include", "share", "ssl", "etc", "pyvenv.cfg")
    ]
    return (*prefixes, *packages, *own, *SYSTEM_LIBRARIES)


def _certificates() -> tuple[Path, ...]:
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    return tuple(Path(os.environ[name]) for name in names if os.environ.get(name))
