"""Tests when garbage of all ages is collected."""

from __future__ import annotations

from guanaco_server.runtime.garbage import DUE, EVERYTHING, MUCH, MUST, Look, LookSchedule


def test_garbage_is_collected_while_no_reply_is_under_way() -> None:
    schedule = LookSchedule()
    assert schedule.next(DUE - 1, is_idle=True) is Look.NOTHING
    assert schedule.next(DUE, is_idle=False) is Look.NOTHING
    assert schedule.next(DUE, is_idle=True) is Look.UNFROZEN
    assert schedule.freezes(0, is_idle=True)


def test_garbage_during_replies_is_collected_when_much() -> None:
    schedule = LookSchedule()
    assert schedule.next(MUST - 1, is_idle=False) is Look.NOTHING
    assert schedule.next(MUST, is_idle=False) is Look.UNFROZEN


def test_objects_of_replies_are_frozen_only_with_many_others() -> None:
    schedule = LookSchedule()
    assert not schedule.freezes(MUCH - 1, is_idle=False)
    assert schedule.freezes(MUCH, is_idle=False)


def test_a_look_during_replies_never_grows() -> None:
    assert MUST - MUCH >= DUE, "what is left must not bring about the next look"


def test_frozen_objects_are_looked_through_now_and_then() -> None:
    schedule = LookSchedule()
    looks = []
    for number in range(2 * EVERYTHING + 2):
        is_idle = number % 2 == 0
        looks.append(schedule.next(MUST, is_idle=is_idle))
        schedule.freezes(MUCH, is_idle=is_idle)
    assert looks.count(Look.EVERYTHING) == 2
    assert all(look is not Look.EVERYTHING for look in looks[1::2]), "only while no reply waits"
