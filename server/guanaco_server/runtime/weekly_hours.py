"""Hours of the week in a named time zone, as an operator writes them: ``Mon-Fri 17:00-23:30``, ``Sat 20:00-02:00``.

They are the clock's on the wall: where it is put forward or back, the hours move with it. Hours that end at or before
their beginning end on the next day; ``00:00-24:00`` is the whole day.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MIN = 24 * 60
FORM = re.compile(
    r"([a-z]{3})(?:-([a-z]{3}))? +([0-2]?[0-9]):([0-5][0-9])-([0-2]?[0-9]):([0-5][0-9])"
)


@dataclass(frozen=True)
class WeeklyHours:
    """The same hours on some days, 0 is Monday. Minutes are counted from midnight."""

    days: frozenset[int]
    begin_min: int
    end_min: int

    @staticmethod
    def parse(text: str) -> WeeklyHours:
        """Raise ValueError, which says how they are written, for anything else."""
        found = FORM.fullmatch(text.strip().lower())
        first, last, *clock = found.groups() if found else ("", None, "0", "0", "0", "0")
        begin_min, end_min = (int(clock[at]) * 60 + int(clock[at + 1]) for at in (0, 2))
        is_day = {first, last or first} <= set(DAYS)
        if not is_day or begin_min >= DAY_MIN or end_min > DAY_MIN:
            raise ValueError(f"{text[:40]!r} are no hours such as Mon-Fri 17:00-23:30")
        return WeeklyHours(_days(first, last or first), begin_min, end_min)

    def contain(self, wall: datetime) -> bool:
        """Tell whether a moment, as the clock on the wall shows it, lies within."""
        minute, day = wall.hour * 60 + wall.minute, wall.weekday()
        if self.begin_min < self.end_min:
            return day in self.days and self.begin_min <= minute < self.end_min
        is_evening = day in self.days and minute >= self.begin_min
        is_morning_after = (day - 1) % 7 in self.days and minute < self.end_min
        return is_evening or is_morning_after


def is_within(hours: Iterable[WeeklyHours], zone: tzinfo, at: datetime) -> bool:
    wall = at.astimezone(zone)
    return any(each.contain(wall) for each in hours)


def find_zone(name: str) -> ZoneInfo:
    """Raise ValueError for a time zone that this machine does not know."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"This machine knows no time zone {name[:40]!r}; write it like Europe/Berlin"
        ) from None


def _days(first: str, last: str) -> frozenset[int]:
    begin = DAYS.index(first)
    return frozenset((begin + day) % 7 for day in range((DAYS.index(last) - begin) % 7 + 1))
