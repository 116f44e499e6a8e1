"""Replies, measured."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from guanaco_server.chat.best_of import BestOf, Scene
from guanaco_server.chat.generation import Deadlines, Generated, Pieces, ReplyGenerator
from guanaco_server.deployments.model_server import Generation, ModelServer
from guanaco_server.observability.metrics import Metrics
from guanaco_server.prompts.service import PromptService
from guanaco_server.routing.policy import LiveSubmission
from guanaco_server.routing.replicas import ReplicaChooser


class MeasuredReplyGenerator(ReplyGenerator):
    def __init__(
        self,
        model_server: ModelServer,
        prompts: PromptService,
        replicas: ReplicaChooser,
        deadlines: Deadlines,
        endpoints: Callable[[str], Sequence[str]],
        report_fault: Callable[[str], None],
        metrics: Metrics,
        best_of: BestOf | None = None,
    ) -> None:
        super().__init__(
            model_server, prompts, replicas, deadlines, endpoints, report_fault, best_of
        )
        self._metrics = metrics

    async def complete(
        self, live: LiveSubmission, generation: Generation, key: str, scene: Scene | None = None
    ) -> AsyncGenerator[Pieces | Generated, None]:
        """As ReplyGenerator's; counted under its outcome, also when the client leaves in the middle."""
        with self._metrics.reply() as reply:
            async with aclosing(super().complete(live, generation, key, scene)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Generated):
                        reply.note_end(piece.usage.prompt_tokens, piece.usage.completion_tokens)
                    else:
                        reply.note_text()
                    yield piece
