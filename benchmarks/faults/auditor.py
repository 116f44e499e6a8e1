"""Compares what clients were told with what is stored, and looks for what nobody owns any more.

It reads the database as it is, without the platform: an error of the platform's own queries would hide itself. Every finding
is one sentence, under one of the kinds below. ``audit`` is to be asked when nothing is under way any more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from benchmarks.faults.ledger import Ledger, LocalConversation

KINDS = (
    "lost submissions",
    "lost turns",
    "lost ratings",
    "doubled submissions",
    "doubled turns",
    "doubled ratings",
    "orphaned rows",
    "orphaned objects",
    "orphaned processes",
    "orphaned pods",
    "unforeseen failures",
)
IN_PROGRESS = "('queued', 'checking', 'serializing', 'deploying', 'stress_testing')"
ROLLING = "('preparing', 'shifting', 'draining')"


@dataclass(frozen=True)
class Finding:
    kind: str
    sentence: str


# Each query names what nobody tends any more once nothing is under way; its first column says what it is.
ORPHANED_ROWS = {
    "deployment without a submission that is served": f"""
        SELECT d.submission_id FROM deployments d WHERE NOT EXISTS (
            SELECT 1 FROM submissions s WHERE s.id = d.submission_id AND s.status IN ('deployed', 'inactive')
        ) AND NOT EXISTS (
            SELECT 1 FROM rollouts r WHERE d.submission_id = r.submission_id || '@' || r.run AND r.phase IN {ROLLING}
        )""",
    "served submission without a deployment": """
        SELECT id FROM submissions WHERE status = 'deployed'
            AND NOT EXISTS (SELECT 1 FROM deployments d WHERE d.submission_id = submissions.id)""",
    "submission in progress that nobody goes on with": f"SELECT id FROM submissions WHERE status IN {IN_PROGRESS}",
    "rollout that nobody goes on with": f"SELECT submission_id FROM rollouts WHERE phase IN {ROLLING}",
    "stage that was begun and never ended": f"""
        SELECT r.submission_id || ' ' || r.stage FROM stage_runs r JOIN submissions s ON s.id = r.submission_id
            WHERE r.outcome IS NULL AND s.status NOT IN {IN_PROGRESS}""",
    "events that are not numbered 1, 2, 3, …": """
        SELECT s.id FROM submissions s LEFT JOIN submission_events e ON e.submission_id = s.id
            GROUP BY s.id, s.event_count HAVING count(e.seq) <> s.event_count OR max(e.seq) <> s.event_count""",
    "conversation whose count is not its last position": """
        SELECT c.id FROM conversations c LEFT JOIN messages m ON m.conversation_id = c.id
            GROUP BY c.id, c.message_count HAVING c.message_count <> coalesce(max(m.position), 0)""",
    "rating that is not counted": "SELECT id FROM feedback WHERE NOT is_counted",
    "rating without its copy": """
        SELECT id FROM feedback WHERE NOT EXISTS (SELECT 1 FROM feedback_copies c WHERE c.feedback_id = feedback.id)""",
    "conversation that is not measured": "SELECT id FROM conversations WHERE message_count <> measured_count",
    "score that is not the sum of its ratings": """
        SELECT s.submission_id FROM scores s WHERE s.rated <> (
            SELECT count(*) FROM feedback f
                WHERE f.submission_id = s.submission_id AND f.competition = s.competition)""",
}
WORKFLOWS = "SELECT workflow_uuid FROM dbos.workflow_status WHERE status IN ('PENDING', 'ENQUEUED')"


def audit(tables: Connection, ledger: Ledger) -> list[Finding]:
    """Return what is lost, doubled or orphaned in the database."""
    return [
        *_submissions(tables, ledger),
        *_talks(tables, ledger),
        *_ratings(tables, ledger),
        *orphaned_rows(tables),
        *_unforeseen(tables),
    ]


def _submissions(tables: Connection, ledger: Ledger) -> Iterator[Finding]:
    stored = _rows(tables, "SELECT idempotency_key, id, run, repo FROM submissions")
    runs = {row.id: row.run for row in stored}
    by_key = Counter(row.idempotency_key for row in stored)
    told_keys = {one.idempotency_key for one in ledger.submissions}
    for told in ledger.submissions:
        if told.id is None:
            continue
        if told.id not in runs:
            yield Finding("lost submissions", f"{told.id} was acknowledged and is not there")
            continue
        missing = told.runs - runs[told.id]
        if missing > 0:
            yield Finding(
                "lost submissions", f"{told.id} has {missing} redeploys less than acknowledged"
            )
        if -missing > int(told.has_open_redeploy):
            yield Finding(
                "doubled submissions", f"{told.id} has {-missing} redeploys more than acknowledged"
            )
    for key, count in by_key.items():
        if count > 1 or key not in told_keys:
            yield Finding("doubled submissions", f"{count} submissions with the key {key}")


def _talks(tables: Connection, ledger: Ledger) -> Iterator[Finding]:
    opened = defaultdict(list)
    for row in _rows(tables, "SELECT id, user_id FROM conversations"):
        opened[row.user_id].append(row.id)
    messages = defaultdict(list)
    for row in _rows(
        tables, "SELECT id, conversation_id, sender, content FROM messages ORDER BY position"
    ):
        messages[row.conversation_id].append(row)
    for talk in ledger.talks:
        ids = opened.pop(talk.user_id, [])
        if talk.conversation_id is not None and talk.conversation_id not in ids:
            yield Finding("lost turns", f"the conversation of {talk.user_id} is not there")
        if len(ids) > 1:
            yield Finding("doubled turns", f"{talk.user_id} has {len(ids)} conversations")
        if talk.conversation_id is not None:
            yield from _turns(talk, messages[talk.conversation_id])
    for user_id in opened:
        yield Finding("doubled turns", f"a conversation of {user_id}, whom nobody knows")


def _turns(talk: LocalConversation, stored: Iterable[Any]) -> Iterator[Finding]:
    """Compare a conversation message by message. What was not acknowledged at its end may be there once."""
    said = Counter(row.content for row in stored if row.sender == "user")
    replies = {row.id for row in stored if row.sender == "bot"}
    for turn in talk.turns:
        count = said.pop(turn.content, 0)
        if count == 0:
            yield Finding("lost turns", f"{turn.content!r} was acknowledged and is not there")
        if count > 1:
            yield Finding("doubled turns", f"{turn.content!r} is there {count} times")
        for reply_id in turn.reply_ids:
            if reply_id not in replies:
                yield Finding(
                    "lost turns", f"the reply {reply_id} to {turn.content!r} is not there"
                )
            replies.discard(reply_id)
    open_left = 1 if talk.open is not None else 0
    for content, count in said.items():
        if content != talk.open or count > 1:
            yield Finding(
                "doubled turns", f"{content!r} is there {count} times, and nobody was told"
            )
    if len(replies) > open_left:
        yield Finding(
            "doubled turns", f"{talk.user_id} has {len(replies)} replies of which nobody was told"
        )
    contents = [row.content for row in stored if row.sender == "user"]
    told = [turn.content for turn in talk.turns]
    if contents[: len(told)] != told and set(told) <= set(contents):
        yield Finding("lost turns", f"the turns of {talk.user_id} are in another order")


def _ratings(tables: Connection, ledger: Ledger) -> Iterator[Finding]:
    stored = defaultdict(list)
    for row in _rows(tables, "SELECT conversation_id, thumbs_up, text FROM feedback"):
        stored[row.conversation_id].append((bool(row.thumbs_up), row.text))
    for talk in ledger.talks:
        if talk.conversation_id is None:
            continue
        found = stored.pop(talk.conversation_id, [])
        if talk.rating is not None and talk.rating not in found:
            yield Finding(
                "lost ratings", f"the rating of {talk.user_id} is not there as it was given"
            )
        most = 1 if talk.rating is not None or talk.open_kind == "rating" else 0
        if len(found) > most:
            yield Finding("doubled ratings", f"{talk.user_id} has {len(found)} ratings")
    for conversation_id in stored:
        yield Finding("doubled ratings", f"a rating of {conversation_id}, of which nobody was told")


def _unforeseen(tables: Connection) -> Iterator[Finding]:
    """Find runs that failed with an incident number."""
    query = "SELECT submission_id, message FROM submission_events WHERE message LIKE '%(incident %'"
    for row in _rows(tables, query):
        if "Trying again" not in row.message:
            yield Finding("unforeseen failures", f"{row.submission_id}: {row.message}")


def orphaned_rows(tables: Connection) -> Iterator[Finding]:
    """Find what nobody tends any more; while the platform works, what it has still to do."""
    queries = dict(ORPHANED_ROWS)
    if tables.dialect.name == "postgresql" and tables.scalar(
        text("SELECT to_regclass('dbos.workflow_status')")
    ):
        queries["workflow that nobody goes on with"] = WORKFLOWS
    for what, query in queries.items():
        for row in tables.execute(text(query)):
            yield Finding("orphaned rows", f"{what}: {row[0]}")


def _rows(tables: Connection, query: str) -> list[Any]:
    return list(tables.execute(text(query)))
