"""Makes the contract's conversations and messages of their rows."""

from __future__ import annotations

from collections.abc import Sequence

from guanaco.chat import Conversation, ConversationOpened, Message, Sender, Timings
from guanaco.competitions import CHOSEN
from guanaco_server.chat.conversations.history import History, carried_summary
from guanaco_server.chat.tables import ConversationRow, MessageRow


def read_opened(row: ConversationRow) -> ConversationOpened:
    """Return the answer to a request that opens this conversation."""
    return ConversationOpened(
        conversation_id=row.id,
        submission_id=row.submission_id,
        character=row.character,
        first_message=row.bot.first_message if row.character is not None else None,
    )


def new_history(row: ConversationRow) -> History:
    """Return the history of a conversation without messages, as the gateway keeps it in memory."""
    return History(
        conversation_id=row.id,
        account_id=row.account_id,
        submission_id=row.submission_id,
        user_id=row.user_id,
        user_name=row.user_name,
        bot=row.bot,
        message_count=0,
        competition=row.competition,
        variant=(row.experiment, row.variant) if row.experiment and row.variant else None,
        began_at=row.created_at.timestamp(),
        written=carried_summary(row.carried),
    )


def read_conversation(row: ConversationRow, messages: Sequence[MessageRow]) -> Conversation:
    return Conversation(
        conversation_id=row.id,
        submission_id=row.submission_id,
        bot=row.bot,
        user_name=row.user_name,
        created_at=row.created_at,
        competition=row.competition if row.competition != CHOSEN else None,
        character=row.character,
        is_chosen=row.competition == CHOSEN,
        external_id=row.external_id,
        metadata=row.app_metadata or {},
        messages=read_messages(messages),
    )


def read_messages(rows: Sequence[MessageRow]) -> list[Message]:
    """Read messages in their order. A reply whose predecessor was deleted has taken its place: it is regenerated."""
    return [
        read_message(row, is_regenerated=row.sender is Sender.BOT and _is_replaced(before))
        for row, before in zip(rows, (None, *rows), strict=False)
    ]


def _is_replaced(before: MessageRow | None) -> bool:
    return before is not None and before.sender is Sender.BOT and before.is_deleted


def read_message(row: MessageRow, is_regenerated: bool = False) -> Message:
    is_own = row.original is None  # times would tell which of a battle's two replies it is
    has_timings = row.ttft_ms is not None and row.total_ms is not None and is_own
    return Message(
        id=row.id,
        sender=row.sender,
        content=row.content,
        at=row.created_at,
        is_deleted=row.is_deleted,
        is_regenerated=is_regenerated,
        is_imported=row.is_imported,
        edited_at=row.edited_at,
        thumbs_up=row.thumbs_up,
        timings=Timings(ttft_ms=row.ttft_ms, total_ms=row.total_ms) if has_timings else None,
        lore=tuple(row.lore or ()),
        recalled=tuple(row.recalled or ()),
    )
