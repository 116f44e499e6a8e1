"""Renders templates in Prompt Poet's form: Jinja makes YAML of the whole conversation, and YAML the parts of the prompt.

    template ──Jinja──▶ YAML text ──parse──▶ parts (name, role, content, truncation_priority) ──cut──▶ prompt
              └──────── in the template process (sandbox.py, poet_parts.py) ────────┘

Unlike there, nobody's text can become YAML. Each character that YAML could take for its own is exchanged for a private one, one for one, in
everything that is given to the template, and exchanged back in the parts' contents (poet_parts.py); so ``escape_special_characters`` has nothing to do.

When the prompt is too long, parts of the highest priority go first, within one priority the first one in the prompt, and always enough of them to make a whole number of steps: the beginning of the prompt then stays the same for many turns, and so does what the model server has cached of it. The part
with the user's newest message never goes, whatever its priority.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from guanaco.chat import Bot, Sender
from guanaco.errors import PromptFailed
from guanaco.prompts import PoetPrompt
from guanaco_server.prompts.files.poet_parts import EXCHANGED, NEWEST, PoetPart
from guanaco_server.prompts.layouts import ChatTurn, content_with_lore, persona
from guanaco_server.prompts.rendering import too_long
from guanaco_server.prompts.templates.process import Job, TemplateFault, TemplateProcess

WHAT = "The Prompt Poet template"
STEPS = 8  # of a budget: the number of tokens that are cut at once
MAX_INCLUDES = 64
INCLUDE = re.compile(r"\{%-?\s*include\s+(['\"])(.{1,200}?)\1\s*-?%\}")


class PoetRenderer:
    """Blocks while the template process works."""

    def __init__(self, process: TemplateProcess) -> None:
        self._process = process

    def parts(
        self, prompt: PoetPrompt, bot: Bot, user_name: str, turns: Sequence[ChatTurn]
    ) -> list[PoetPart]:
        """Return the parts of a conversation, the greeting among ``turns``. PromptFailed says what is wrong with the template."""
        template = "".join([*_functions(prompt), _included(prompt.template, prompt.sections)])
        given = _exchanged(_given(prompt, bot, user_name, turns))
        try:
            return self._process.poet_parts(Job(template, given))
        except TemplateFault as fault:
            raise PromptFailed(WHAT, str(fault)) from None


def cut(
    parts: Sequence[PoetPart],
    budget: int,
    compose: Callable[[Sequence[PoetPart]], str],
    count: Callable[[str], int],
    whole: Callable[[str], int],
) -> str:
    """Return the prompt, of at most ``budget`` tokens. MessageTooLong if what is never cut is longer.

    Args:
        parts: All parts, in their order.
        budget: The tokens that the prompt may have.
        compose: Makes a text of parts.
        count: Counts a part's text alone.
        whole: Counts a finished prompt exactly.
    """
    prompt = compose(parts)
    tokens = whole(prompt)
    if tokens <= budget:
        return prompt
    step = max(1, budget // STEPS)
    surplus = -(-(tokens - budget) // step) * step
    removable = _in_order_of_removal(parts)
    gone: set[int] = set()
    removed = 0
    for place, part in enumerate(removable, 1):
        gone.add(id(part))
        removed += count(part.content)
        if removed < surplus and place < len(removable):
            continue
        prompt = compose([one for one in parts if id(one) not in gone])
        tokens = whole(prompt)
        if tokens <= budget:
            return prompt
        surplus = removed + step  # the sum of parts is not exact: one step more
    raise too_long(tokens, budget)


def _in_order_of_removal(parts: Sequence[PoetPart]) -> list[PoetPart]:
    removable = [part for part in parts if part.priority > 0]
    return sorted(removable, key=lambda part: -part.priority)  # stable: the first one first


def _functions(prompt: PoetPrompt) -> Iterator[str]:
    """Write a macro for each function: it returns the value, or that of its first argument where the value is a mapping."""
    yield "{% macro escape_special_characters(text) %}{{ text }}{% endmacro %}"
    for name in prompt.functions:
        yield (
            f"{{% macro {name}() %}}{{% set found = functions_[{name!r}] %}}"
            "{% if found is mapping %}{{ found[varargs[0] | string] }}{% else %}{{ found }}{% endif %}"
            "{% if kwargs %}{% endif %}{% endmacro %}"
        )


def _included(template: str, sections: dict[str, str]) -> str:
    """Put sections in the places that include them."""
    left = MAX_INCLUDES

    def section(match: re.Match[str]) -> str:
        nonlocal left
        left -= 1
        if left < 0:  # at once: a pass could write gigabytes
            raise PromptFailed(WHAT, f"it includes more than {MAX_INCLUDES} sections")
        if match[2] not in sections:
            raise PromptFailed(WHAT, f"it includes {match[2]!r}, which is none of its sections")
        return sections[match[2]]

    while INCLUDE.search(template):
        template = INCLUDE.sub(section, template)
    return template


def _given(
    prompt: PoetPrompt, bot: Bot, user_name: str, turns: Sequence[ChatTurn]
) -> dict[str, Any]:
    """Return the variables: our names, those of Prompt Poet's examples, and what the prompt brings."""
    spoken = list(turns)
    query = ""
    if "user_query" in prompt.template and spoken and spoken[-1].sender is Sender.USER:
        query = NEWEST + content_with_lore(bot, spoken.pop())
    newest = spoken[-1] if spoken and spoken[-1].sender is Sender.USER else None
    authored = [
        (
            bot.name if turn.sender is Sender.BOT else user_name,
            turn.sender,
            (NEWEST if turn is newest else "") + content_with_lore(bot, turn),
        )
        for turn in spoken
    ]
    messages = [
        {
            "author": author,
            "text": text,
            "content": text,
            "sender": sender.value,
            "role": "assistant" if sender is Sender.BOT else "user",
            "is_pinned": False,
        }
        for author, sender, text in authored
    ]
    return {
        "sep": "\n",
        "bot_name": bot.name,
        "character_name": bot.name,
        "user_name": user_name,
        "username": user_name,
        "memory": persona(bot),
        "persona": persona(bot),
        "prompt": bot.prompt,
        "post_history": bot.post_history,
        "examples": [],
        "messages": [f"{author}: {text}" for author, _, text in authored],
        "current_chat_messages": messages,
        "cai_messages": messages,
        "user_query": query,
        "reply_prompt": f"{bot.name}:",
        **prompt.data,
        "functions_": prompt.functions,
    }


def _exchanged(value: Any) -> Any:
    if isinstance(value, str):
        return value.translate(EXCHANGED)
    if isinstance(value, dict):
        return {key: _exchanged(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_exchanged(one) for one in value]
    return value
