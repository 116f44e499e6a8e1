"""What the stress check asks: prompts like those of real conversations, of several lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    Turn(sender=Sender.USER, content="Where shall we go first?"),
)
LENGTHS = (1, 3, 5)  # turns: a first message, and two points further on
PLAIN_BOT = Bot(name="Bot")


@dataclass(frozen=True)
class Prompted:
    """What a submission's prompts are made with."""

    formatter: Prompt
    artifact_key: str
    params: GenerationParams


async def conversation_prompts(prompts: PromptService, prompted: Prompted) -> list[str]:
    """One prompt for each shipped bot and length that fits; ContextTooLong if not even a bare greeting does, BadPrompt if the template makes none."""
    made = []
    try:
        for bot in BOTS.values():
            for length in LENGTHS:
                try:
                    made.append(await _prompt(prompts, prompted, bot, CHAT[:length]))
                except MessageTooLong:
                    break
        return made or [await _bare_prompt(prompts, prompted)]
    except PromptFailed as error:
        raise BadPrompt(error.detail, hint="Submit with another prompt.") from None


async def _bare_prompt(prompts: PromptService, prompted: Prompted) -> str:
    turns = (Turn(sender=Sender.USER, content="Hi"),)
    try:
        return await _prompt(prompts, prompted, PLAIN_BOT, turns)
    except MessageTooLong as error:
        raise ContextTooLong(
            f"With this formatter not even a bare greeting fits into max_input_tokens = {prompted.params.max_input_tokens}: {error.detail}",
            hint="Raise max_input_tokens, or shorten the formatter's templates.",
        ) from None


async def _prompt(
    prompts: PromptService, prompted: Prompted, bot: Bot, turns: Sequence[Turn]
) -> str:
    return await prompts.render(
        formatter=prompted.formatter,
        artifact_key=prompted.artifact_key,
        max_input_tokens=prompted.params.max_input_tokens,
        bot=bot,
        user_name="You",
        turns=turns,
    )
