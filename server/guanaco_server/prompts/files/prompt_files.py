"""A prompt file's parts, rendered for one bot and user; of the turns, each once."""

from __future__ import annotations

from collections.abc import Sequence

from guanaco.chat import Bot, Sender
from guanaco.errors import PromptFailed
from guanaco.prompts import PromptFile, PromptPart
from guanaco_server.prompts.counting import Generations
from guanaco_server.prompts.layouts import ChatTurn, Layout, Part, content_with_lore, persona
from guanaco_server.prompts.templates.process import Job, TemplateFault, TemplateProcess

KEPT_CHARS = 8_000_000
BATCH = 64  # turns that are rendered in one request to the process


class PromptFileRenderer:
    """Blocks while the template process works; what it rendered once is kept."""

    def __init__(self, process: TemplateProcess) -> None:
        self._process = process
        self._texts: Generations[tuple[str, frozenset[tuple[str, str]]], str] = Generations(
            KEPT_CHARS
        )
        self._layouts: Generations[tuple[PromptFile, Bot, str], Layout] = Generations(KEPT_CHARS)

    def layout(
        self, file: PromptFile, bot: Bot, user_name: str, turns: Sequence[ChatTurn]
    ) -> Layout:
        """With the newest ``turns`` rendered; older ones are when they are asked for. PromptFailed names the part."""
        key = (file, bot, user_name)
        layout = self._layouts.find(key)
        if layout is None:
            layout = self._new_layout(file, bot, user_name)
            self._layouts.keep(
                key, layout, 1_000 + len(bot.memory) + len(bot.prompt) + len(bot.post_history)
            )
        names = _names(bot, user_name)
        part = file.turn_part
        self._render(part, [_of_turn(bot, names, turn) for turn in turns[-BATCH:]])
        return layout

    def _new_layout(self, file: PromptFile, bot: Bot, user_name: str) -> Layout:
        names = _names(bot, user_name)
        given = names | {"memory": persona(bot), "prompt": bot.prompt}
        place = file.parts.index(file.turn_part)
        parts = [
            Part(self._render(part, [given])[0], part.truncation_priority, part.role or "system")
            if part.each is None
            else Part("")
            for part in file.parts
        ]
        return Layout(
            before=tuple(parts[:place]),
            after=(*_post_history_parts(bot), *parts[place + 1 :]),
            turn_priority=file.turn_part.truncation_priority,
            turn_text=lambda turn: self._render(file.turn_part, [_of_turn(bot, names, turn)])[0],
        )

    def _render(self, part: PromptPart, givens: list[dict[str, str]]) -> list[str]:
        keys = [(part.content, frozenset(given.items())) for given in givens]
        known = [self._texts.find(key) for key in keys]
        missing = [number for number, text in enumerate(known) if text is None]
        jobs = [Job(part.content, givens[number], is_strict=True) for number in missing]
        try:
            made = self._process.render(jobs)
        except TemplateFault as fault:
            raise PromptFailed(f"The prompt file's part {part.name!r}", str(fault)) from None
        for number, text in zip(missing, made, strict=True):
            known[number] = text
            self._texts.keep(keys[number], text, len(text) + 200)
        return [text or "" for text in known]


def _post_history_parts(bot: Bot) -> tuple[Part, ...]:
    """Return the instructions behind the turns, which no part of a file names."""
    return (Part(f"{bot.post_history}\n", role="user"),) if bot.post_history else ()


def _names(bot: Bot, user_name: str) -> dict[str, str]:
    return {"bot_name": bot.name, "user_name": user_name}


def _of_turn(bot: Bot, names: dict[str, str], turn: ChatTurn) -> dict[str, str]:
    is_bot = turn.sender is Sender.BOT
    return names | {
        "name": names["bot_name" if is_bot else "user_name"],
        "message": content_with_lore(bot, turn),
        "sender": turn.sender.value,
    }
