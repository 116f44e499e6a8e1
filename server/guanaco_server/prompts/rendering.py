"""From a bot and a conversation to the prompt that the model gets, cut to a token budget.

    memory_template   the bot's persona                 never cut
    prompt_template   scenario or example dialogue      dropped last
    turns             oldest first                      dropped first; the newest user message never
    response_template                                   never cut

Counts are exact: each candidate is tokenized as a whole, special tokens included, and the number of turns
that fit is found by bisection, in O(log n) tokenizations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from guanaco.chat import Bot, Sender, Turn
from guanaco.errors import MessageTooLong
from guanaco.prompts import PromptFormatter, fill

CountTokens = Callable[[str], int]


def render(
    *,
    formatter: PromptFormatter,
    bot: Bot,
    user_name: str,
    turns: Sequence[Turn],
    count_tokens: CountTokens,
    max_input_tokens: int,
) -> str:
    """The prompt, of at most ``max_input_tokens`` tokens; MessageTooLong if persona and newest message alone are longer."""
    names = {"bot_name": bot.name, "user_name": user_name}
    memory = fill(formatter.memory_template, memory=bot.memory, **names)
    scenario = fill(formatter.prompt_template, prompt=bot.prompt, **names)
    response = fill(formatter.response_template, **names)
    rendered = [_render_turn(formatter, turn, names) for turn in _with_greeting(bot, turns)]

    def assemble(dropped: int, with_scenario: bool = True) -> str:
        return memory + (scenario if with_scenario else "") + "".join(rendered[dropped:]) + response

    def fits(prompt: str) -> bool:
        return count_tokens(prompt) <= max_input_tokens

    most = _droppable(turns, len(rendered))
    if not fits(assemble(most)):
        bare = assemble(most, with_scenario=False)
        if not fits(bare):
            raise _too_long(count_tokens(bare), max_input_tokens)
        return bare
    low, high = 0, most  # dropping `high` turns fits
    while low < high:
        middle = (low + high) // 2
        if fits(assemble(middle)):
            high = middle
        else:
            low = middle + 1
    return assemble(high)


def _with_greeting(bot: Bot, turns: Sequence[Turn]) -> list[Turn]:
    greeting = [Turn(sender=Sender.BOT, content=bot.first_message)] if bot.first_message else []
    return [*greeting, *turns]


def _render_turn(formatter: PromptFormatter, turn: Turn, names: dict[str, str]) -> str:
    is_bot = turn.sender is Sender.BOT
    template = formatter.bot_template if is_bot else formatter.user_template
    return fill(template, message=turn.content, **names)


def _droppable(turns: Sequence[Turn], rendered_count: int) -> int:
    """All turns but those from the newest user message on."""
    for back, turn in enumerate(reversed(turns), start=1):
        if turn.sender is Sender.USER:
            return rendered_count - back
    return rendered_count


def _too_long(tokens: int, budget: int) -> MessageTooLong:
    return MessageTooLong(
        f"The bot's persona and the newest message take {tokens:,} tokens; this model is given {budget:,}.",
        hint="Shorten the message or the persona.",
    )
