"""Checks that a bot's persona leaves room for a conversation in what a model is given.

The prompt of a short first message must fit with MESSAGE_TOKENS to spare, an eighth of a small input. It is rendered as
the message would be: bytes that are few enough are proof, and else the submission's tokenizer counts.
"""

from __future__ import annotations

import logging
from typing import Any

from guanaco.chat import Bot, Sender
from guanaco.errors import MessageTooLong, PersonaTooLong, Unavailable
from guanaco_server.prompts.layouts import Utterance
from guanaco_server.prompts.service import PromptService
from guanaco_server.submissions.catalog import ServingSubmission

MESSAGE_TOKENS = 64
MESSAGE_SHARE = 8
FIRST = (Utterance(Sender.USER, "Hello!"),)

logger = logging.getLogger(__name__)


class PersonaFit:
    """The fit of one bot and user. Submissions with the same model, prompt and input are tried once."""

    def __init__(self, prompts: PromptService, bot: Bot, user_name: str) -> None:
        self._prompts = prompts
        self._bot = bot
        self._user_name = user_name
        self._tried: dict[Any, bool] = {}
        self._most_room = -1
        self.roomiest: tuple[ServingSubmission, int, int] | None = None
        self.problem: PersonaTooLong | None = None

    async def fits(self, serving: ServingSubmission) -> bool:
        """Return whether the persona fits. If not, ``problem`` has the figures of the submission with the most room, and ``roomiest`` that one with its room and the tokens that the prompt takes."""
        size = serving.params.max_input_tokens
        key = (serving.artifact_key, serving.formatter, size)
        if key not in self._tried:
            room = size - min(MESSAGE_TOKENS, size // MESSAGE_SHARE)
            self._tried[key] = await self._fits(serving, room)
        return self._tried[key]

    async def _fits(self, serving: ServingSubmission, room: int) -> bool:
        try:
            await self._prompts.render(
                formatter=serving.formatter,
                artifact_key=serving.artifact_key,
                max_input_tokens=room,
                bot=self._bot,
                user_name=self._user_name,
                turns=FIRST,
            )
        except MessageTooLong as error:
            if room > self._most_room:
                self._most_room = room
                self.roomiest = (serving, room, error.tokens)
                self.problem = PersonaTooLong(error.tokens, room)
            return False
        except (Unavailable, OSError) as error:  # which says nothing about the persona
            logger.warning("whether a persona fits %s is not known: %s", serving.id, error)
        return True
