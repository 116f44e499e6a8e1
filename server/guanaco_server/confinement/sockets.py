"""Limits which sockets a process may make, and what it may do with them, by the arguments of its system calls (seccomp).

Landlock knows the ports of plain TCP alone. These went past it, each tried on Linux 6.18 with Landlock 7:

    socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP)    a TCP connection in all but name, to any port
    sendto(…, MSG_FASTOPEN, address)               connects without `connect`
    UDP, ICMP, SCTP, SMC, vsock, netlink, packets  no TCP at all
    connect to a Unix socket                       needs no right to read the folder that it lies in

So a process makes TCP sockets and nothing else that it does not name here. Names are resolved by a process of their own
(names.py), because that takes UDP. A filter sees the arguments of io_uring's calls nowhere: they are forbidden
(`seccomp.DANGEROUS`).
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from guanaco_server.confinement import seccomp

MSG_FASTOPEN = 0x20000000
TYPE_MASK = 0xF  # the rest are SOCK_CLOEXEC and SOCK_NONBLOCK
TCP_ULP = 31  # another protocol under a TCP socket; it may not be TCP any more
FLAGS_OF = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}  # which argument
NETLINK = 16
ROUTE, DEVICE_EVENTS, RDMA = (
    0,
    15,
    20,
)  # protocols of netlink: addresses and routes; devices; InfiniBand
INTERNET = (socket.AF_INET, socket.AF_INET6)
NO_FAMILY = seccomp.ERRNO | errno.EAFNOSUPPORT
REFUSED = seccomp.ERRNO | errno.EPERM

Kind = tuple[int, int | None, tuple[int, ...] | None]  # family, type, protocols; None for any


@dataclass(frozen=True)
class Sockets:
    """The sockets that a process may make beside TCP's. ``listens``: it may wait for connections."""

    udp: bool = False
    unix: bool = False
    netlink: tuple[int, ...] = ()
    listens: bool = False

    @property
    def kinds(self) -> tuple[Kind, ...]:
        tcp = [(family, socket.SOCK_STREAM, (0, socket.IPPROTO_TCP)) for family in INTERNET]
        udp = [(family, socket.SOCK_DGRAM, (0, socket.IPPROTO_UDP)) for family in INTERNET]
        unix = [(int(socket.AF_UNIX), None, (0,))] if self.unix else []
        netlink = [(NETLINK, None, self.netlink)] if self.netlink else []
        return (*tcp, *(udp if self.udp else ()), *unix, *netlink)


def restrict(allowed: Sockets) -> None:
    """Give up all other sockets, for good. OSError where the kernel has no filters, KeyError where none is known."""
    rules = _on("socket", b"".join(map(_kind, allowed.kinds)) + seccomp.returns(NO_FAMILY))
    rules += _on("socketpair", _kind((socket.AF_UNIX, None, (0,))) + seccomp.returns(NO_FAMILY))
    for name, place in FLAGS_OF.items():
        refuse = seccomp.jump(seccomp.JUMP_SET, MSG_FASTOPEN, 0, 1) + seccomp.returns(REFUSED)
        rules += _on(name, _argument(place) + refuse + seccomp.returns(seccomp.ALLOW))
    rules += _on("setsockopt", _without_other_protocols())
    if not allowed.listens:
        rules += b"".join(seccomp.rule(name, REFUSED) for name in ("listen", "accept", "accept4"))
    seccomp.install(rules, seccomp.ALLOW)


def _on(name: str, body: bytes) -> bytes:
    """Return the rule of one call; its body ends with a return on every way."""
    number = seccomp.number_of(name)
    assert number is not None, "every architecture has it"
    return seccomp.jump(seccomp.JUMP_EQUAL, number, 0, len(body) // 8) + body


def _kind(kind: Kind) -> bytes:
    """Allow a socket of this kind, and go on otherwise."""
    family, type_, protocols = kind
    allow = seccomp.returns(seccomp.ALLOW)
    if protocols is not None:
        each = [seccomp.jump(seccomp.JUMP_EQUAL, one, 0, 1) + allow for one in protocols]
        allow = _argument(2) + b"".join(each)
    if type_ is not None:
        masked = _argument(1) + seccomp.masked(TYPE_MASK)
        allow = masked + seccomp.jump(seccomp.JUMP_EQUAL, type_, 0, len(allow) // 8) + allow
    return _argument(0) + seccomp.jump(seccomp.JUMP_EQUAL, family, 0, len(allow) // 8) + allow


def _without_other_protocols() -> bytes:
    allow, refuse = seccomp.returns(seccomp.ALLOW), seccomp.returns(REFUSED)
    name = _argument(2) + seccomp.jump(seccomp.JUMP_EQUAL, TCP_ULP, 0, 1) + refuse + allow
    level = seccomp.jump(seccomp.JUMP_EQUAL, socket.IPPROTO_TCP, 0, len(name) // 8)
    return _argument(1) + level + name + allow


def _argument(place: int) -> bytes:
    """Load the lower half of an argument: the kernel reads no more of an int."""
    return seccomp.load(seccomp.ARGUMENTS + 8 * place)
