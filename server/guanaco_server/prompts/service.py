"""Prompts for model servers: any kind of prompt, any submission's tokenizer, one entrance.

templates       parsed once; what is known of bot, turns and counts costs microseconds, without waiting
chat_template   the artifact's own template, rendered in a process of its own
file            parts and turns, rendered there once each, then laid out as text or by the chat template
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

from guanaco.chat import Bot, Sender
from guanaco.errors import MissingFile
from guanaco.prompts import ChatTemplatePrompt, Prompt, PromptFile, PromptFormatter
from guanaco_server.prompts import chat_templates
from guanaco_server.prompts.chat_templates import ChatTemplate, ChatTemplateCounter
from guanaco_server.prompts.layouts import Layout, Part
from guanaco_server.prompts.prompt_files import PromptFileRenderer
from guanaco_server.prompts.rendering import render
from guanaco_server.prompts.template_process import TemplateProcess
from guanaco_server.prompts.templates import formatter_layout, layout_like
from guanaco_server.prompts.tokenizers import KEPT, SmallFiles, TokenizerCache
from guanaco_server.prompts.transcript import Transcript
from guanaco_server.prompts.utterances import Spoken, Utterance

LONG_CHARS = (
    100_000  # of a history; beyond, it is counted in a thread: 10 ms for each 30,000 new ones
)
NO_TEMPLATE = "The model's repo has no chat template."
NO_TEMPLATE_HINT = "Submit with --formatter and a preset, or push a tokenizer that has one."


class PromptService:
    """``render`` for whoever generates. ``close`` ends the process that renders strangers' Jinja."""

    def __init__(self, store: SmallFiles) -> None:
        self.tokenizers = TokenizerCache(store)
        self._store = store
        self._process = TemplateProcess()
        self._files = PromptFileRenderer(self._process)
        self._chat_templates: OrderedDict[str, ChatTemplateCounter] = OrderedDict()

    async def render(
        self,
        *,
        formatter: Prompt,
        artifact_key: str,
        max_input_tokens: int,
        bot: Bot,
        user_name: str,
        turns: Sequence[Spoken],
        transcript: Transcript | None = None,
    ) -> str:
        """The prompt, of at most ``max_input_tokens`` tokens; MessageTooLong, or PromptFailed by its template.

        With the ``transcript`` of the conversation only its new turns are read, where that is certain to make the same.
        """
        at_once = self.try_render(
            formatter=formatter,
            artifact_key=artifact_key,
            max_input_tokens=max_input_tokens,
            bot=bot,
            user_name=user_name,
            turns=turns,
            transcript=transcript,
        )
        if at_once is not None:
            return at_once
        counter = await self.tokenizers.counter(artifact_key)
        said = with_greeting(bot, turns)
        if isinstance(formatter, PromptFormatter):
            layout = formatter_layout(formatter, bot, user_name)
            return await asyncio.to_thread(
                render, layout, said, counter, max_input_tokens, transcript
            )
        if isinstance(formatter, PromptFile):
            layout = await asyncio.to_thread(self._files.layout, formatter, bot, user_name, said)
            if formatter.render == "text":
                return await asyncio.to_thread(render, layout, said, counter, max_input_tokens)
        else:
            layout = chat_layout(bot)
        template = await self._chat_template(artifact_key)
        return await asyncio.to_thread(template.render, layout, said, max_input_tokens)

    def try_render(
        self,
        *,
        formatter: Prompt,
        artifact_key: str,
        max_input_tokens: int,
        bot: Bot,
        user_name: str,
        turns: Sequence[Spoken],
        transcript: Transcript | None = None,
    ) -> str | None:
        """``render`` where nothing must be waited for: with templates, and the tokenizer in memory; else None."""
        if not isinstance(formatter, PromptFormatter):
            return None
        counter = self.tokenizers.loaded_counter(artifact_key)
        if counter is None:
            return None
        known = transcript.layout if transcript is not None else None
        layout = layout_like(known, formatter, bot, user_name)
        if transcript is not None:
            prompt = transcript.next_prompt(layout, turns, counter, max_input_tokens)
            if prompt is not None:
                return prompt
        if sum([len(turn.content) for turn in turns]) > LONG_CHARS:
            return None
        return render(layout, with_greeting(bot, turns), counter, max_input_tokens, transcript)

    async def check(self, formatter: Prompt, files: dict[str, bytes], bot: Bot) -> None:
        """Before anything is served: MissingFile, BadChatTemplate or PromptFailed for what could make no prompt.

        ``files`` are those of ``chat_templates.FILES`` that the model's repo has.
        """
        await asyncio.to_thread(self._check, formatter, files, bot)

    async def check_served(self, formatter: Prompt, artifact_key: str, bot: Bot) -> None:
        """The same for a model whose artifact is there."""
        files = await self._template_files(artifact_key) if is_by_chat_template(formatter) else {}
        await self.check(formatter, files, bot)

    async def close(self) -> None:
        await asyncio.to_thread(self._process.close)

    def _check(self, formatter: Prompt, files: dict[str, bytes], bot: Bot) -> None:
        said = [Utterance(Sender.BOT, "Hello."), Utterance(Sender.USER, "Hi.")]
        if isinstance(formatter, PromptFile):
            self._files.layout(formatter, bot, "You", said)
        if is_by_chat_template(formatter):
            self._read_chat_template(files)

    def _read_chat_template(self, files: dict[str, bytes]) -> ChatTemplate:
        found = chat_templates.read_template(files)
        if found is None:
            raise MissingFile(NO_TEMPLATE, hint=NO_TEMPLATE_HINT)
        return ChatTemplate(*found, self._process)

    async def _chat_template(self, artifact_key: str) -> ChatTemplateCounter:
        if artifact_key not in self._chat_templates:
            files = await self._template_files(artifact_key)
            counter = await self.tokenizers.counter(artifact_key)
            template = await asyncio.to_thread(self._read_chat_template, files)
            made = await asyncio.to_thread(ChatTemplateCounter, template, counter)
            self._chat_templates[artifact_key] = made
            if len(self._chat_templates) > KEPT:
                self._chat_templates.popitem(last=False)
        self._chat_templates.move_to_end(artifact_key)
        return self._chat_templates[artifact_key]

    async def _template_files(self, artifact_key: str) -> dict[str, bytes]:
        files = {}
        for name in chat_templates.FILES:
            with contextlib.suppress(FileNotFoundError):
                files[name] = await self._store.read(artifact_key, name)
        return files


def is_by_chat_template(formatter: Prompt) -> bool:
    """Whether the model's repo must bring a chat template."""
    if isinstance(formatter, PromptFile):
        return formatter.render == "chat_template"
    return isinstance(formatter, ChatTemplatePrompt)


@lru_cache(maxsize=4096)
def chat_layout(bot: Bot) -> Layout:
    """Persona and scenario as the system's message, and what was said as it is."""
    return Layout(
        before=(Part(bot.memory), Part(bot.prompt, priority=1)),
        after=(),
        turn_priority=2,
        turn_text=lambda turn: turn.content,
    )


def with_greeting(bot: Bot, turns: Sequence[Spoken]) -> Sequence[Spoken]:
    if not bot.first_message:
        return turns
    return [Utterance(Sender.BOT, bot.first_message), *turns]
