"""Places for what a check asks of a model server, within its submission's fair share of one that others use too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from guanaco.errors import Overloaded, StageFault

TakePlace = Callable[[str, int], Awaitable[AbstractContextManager[object]]]


async def place_for_check(
    take_place: TakePlace, key: str, candidates: int = 1
) -> AbstractContextManager[object]:
    """Wait for a place at a deployment's engine for each of a reply's candidates. StageFault if they do not get free, which is no fault of the model."""
    try:
        return await take_place(key, candidates)
    except Overloaded:
        raise StageFault(
            "No place for the checks got free at the model server, which others use too."
        ) from None
