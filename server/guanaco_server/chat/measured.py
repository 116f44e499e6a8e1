"""Replies, measured."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from guanaco.chat import Bot, Turn
from guanaco_server.chat.best_of import BestOf
from guanaco_server.chat.generation import Deadlines, Generated, ReplyGenerator
from guanaco_server.deployments.model_server import ModelServer
from guanaco_server.observability.metrics import Metrics
from guanaco_server.prompts.tokenizers import TokenizerCache
from guanaco_server.routing.policy import LiveSubmission


class MeasuredReplyGenerator(ReplyGenerator):
    def __init__(
        self,
        model_server: ModelServer,
        tokenizers: TokenizerCache,
        deadlines: Deadlines,
        report_fault: Callable[[str], None],
        metrics: Metrics,
        best_of: BestOf | None = None,
    ) -> None:
        super().__init__(model_server, tokenizers, deadlines, report_fault, best_of)
        self._metrics = metrics

    async def generate(
        self, live: LiveSubmission, bot: Bot, user_name: str, turns: Sequence[Turn]
    ) -> AsyncGenerator[str | Generated, None]:
        """As ReplyGenerator's; counted under its outcome, also when the client leaves in the middle."""
        with self._metrics.reply() as reply:
            async with aclosing(super().generate(live, bot, user_name, turns)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Generated):
                        reply.note_end(piece.usage.prompt_tokens, piece.usage.completion_tokens)
                    else:
                        reply.note_text()
                    yield piece
