"""The floors of replicas and of submissions that are awake: usual ones, and higher ones within peak hours.

Floors follow the policy of scaling: what they add takes free room only, and what is above a floor that has fallen goes one
replica at a time, as load allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from guanaco_server.runtime.weekly_hours import WeeklyHours, find_zone, is_within
from guanaco_server.settings import Settings


@dataclass(frozen=True)
class Floors:
    """``replicas`` of each submission that is awake; ``awake`` submissions that do not sleep."""

    replicas: int = 1
    awake: int = 0


@dataclass(frozen=True)
class Schedule:
    usual: Floors = Floors()
    peak: Floors = Floors()
    hours: tuple[WeeklyHours, ...] = ()
    zone: tzinfo = UTC

    def floors(self, at: datetime) -> Floors:
        """Return the floors of this moment. The replicas of the peak are never below the usual ones."""
        if not is_within(self.hours, self.zone, at):
            return self.usual
        return Floors(
            max(self.usual.replicas, self.peak.replicas), max(self.usual.awake, self.peak.awake)
        )


def schedule_of(settings: Settings) -> Schedule:
    return Schedule(
        usual=Floors(settings.min_replicas, settings.min_awake),
        peak=Floors(settings.peak_min_replicas, settings.peak_min_awake),
        hours=tuple(map(WeeklyHours.parse, settings.peak_hours)),
        zone=find_zone(settings.peak_time_zone),
    )
