"""Waiting for something, but not for ever.

Python 3.11's ``asyncio.wait_for`` swallows a cancellation that comes in the moment in which what it waits for happens:
a loop around it then goes on, and who cancelled it waits for its end for ever. ``asyncio.timeout`` does not.
"""

from __future__ import annotations

import asyncio


async def happens(event: asyncio.Event, within_s: float) -> bool:
    """Wait for the event, at most so long. Return whether it happened."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
