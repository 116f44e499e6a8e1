"""A developer's try of her own submission: nothing is recorded, and the prompt is shown."""

from __future__ import annotations

from contextlib import aclosing

from guanaco.chat import PreviewRequest, Reply
from guanaco.errors import InvalidInput
from guanaco.submissions import SubmissionKind
from guanaco_server.accounts.service import Account
from guanaco_server.chat.generation import Generated, ReplyGenerator
from guanaco_server.chat.replies import ReplyEvents
from guanaco_server.routing.service import RoutingService
from guanaco_server.submissions.service import SubmissionService


class PreviewService:
    def __init__(
        self,
        submissions: SubmissionService,
        routing: RoutingService,
        generator: ReplyGenerator,
    ) -> None:
        self._submissions = submissions
        self._routing = routing
        self._generator = generator

    async def preview(
        self, account: Account, submission_id: str, request: PreviewRequest
    ) -> ReplyEvents:
        submission = await self._submissions.require_visible(account, submission_id)
        if submission.kind is SubmissionKind.REWARD:
            raise InvalidInput(f"{submission_id} is a reward model, which writes no replies.")
        return self._reply(submission_id, request)

    async def _reply(self, submission_id: str, request: PreviewRequest) -> ReplyEvents:
        live = await self._routing.target(submission_id)
        key = f"{request.bot.name} {request.turns[:1]}"  # the same talk, turn by turn
        pieces = await self._generator.generate(
            live, request.bot, request.user_name, request.turns, key
        )
        async with aclosing(pieces):
            async for piece in pieces:
                if isinstance(piece, Generated):
                    yield Reply(
                        message_id=None,
                        content=piece.content,
                        finish_reason=piece.finish_reason,
                        usage=piece.usage,
                        timings=piece.timings,
                        prompt=piece.prompt,
                        reward_score=piece.reward_score,
                    )
                else:
                    yield piece
