"""Peak hours: how they are written, when they are, and the floors that they raise."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from guanaco_server.runtime.weekly_hours import WeeklyHours
from guanaco_server.scaling.room import scaling_policy
from guanaco_server.scaling.schedule import Floors, schedule_of
from guanaco_server.settings import Settings


def at(text: str) -> datetime:
    """A time of the week that begins with Monday 2026-01-05, from "sat 01:59"."""
    day = ("mon", "tue", "wed", "thu", "fri", "sat", "sun").index(text[:3])
    return datetime.fromisoformat(f"2026-01-{5 + day:02} {text[4:]}")


@pytest.mark.parametrize(
    ("hours", "within", "outside"),
    [
        ("Mon-Fri 17:00-23:30", ["mon 17:00", "fri 23:29"], ["mon 16:59", "fri 23:30", "sat 18:00"]),
        ("sat 20:00-02:00", ["sat 20:00", "sun 01:59"], ["sun 02:00", "sat 01:00", "sun 20:00"]),
        ("Fri-Mon 9:00-10:00", ["fri 09:00", "sun 09:00", "mon 09:59"], ["tue 09:00", "thu 09:00"]),
        ("Sun 22:00-06:00", ["sun 23:00", "mon 05:59"], ["sun 05:00", "mon 22:00"]),
        ("Wed 00:00-24:00", ["wed 00:00", "wed 23:59"], ["tue 23:59", "thu 00:00"]),
    ],
)  # fmt: skip
def test_hours_begin_and_end_when_they_say(
    hours: str, within: list[str], outside: list[str]
) -> None:
    found = WeeklyHours.parse(hours)
    assert [time for time in within if not found.contain(at(time))] == []
    assert [time for time in outside if found.contain(at(time))] == []


@pytest.mark.parametrize(
    "text", ["", "Mon", "17:00-23:00", "Foo 10:00-11:00", "Mon 24:00-25:00", "Mon 10:00-24:30", "Mon 29:00-10:00", "Mon-Tue-Wed 1:00-2:00"]
)  # fmt: skip
def test_what_are_no_hours_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValidationError, match="such as Mon-Fri 17:00-23:30"):
        Settings(peak_hours=[text])


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ValidationError, match="no time zone 'Middle/Earth'"):
        Settings(peak_time_zone="Middle/Earth")
    with pytest.raises(ValidationError, match="no time zone"):
        Settings(peak_time_zone="../../etc/passwd")


def test_peaks_move_with_the_clock_on_the_wall() -> None:
    schedule = schedule_of(
        Settings(
            min_awake=1,
            peak_hours=["Mon-Sun 17:00-18:00"],
            peak_time_zone="Europe/Berlin",
            peak_min_replicas=3,
        )
    )
    winter, summer = datetime(2026, 1, 15, 16, tzinfo=UTC), datetime(2026, 7, 15, 15, tzinfo=UTC)
    assert schedule.floors(winter) == schedule.floors(summer) == Floors(3, 1)
    assert schedule.floors(winter.replace(hour=15)) == Floors(1, 1)
    assert schedule.floors(summer.replace(hour=16)) == Floors(1, 1)


def test_a_peak_never_lowers_a_floor_and_raises_the_limit() -> None:
    settings = Settings(min_replicas=4, peak_min_replicas=2, peak_hours=["Mon-Sun 00:00-24:00"])
    policy = scaling_policy(settings, shares_addresses=False)
    assert policy.schedule.floors(datetime(2026, 1, 1, tzinfo=UTC)).replicas == 4
    peak = scaling_policy(
        Settings(peak_min_replicas=3, peak_hours=["Thu 10:00-11:00"]), shares_addresses=False
    )
    before, within = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (9, 10))
    assert (peak.limits_at(before).min_replicas, peak.limits_at(within).min_replicas) == (1, 3)
    assert peak.limits_at(before).max_replicas == 3, "down from there one at a time"
