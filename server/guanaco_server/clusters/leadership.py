"""The port that says whether this process may act on the cluster. Only one of several platforms leads."""

from __future__ import annotations

from typing import Protocol


class Leadership(Protocol):
    """A loop that seeks and keeps the lead."""

    def is_leading(self) -> bool: ...

    async def watch(self) -> None:
        """Begin to watch who leads, before this process may: a lead that was lost is then taken at once."""
        ...

    async def start(self) -> None:
        """Try once to lead, then go on trying in the background."""
        ...

    async def stop(self) -> None:
        """Give the lead up, so that another process can take it at once."""
        ...

    async def close(self) -> None:
        """End the watch too."""
        ...


class AlwaysLeading:
    """Leads a cluster that no other platform uses, like the processes of one machine."""

    def is_leading(self) -> bool:
        return True

    async def watch(self) -> None:
        """Nobody else leads."""

    async def start(self) -> None:
        """Nothing to seek."""

    async def stop(self) -> None:
        """Nothing to give up."""

    async def close(self) -> None:
        """Nothing to end."""
