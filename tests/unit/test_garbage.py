"""Tests when garbage of all ages is collected."""

from __future__ import annotations

from guanaco_server.runtime.garbage import DUE, EVERYTHING, MUST, Look, LookSchedule


def test_garbage_is_collected_while_no_reply_is_under_way() -> None:
    schedule = LookSchedule()
    assert schedule.next(DUE - 1, is_idle=True) is Look.NOTHING
    assert schedule.next(DUE, is_idle=False) is Look.NOTHING
    assert schedule.next(DUE, is_idle=True) is Look.UNFROZEN_AND_FREEZE


def test_garbage_during_replies_is_collected_when_much() -> None:
    schedule = LookSchedule()
    assert schedule.next(MUST - 1, is_idle=False) is Look.NOTHING
    assert schedule.next(MUST, is_idle=False) is Look.UNFROZEN


def test_objects_that_stay_are_not_looked_through_all_the_time() -> None:
    schedule = LookSchedule()
    assert schedule.next(MUST, is_idle=False) is Look.UNFROZEN
    schedule.note_left(MUST)
    assert schedule.next(MUST + DUE, is_idle=False) is Look.NOTHING
    assert schedule.next(2 * MUST, is_idle=False) is Look.UNFROZEN


def test_frozen_objects_are_looked_through_now_and_then() -> None:
    schedule = LookSchedule()
    looks = [schedule.next(DUE, is_idle=True) for _ in range(2 * EVERYTHING)]
    assert looks.count(Look.EVERYTHING) == 2
    assert looks[EVERYTHING - 1] is Look.EVERYTHING
