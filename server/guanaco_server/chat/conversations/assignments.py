"""Makes the choice of a conversation's submission again from its record, with the chance that it had."""

from __future__ import annotations

from guanaco.competitions import AssignmentDecision, AssignmentReplay
from guanaco.errors import ConversationNotFound
from guanaco_server.chat import queries
from guanaco_server.database.database import Database
from guanaco_server.routing.service import RoutingService
from guanaco_server.routing.snapshot import chances_of, replay


async def assignment_of(
    database: Database, routing: RoutingService, conversation_id: str
) -> AssignmentReplay:
    """Replay the choice. Its decision is None if the competition had no seed, or if an experiment chose.

    Raises:
        ConversationNotFound: There is no such conversation.
    """
    async with database.read() as session:
        row = await queries.by_id(session, conversation_id)
        if row is None:
            raise ConversationNotFound(conversation_id)
        decision = row.decision
        snapshot = await routing.recorded(session, decision) if decision else None
    found = AssignmentReplay(
        conversation_id=row.id, competition=row.competition, submission_id=row.submission_id
    )
    if decision is None:
        return found
    recorded = AssignmentDecision.model_validate(decision.model_dump())
    if snapshot is None or snapshot.rule.kind.is_unknown:
        return found.model_copy(update={"decision": recorded})
    chosen = await replay(decision, snapshot)
    return found.model_copy(
        update={
            "decision": recorded,
            "entries": len(snapshot.entries),
            "replayed": chosen,
            "is_same": chosen == row.submission_id,
            "chance": (await chances_of(decision, snapshot)).get(row.submission_id, 0.0),
        }
    )
