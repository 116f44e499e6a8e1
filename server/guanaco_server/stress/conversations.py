"""The prompts of the stress check: conversations of several lengths with each shipped bot, as users of an app have them.

Each is with another user, so that a model server finds in its prefix cache what it would find of real users' chats: the
bot's persona, not the whole prompt. Every fourth is as long as the submission's ``max_input_tokens`` lets it be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from guanaco.bots import BOTS
from guanaco.chat import Bot, Sender, Turn
from guanaco.errors import BadPrompt, ContextTooLong, MessageTooLong, PromptFailed
from guanaco.prompts import Prompt
from guanaco.submissions import GenerationParams
from guanaco_server.prompts.service import PromptService

CHAT = (
    Turn(sender=Sender.USER, content="Hi! How was your day?"),
    Turn(sender=Sender.BOT, content="Wonderful. I walked along the sea and thought of you."),
    Turn(sender=Sender.USER, content="Tell me something that I do not know about you."),
    Turn(
        sender=Sender.BOT,
        content="I collect old maps, and I have been lost in every place on them.",
    ),
    Turn(sender=Sender.USER, content="Where do we go first?"),
)
LONG_CHAT = (*CHAT[:-1] * 100, CHAT[-1])  # cut to what fits
LENGTHS = (CHAT[:1], CHAT[:3], CHAT, LONG_CHAT)
USERS = ("Ana", "Ben", "Chioma", "Dmitri")
PLAIN_BOT = Bot(name="Bot")


@dataclass(frozen=True)
class Prompted:
    """The parts that a submission's prompts are made of."""

    formatter: Prompt
    artifact_key: str
    params: GenerationParams


async def conversation_prompts(
    prompts: PromptService, prompted: Prompted, *, most: int
) -> list[str]:
    """Make one prompt for each user, bot and length that fits, and no more than ``most``.

    ContextTooLong if not even a bare greeting does, BadPrompt if the template makes none.
    """
    made: list[str] = []
    try:
        for user, bot in product(USERS, BOTS.values()):
            for turns in LENGTHS[: most - len(made)]:
                try:
                    made.append(await _prompt(prompts, prompted, bot, turns, user))
                except MessageTooLong:
                    break
        return made or [await _bare_prompt(prompts, prompted)]
    except PromptFailed as error:
        raise BadPrompt(error.detail, hint="Submit with another prompt.") from None


async def _bare_prompt(prompts: PromptService, prompted: Prompted) -> str:
    turns = (Turn(sender=Sender.USER, content="Hi"),)
    try:
        return await _prompt(prompts, prompted, PLAIN_BOT, turns, "You")
    except MessageTooLong as error:
        raise ContextTooLong(
            f"With this formatter, not even a bare greeting fits into max_input_tokens = {prompted.params.max_input_tokens}: {error.detail}",
            hint="Raise max_input_tokens, or shorten the formatter's templates.",
        ) from None


async def _prompt(
    prompts: PromptService, prompted: Prompted, bot: Bot, turns: Sequence[Turn], user: str
) -> str:
    return await prompts.render(
        formatter=prompted.formatter,
        artifact_key=prompted.artifact_key,
        max_input_tokens=prompted.params.max_input_tokens,
        bot=bot,
        user_name=user,
        turns=turns,
    )
