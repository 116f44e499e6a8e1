"""What the stress check asks: prompts like those of real conversations, of several lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from guanaco.bots import BOTS
from guanaco.chat import Bot, Sender, Turn
from guanaco.errors import ContextTooLong, MessageTooLong
from guanaco.prompts import PromptFormatter
from guanaco.submissions import GenerationParams
from guanaco_server.prompts.rendering import render

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


def conversation_prompts(
    formatter: PromptFormatter, params: GenerationParams, count_tokens: Callable[[str], int]
) -> list[str]:
    """One prompt for each shipped bot and length that fits; ContextTooLong if not even a bare greeting does."""
    prompts = []
    for bot in BOTS.values():
        for length in LENGTHS:
            try:
                prompts.append(_prompt(formatter, bot, CHAT[:length], count_tokens, params))
            except MessageTooLong:
                break
    return prompts or [_bare_prompt(formatter, params, count_tokens)]


def _bare_prompt(
    formatter: PromptFormatter, params: GenerationParams, count_tokens: Callable[[str], int]
) -> str:
    turns = (Turn(sender=Sender.USER, content="Hi"),)
    try:
        return _prompt(formatter, PLAIN_BOT, turns, count_tokens, params)
    except MessageTooLong as error:
        raise ContextTooLong(
            f"With this formatter not even a bare greeting fits into max_input_tokens = {params.max_input_tokens}: {error.detail}",
            hint="Raise max_input_tokens, or shorten the formatter's templates.",
        ) from None


def _prompt(
    formatter: PromptFormatter,
    bot: Bot,
    turns: Sequence[Turn],
    count_tokens: Callable[[str], int],
    params: GenerationParams,
) -> str:
    return render(
        formatter=formatter,
        bot=bot,
        user_name="You",
        turns=list(turns),
        count_tokens=count_tokens,
        max_input_tokens=params.max_input_tokens,
    )
