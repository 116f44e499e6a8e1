"""How a conversation got its submission, as an admin reads it."""

from __future__ import annotations

from pydantic import BaseModel


class AssignmentDecision(BaseModel):
    """All that the choice depended on: with the ``snapshot`` of that digest, ``seed`` and ``key``.

    ``seen`` by the user, least recent first; ``barred`` were full, or had no model server.
    """

    snapshot: str
    seed: int
    key: str
    seen: tuple[str, ...] = ()
    barred: tuple[str, ...] = ()


class AssignmentReplay(BaseModel):
    """``decision`` is None where its competition had no seed; ``is_same`` where it can no longer be made again.

    ``entries`` of the snapshot took part; ``replayed`` is what the same choice comes to now.
    """

    conversation_id: str
    competition: str
    submission_id: str
    decision: AssignmentDecision | None = None
    entries: int | None = None
    replayed: str | None = None
    is_same: bool | None = None
