"""The five templates, filled for one bot and user.

memory_template   the bot's persona                 never cut
prompt_template   scenario or example dialogue      dropped last
turns             oldest first, in blocks           dropped first; the newest user message never
response_template                                   never cut
"""

from __future__ import annotations

from functools import lru_cache

from guanaco.chat import Bot, Sender
from guanaco.prompts import PromptFormatter, fill, parse_template
from guanaco_server.prompts.layouts import Layout, Part
from guanaco_server.prompts.utterances import Spoken


@lru_cache(maxsize=4096)  # bots in use; each as long as its texts
def formatter_layout(formatter: PromptFormatter, bot: Bot, user_name: str) -> Layout:
    names = {"bot_name": bot.name, "user_name": user_name}
    bot_says = _around_message(formatter.bot_template, names)
    user_says = _around_message(formatter.user_template, names)

    def turn_text(turn: Spoken) -> str:
        says = bot_says if turn.sender is Sender.BOT else user_says
        return turn.content.join(says)

    return Layout(
        before=(
            Part(fill(formatter.memory_template, memory=bot.memory, **names)),
            Part(fill(formatter.prompt_template, prompt=bot.prompt, **names), priority=1),
        ),
        after=(Part(fill(formatter.response_template, **names)),),
        turn_priority=2,
        turn_text=turn_text,
        made_of=(formatter, bot, user_name),
    )


def layout_like(
    known: Layout | None, formatter: PromptFormatter, bot: Bot, user_name: str
) -> Layout:
    """``known`` if it is that one: more are in use than are kept here."""
    if known is not None and known.made_of == (formatter, bot, user_name):
        return known
    return formatter_layout(formatter, bot, user_name)


def _around_message(template: str, names: dict[str, str]) -> tuple[str, ...]:
    """The texts between which the message stands."""
    texts = [""]
    for literal, field in parse_template(template):
        texts[-1] += literal
        if field == "message":
            texts.append("")
        elif field is not None:
            texts[-1] += names.get(field, "")
    return tuple(texts)
