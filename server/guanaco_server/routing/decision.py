"""What a conversation remembers of its assignment, so that it can be made again."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from guanaco_server.routing.policies.posterior import Posterior
from guanaco_server.routing.snapshot import Pool, Snapshot, policy_of


class Decision(BaseModel):
    """With the snapshot that ``snapshot`` names, all that the choice depended on; ``key`` is the conversation's id.

    ``seen`` by the user, least recent first; ``barred`` were full, or had no model server. Of both only entries.
    """

    model_config = ConfigDict(frozen=True)

    snapshot: str
    seed: int
    key: str
    seen: tuple[str, ...] = ()
    barred: tuple[str, ...] = ()


async def replay(decision: Decision, snapshot: Snapshot) -> str | None:
    """The submission that was chosen then."""
    pool = Pool(snapshot, await policy_of(snapshot, Posterior()))
    return pool.choose(decision.seed, decision.key, decision.seen, frozenset(decision.barred))
