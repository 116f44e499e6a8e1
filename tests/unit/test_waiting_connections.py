"""Tests whose connection makes room where the front door is full."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from guanaco_server.http.connections import front_door
from guanaco_server.http.connections.front_door import LEAST_BURST, DoorLimits, FrontDoor
from guanaco_server.http.connections.waiting import LOOKED_AT
from guanaco_server.observability.metrics import Metrics

LIMITS = DoorLimits(connections=9, per_address=4)
ATTACKER, OTHER, HONEST, NEWCOMER = "192.0.2.1", "192.0.2.2", "198.51.100.1", "203.0.113.1"


@dataclass(eq=False)
class Connected:
    """A connection of the protocol, as far as the door sees it."""

    is_read: bool = True
    looks: int = 0
    is_closed: bool = False
    deadline: float = math.inf

    @property
    def is_idle(self) -> bool:
        self.looks += 1
        return self.is_read

    def time_out(self) -> None:
        self.is_closed = True

    def hang_up(self) -> None:
        self.is_closed = True


def enter(door: FrontDoor, address: str, count: int = 1) -> list[Connected]:
    entered = [Connected() for _ in range(count)]
    assert all(door.enter(one, address) for one in entered)
    return entered


def closed(connections: list[Connected]) -> list[bool]:
    return [one.is_closed for one in connections]


async def test_header_of_the_largest_holder_makes_room() -> None:
    door = FrontDoor(LIMITS, (), Metrics())
    honest = enter(door, HONEST)
    attackers = [*enter(door, ATTACKER, 4), *enter(door, OTHER, 4)]
    for one in attackers:
        door.note_begun(one)
    newcomers = [one for n in range(6) for one in enter(door, f"203.0.113.{n}")]
    assert not any(closed([*honest, *newcomers]))
    assert [sum(closed(attackers[:4])), sum(closed(attackers[4:]))] == [3, 3]


async def test_request_that_is_worked_on_is_never_closed() -> None:
    door = FrontDoor(LIMITS, (), Metrics())
    busy = [*enter(door, ATTACKER, 4), *enter(door, OTHER, 4), *enter(door, HONEST)]
    for one in busy:
        door.note_busy(one)
    assert not door.admit(NEWCOMER)
    assert not door.enter(Connected(), NEWCOMER)
    assert not any(closed(busy))
    door.note_idle(busy[2])
    assert door.admit(NEWCOMER)
    assert [one for one in busy if one.is_closed] == [busy[2]]


async def test_an_idle_connection_makes_room_before_a_begun_header() -> None:
    door = FrontDoor(LIMITS, (), Metrics())
    first, second, third, fourth = enter(door, HONEST, 4)
    door.note_begun(first)
    door.note_busy(second)
    door.note_idle(second)
    for expected in (third, fourth, second, first):
        door.note_busy(enter(door, HONEST)[0])
        assert expected.is_closed


async def test_proxies_connections_make_room_last() -> None:
    door = FrontDoor(LIMITS, ("10.0.0.0/8",), Metrics())
    proxied = enter(door, "10.0.0.1", 8)
    (direct,) = enter(door, HONEST)
    assert door.admit(NEWCOMER)
    assert direct.is_closed
    assert not any(closed(proxied))
    door.note_busy(enter(door, NEWCOMER)[0])
    assert door.admit(OTHER)
    assert closed(proxied) == [True, *[False] * 7]


async def test_refusal_looks_at_few_connections_however_many_wait() -> None:
    count = 1_000
    door = FrontDoor(DoorLimits(connections=count, per_address=count), (), Metrics())
    unread = enter(door, HONEST, count)
    for one in unread:
        one.is_read = False
    assert not door.admit(NEWCOMER)
    assert sum(one.looks for one in unread) == LOOKED_AT


async def test_rate_is_asked_before_room_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_door, "RENEWAL_S", math.inf)
    door = FrontDoor(LIMITS, (), Metrics())
    assert all(door.admit(ATTACKER) for _ in range(LEAST_BURST))
    waiting = [*enter(door, OTHER, 4), *enter(door, HONEST, 4), *enter(door, NEWCOMER)]
    assert not door.admit(ATTACKER)
    assert not any(closed(waiting))
