"""Builds the OpenAI-compatible API over the chat room's services."""

from __future__ import annotations

from dataclasses import dataclass

from guanaco_server.chat.conversations.service import ConversationService
from guanaco_server.chat.gateway.generation import ReplyGenerator
from guanaco_server.chat.gateway.replies import ReplyService
from guanaco_server.openai.service import OpenAiService
from guanaco_server.routing.service import RoutingService
from guanaco_server.submissions.aliases.service import AliasService
from guanaco_server.tokenization.service import Tokenizers


@dataclass(frozen=True)
class OpenAiRoom:
    service: OpenAiService


def build_openai(
    *,
    routing: RoutingService,
    conversations: ConversationService,
    replies: ReplyService,
    generator: ReplyGenerator,
    tokenizers: Tokenizers,
    aliases: AliasService,
) -> OpenAiRoom:
    return OpenAiRoom(
        OpenAiService(routing, conversations, replies, generator, tokenizers, aliases)
    )
