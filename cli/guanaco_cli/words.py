"""Write figures and times for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from guanaco.open_enum import spoken as spoken

if TYPE_CHECKING:
    from guanaco.submissions import Stage


def seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f} s" if value < 60 else f"{int(value) // 60} min {int(value) % 60:02} s"


def milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f} ms"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def count(value: int | None) -> str:
    """Write 1234567 as 1.2 M."""
    if value is None:
        return ""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f} {unit}"
    return str(value)


def counted(number: int, noun: str) -> str:
    """Write ``1 note``, ``2 notes``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(value: float | None) -> str:
    """Write 1234567 bytes as 1.2 MB."""
    if value is None:
        return ""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= limit:
            return f"{value / limit:.1f} {unit}"
    return f"{value:.0f} bytes"


def moment(at: datetime | None) -> str:
    """Write a time in the reader's own time zone."""
    return "" if at is None else f"{at.astimezone():%Y-%m-%d %H:%M}"


def clock(at: datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}"


def since(at: datetime) -> float:
    """Return the seconds that have passed; never negative, because clocks differ."""
    return max(0.0, (datetime.now(UTC) - at).total_seconds())


def stage_column(stage: Stage | None) -> str:
    """Return a stage's name, as wide as the longest one."""
    from guanaco.submissions import Stage

    return (stage or "").ljust(max(len(known) for known in Stage))
