"""A conversation's assignment, made again from what was recorded of it."""

from __future__ import annotations

from guanaco.assignments import AssignmentDecision, AssignmentReplay
from guanaco.errors import ConversationNotFound
from guanaco_server.chat import queries
from guanaco_server.database.database import Database
from guanaco_server.routing.decision import replay
from guanaco_server.routing.service import RoutingService


async def assignment_of(
    database: Database, routing: RoutingService, conversation_id: str
) -> AssignmentReplay:
    """ConversationNotFound; without a decision where its competition had no seed, or an experiment chose."""
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
        }
    )
