"""Records votes on battles, and shows duels to apps, developers and admins.

A vote can be given and changed for a day. Giving the same vote again changes nothing. Each vote is a row of ``duels`` that
stays as it is; the battle has the one that stands.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

from sqlalchemy.ext.asyncio import AsyncSession

from guanaco.duels import (
    BattleRecord,
    BattleReply,
    Duel,
    DuelOutcome,
    DuelPage,
    DuelQuery,
    DuelVoteRequest,
    PairScore,
    Side,
)
from guanaco.errors import (
    BattleNotFound,
    ConversationNotFound,
    InvalidInput,
    RatingSettled,
)
from guanaco_server.accounts.service import Account
from guanaco_server.anonymization.anonymizer import Anonymizer
from guanaco_server.chat.conversations.editing import ConversationEditor
from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.competitions.service import CompetitionService
from guanaco_server.database.database import Database
from guanaco_server.database.paging import TimeCursor
from guanaco_server.duels import queries
from guanaco_server.duels.scores import result_for, score_of, scores_of_pairs
from guanaco_server.duels.tables import BattleRow, DuelRow
from guanaco_server.idempotency.keeping import keep_answer
from guanaco_server.runtime import threads
from guanaco_server.runtime.clock import Clock
from guanaco_server.submissions.service import SubmissionService

CHANGEABLE = timedelta(days=1)
MAX_VOTES = 20  # on one battle: a person changes their mind once or twice
CURSORS = TimeCursor("battle")
WITHHELD = "<WITHHELD>"

logger = logging.getLogger(__name__)


class DuelService:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        submissions: SubmissionService,
        competitions: CompetitionService,
        conversations: ConversationService,
        editor: ConversationEditor,
        anonymizer: Anonymizer,
    ) -> None:
        self._database = database
        self._clock = clock
        self._submissions = submissions
        self._competitions = competitions
        self._conversations = conversations
        self._editor = editor
        self._anonymizer = anonymizer

    async def list_battles(self, account: Account, conversation_id: str) -> list[BattleRecord]:
        """Return the battles of one's own conversation, oldest first."""
        async with self._database.read() as session:
            await self._require_own(session, account, conversation_id)
            rows = await queries.of_conversation(session, conversation_id)
            stored = await self._editor.message_ids(session, conversation_id)
        return [_read(row) for row in rows if row.message_id in stored]

    async def vote(
        self, account: Account, conversation_id: str, battle_id: str, request: DuelVoteRequest
    ) -> BattleRecord:
        """Record a vote, and have the conversation go on with the chosen reply.

        Raises:
            BattleNotFound: The conversation has no such battle.
            RatingSettled: It is too late, or the vote was changed too often.
            InvalidInput: Another reply was asked for after the conversation had gone on.
        """

        async def vote(session: AsyncSession) -> BattleRecord:
            competition = await self._require_own(session, account, conversation_id)
            row = await queries.locked(session, battle_id)
            stored = await self._editor.message_ids(session, conversation_id)
            if (
                row is None
                or row.conversation_id != conversation_id
                or row.message_id not in stored
            ):
                raise BattleNotFound(battle_id)
            await self._conversations.require_unfrozen(session, competition)
            side = await self._side(session, row, request)
            if (row.outcome, row.continues_from) != (request.outcome, side):
                self._require_changeable(row)
                self._note(session, account, row, DuelOutcome(request.outcome), side)
            read = _read(row)
            await session.flush()
            await keep_answer(session, read)
            return read

        return await self._database.write_unit(vote)

    async def page(self, account: Account, submission_id: str, query: DuelQuery) -> DuelPage:
        """Return a submission's duels with the results that count; the other side has no name."""
        await self._submissions.ensure_visible(account, submission_id)
        before = CURSORS.decode(query.cursor)
        async with self._database.read() as session:
            rows = await queries.page(session, submission_id, before, query.limit)
            pairs = await queries.pairs_of(session, submission_id)
            names = await self._conversations.user_names(
                session, [row.conversation_id for row in rows]
            )
        items = await threads.PAGES.run(self._shown, submission_id, rows, names)
        return DuelPage(
            score=score_of(
                row.results if row.first == submission_id else row.results.seen_by_other
                for row in pairs
            ),
            items=items,
            next_cursor=_cursor(rows[-1]) if len(rows) == query.limit else None,
        )

    async def pairs(self, competition_id: str) -> list[PairScore]:
        """Return the results of each pair of a competition, as far as they count."""
        await self._competitions.find(competition_id)
        async with self._database.read() as session:
            rows = await queries.pairs_in(session, competition_id)
        return scores_of_pairs((row.first, row.second, row.results) for row in rows)

    async def _require_own(
        self, session: AsyncSession, account: Account, conversation_id: str
    ) -> str:
        """Hold the conversation, and return its competition; ConversationNotFound for another account's."""
        found = await self._conversations.rateable(session, {conversation_id})
        one = found.get(conversation_id)
        if one is None or one.account_id != account.id:
            raise ConversationNotFound(conversation_id)
        return one.competition

    async def _side(self, session: AsyncSession, row: BattleRow, request: DuelVoteRequest) -> Side:
        """Have the conversation go on with the side that the vote asks for, and return that side."""
        before = cast(Side, row.continues_from)
        better = before if request.outcome in ("tie", "both_bad") else cast(Side, request.outcome)
        side = request.continue_from or better
        if side == before:
            return side
        content = None if side == row.own_side else _content(row, side)
        if not await self._editor.replace_reply(
            session, row.conversation_id, row.message_id, content
        ):
            if request.continue_from is not None:
                raise InvalidInput(
                    "The conversation has gone on after this battle, so it cannot go on with the other reply.",
                    hint="Leave out `continue_from`: the vote counts all the same.",
                )
            return before
        return side

    def _require_changeable(self, row: BattleRow) -> None:
        if self._clock.now() >= row.created_at + CHANGEABLE:
            raise RatingSettled("This battle is older than a day, so it can no longer be voted on.")
        if row.revision >= MAX_VOTES:
            raise RatingSettled(f"The vote on this battle was changed {MAX_VOTES} times already.")

    def _note(
        self,
        session: AsyncSession,
        account: Account,
        row: BattleRow,
        outcome: DuelOutcome,
        side: Side,
    ) -> None:
        now = self._clock.now()
        row.outcome, row.continues_from, row.voted_at = outcome, side, now
        row.revision += 1
        session.add(
            DuelRow(
                battle_id=row.id,
                revision=row.revision,
                outcome=outcome,
                continues_from=side,
                at=now,
                given_by=account.id,
            )
        )

    def _shown(
        self, submission_id: str, rows: Sequence[BattleRow], names: dict[str, str]
    ) -> list[Duel]:
        return [self._duel(submission_id, row, names.get(row.conversation_id, "")) for row in rows]

    def _duel(self, submission_id: str, row: BattleRow, user_name: str) -> Duel:
        side: Side = "a" if row.a_submission == submission_id else "b"
        other: Side = "b" if side == "a" else "a"
        assert row.outcome is not None
        assert row.voted_at is not None
        return Duel(
            id=row.id,
            submission_id=submission_id,
            competition=row.competition,
            result=result_for(side, row.outcome),
            reply=self._anonymous(_content(row, side), user_name),
            other_reply=self._anonymous(_content(row, other), user_name),
            went_on=row.continues_from == side,
            at=row.voted_at,
        )

    def _anonymous(self, text: str, user_name: str) -> str:
        """A text on which the anonymizer fails is not shown."""
        try:
            return self._anonymizer.text(text, user_name)
        except Exception as error:  # noqa: BLE001 - foreign text in foreign parsers
            logger.error("anonymization of a duel failed: %s", type(error).__name__)
            return WITHHELD


def _content(row: BattleRow, side: Side) -> str:
    return row.a_content if side == "a" else row.b_content


def _read(row: BattleRow) -> BattleRecord:
    return BattleRecord(
        battle_id=row.id,
        message_id=row.message_id,
        a=BattleReply(content=row.a_content, finish_reason=row.a_finish_reason),
        b=BattleReply(content=row.b_content, finish_reason=row.b_finish_reason),
        continues_from=cast(Side, row.continues_from),
        outcome=row.outcome,
        revision=row.revision,
        created_at=row.created_at,
        voted_at=row.voted_at,
    )


def _cursor(row: BattleRow) -> str:
    """Return where the page after this battle goes on; one on a page has a vote."""
    assert row.voted_at is not None
    return CURSORS.encode(row.voted_at, row.id)
