"""Waiting for something, but not for ever.

Python 3.11's ``asyncio.wait_for`` swallows a cancellation that comes in the moment in which what it waits for happens:
a loop around it then goes on, and who cancelled it waits for its end for ever. ``asyncio.wait`` and ``asyncio.timeout`` do not.
"""

from __future__ import annotations

import asyncio


async def happens(within_s: float, *events: asyncio.Event) -> bool:
    """Wait for the first of these events, at most so long. Return whether one happened."""
    if not any(event.is_set() for event in events):
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
    return any(event.is_set() for event in events)
