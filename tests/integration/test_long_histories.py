"""A conversation of more than a million characters, through database, memory and gateway."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select, update

from guanaco.chat import Sender
from guanaco_server.chat.tables import ConversationRow, MessageRow
from guanaco_server.database.database import Database
from tests.fixtures.talking import contents, talking

pytestmark = [pytest.mark.both_databases, pytest.mark.slow]

MESSAGES = 66
TEXT = ("x" * 159 + " ") * 100  # 16,000 characters, of which a hundred are tokens
ROOM = 1_024


async def test_conversation_of_a_million_characters_is_read_once(
    database: Database,
) -> None:
    world, http, conversation = await talking(database, max_input_tokens=ROOM)
    world.replies._histories._limit_chars = 10_000_000
    world.replies.forget([conversation])
    await fill(database, conversation)
    url = f"/conversations/{conversation}/messages"

    assert (await http.post(url, json={"content": "Are you there?"})).status_code == 200
    kept = world.replies._histories.take(conversation)
    assert kept is not None
    assert sum(len(turn.content) for turn in kept.turns) > 1_000_000
    world.replies.remember(kept)
    answer = await http.post(url, json={"content": "And now?", "stream": True})
    assert "event: done" in answer.text
    assert world.replies._histories.take(conversation) is kept, "it was not read again"
    assert (await http.post(url, json={"content": "And read anew?"})).status_code == 200

    prompts = [generation.prompt for generation in world.model_server.generations]
    for prompt, asked in zip(
        prompts, ("Are you there?", "And now?", "And read anew?"), strict=True
    ):
        assert asked in prompt
        assert ROOM / 2 < len(prompt.split()) <= ROOM
    assert len(await contents(http, conversation)) == MESSAGES + 6


async def fill(database: Database, conversation_id: str) -> None:
    """Open a conversation with an old history."""
    async with database.write() as session:
        opened_at = await session.scalar(
            select(ConversationRow.created_at).where(ConversationRow.id == conversation_id)
        )
        await session.execute(
            insert(MessageRow),
            [
                {
                    "id": f"msg_{number}",
                    "conversation_id": conversation_id,
                    "position": number + 1,
                    "sender": Sender.BOT if number % 2 else Sender.USER,
                    "content": TEXT,
                    "created_at": opened_at,
                    "is_deleted": False,
                }
                for number in range(MESSAGES)
            ],
        )
        await session.execute(
            update(ConversationRow)
            .where(ConversationRow.id == conversation_id)
            .values(message_count=MESSAGES)
        )
