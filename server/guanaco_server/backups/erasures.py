"""The operator's view of the erasure ledger, for `guanaco backup erasures`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from guanaco.errors import NotFound
from guanaco_server.assembly.adapters import build_ledger
from guanaco_server.feedback.erasures.ledger import ErasureEntry, ErasureLedger, in_force, new_id
from guanaco_server.settings import Settings


def list_entries(settings: Settings) -> list[ErasureEntry]:
    """List the entries in force, the oldest first."""
    return asyncio.run(_list(build_ledger(settings)))


def revoke(settings: Settings, entry_id: str) -> None:
    """Have an erasure that was a mistake not repeated; NotFound where no entry in force has that id."""

    async def run() -> None:
        ledger = build_ledger(settings)
        if entry_id not in {entry.id for entry in await _list(ledger)}:
            raise NotFound(
                f"There is no erasure {entry_id}.", hint="`guanaco backup erasures` lists them."
            )
        await ledger.add(ErasureEntry(id=new_id(), at=datetime.now(UTC), revokes=entry_id))

    asyncio.run(run())


async def _list(ledger: ErasureLedger) -> list[ErasureEntry]:
    return in_force(await ledger.read(await ledger.ids()))
