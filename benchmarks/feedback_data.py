"""Fills a PostgreSQL database with submissions, conversations and ratings, by SQL: a million in about a minute."""

from __future__ import annotations

from sqlalchemy import text

from guanaco_server.database.database import Database

CONVERSATIONS = "conv-bench"
USERS = 100_000
BOT = '{"name": "Luna", "memory": "", "prompt": "", "first_message": ""}'

ACCOUNTS = """
INSERT INTO accounts (id, name, role, created_at)
SELECT 'dev-' || i, 'developer ' || i, 'developer', now() FROM generate_series(1, 100) i
UNION ALL SELECT 'bench-backend', 'backend', 'backend', now()
"""
SUBMISSIONS = """
INSERT INTO submissions (id, account_id, developer, repo, name, status, params, formatter, dtype, run, event_count, artifact_key,
                         request_hash, created_at, updated_at)
SELECT 'org-model-' || i || '_v1', 'dev-' || 1 + i % 100, 'developer ' || 1 + i % 100, 'org/model-' || i, 'model ' || i,
       'deployed', '{}', '{}', 'auto', 1, 0, 'artifact-' || i, '', now() - interval '40 days', now()
FROM generate_series(0, :submissions - 1) i
"""
RATED = f"""
INSERT INTO conversations (id, account_id, submission_id, user_id, user_name, competition, bot, created_at,
                           message_count, measured_count)
SELECT '{CONVERSATIONS}-' || i, 'bench-backend', 'org-model-' || (i::bigint * 7919 + i / {USERS}) % :submissions || '_v1',
       'user-' || i % {USERS}, 'You', 'open', '{BOT}', now() - (i::float8 / :ratings) * interval '30 days', 2, -1
FROM generate_series(1, :ratings) i
"""
UNRATED = f"""
INSERT INTO conversations (id, account_id, submission_id, user_id, user_name, competition, bot, created_at,
                           message_count, measured_count)
SELECT '{CONVERSATIONS}-new-' || i, 'bench-backend', 'org-model-' || (i::bigint * 104729) % :submissions || '_v1',
       'user-' || i % {USERS}, 'You', 'open', '{BOT}', now(), 2, -1
FROM generate_series(1, :fresh) i
"""
MESSAGES = f"""
INSERT INTO messages (id, conversation_id, position, sender, content, created_at, is_deleted, ttft_ms, total_ms)
SELECT id || '-' || p, id, p, CASE p WHEN 1 THEN 'user' ELSE 'bot' END, 'Hello from the lighthouse, how was the day?',
       created_at + p * interval '5 seconds', false, CASE p WHEN 2 THEN 80 + random() * 300 END,
       CASE p WHEN 2 THEN 600 + random() * 3000 END
FROM conversations, generate_series(1, 2) p WHERE id LIKE '{CONVERSATIONS}-%'
"""
FEEDBACK = f"""
INSERT INTO feedback (id, conversation_id, submission_id, user_id, account_id, competition, bot_name, thumbs_up, text,
                      created_at, is_counted)
SELECT 'fb-' || id, id, submission_id, user_id, account_id, competition, 'Luna',
       random() < 0.4 + 0.4 * (hashtext(submission_id) & 1023) / 1024.0, 'nice', created_at, false
FROM conversations WHERE id NOT LIKE '{CONVERSATIONS}-new-%'
"""


async def fill(database: Database, submissions: int, ratings: int, fresh: int) -> None:
    """``fresh`` conversations more are not rated."""
    values = {"submissions": submissions, "ratings": ratings, "fresh": fresh}
    for statement in (ACCOUNTS, SUBMISSIONS, RATED, UNRATED, MESSAGES, FEEDBACK):
        async with database.write() as session:
            await session.execute(text(statement), values)
    async with database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("VACUUM ANALYZE"))
