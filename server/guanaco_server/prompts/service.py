"""Makes prompts for model servers, of any kind and with any submission's tokenizer.

templates       parsed once; what is known of bot, turns and counts costs microseconds, and only counts are waited for
chat_template   the artifact's own template, rendered in a process of its own
file            parts and turns, rendered there once each, then laid out as text or by the chat template
poet            the whole conversation, rendered there to YAML in Prompt Poet's form (poet.py)

The latter three wait for their turn (template_queue.py). Their work is limited in steps, which are the same on every
machine: fewer for the check of a submission, which also counts the sizes of values.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from guanaco.chat import Bot, Sender
from guanaco.errors import CorruptConfig, MissingFile, PromptFailed
from guanaco.prompts import (
    ChatTemplatePrompt,
    PoetPrompt,
    Prompt,
    PromptFile,
    PromptFormatter,
    UnknownPrompt,
)
from guanaco_server.confinement import confined
from guanaco_server.confinement.confined import StartChild
from guanaco_server.prompts.counting import Counters, Generations, TextsNotCounted, TokenCounter
from guanaco_server.prompts.files.poet import PoetRenderer, cut
from guanaco_server.prompts.files.poet_parts import PoetPart
from guanaco_server.prompts.files.prompt_files import PromptFileRenderer
from guanaco_server.prompts.history.transcript import Transcript
from guanaco_server.prompts.layouts import (
    KEPT_CHARS,
    ChatTurn,
    Layout,
    Part,
    Utterance,
    chars_of,
    content_with_lore,
    layout_like,
    persona,
)
from guanaco_server.prompts.rendering import render, render_uncounted
from guanaco_server.prompts.templates.chat_templates import ChatTemplate, ChatTemplateCounter
from guanaco_server.prompts.templates.files import FILES
from guanaco_server.prompts.templates.process import Allowance, TemplateFault, TemplateProcess
from guanaco_server.prompts.templates.queue import WIDTH, TemplateQueue
from guanaco_server.runtime import threads
from guanaco_server.serializer.templates.metered_jinja import CHECK_STEPS
from guanaco_server.tokenization.service import KEPT, SmallFiles, Tokenizers

LONG_CHARS = (
    100_000  # of a history; beyond, it is counted in a thread: 10 ms for each 30,000 new ones
)
RENDER_S = 30.0
NO_TEMPLATE = "The model's repo has no chat template."
UNKNOWN_PROMPT = "The submission's prompt"
NO_TEMPLATE_HINT = "Submit with --formatter and a preset, or push a tokenizer that has one."
CORRECT_IT = "Correct the prompt: docs/prompts.md says what it may hold."  # for its author


T = TypeVar("T")


class PromptService:
    """``render`` for whoever generates. ``close`` ends the processes that render strangers' Jinja and count with their tokenizers."""

    def __init__(
        self,
        store: SmallFiles,
        tokenizers: Tokenizers,
        start_child: StartChild = confined.start,
    ) -> None:
        self._tokenizers = tokenizers
        self._counters = Counters(tokenizers)
        self._store = store
        self._process = TemplateProcess(WIDTH, start_child)
        self._queue = TemplateQueue(WIDTH)
        self._files = PromptFileRenderer(self._process)
        self._poet = PoetRenderer(self._process)
        self._chat_templates: OrderedDict[str, ChatTemplateCounter] = OrderedDict()

    async def render(
        self,
        *,
        formatter: Prompt,
        artifact_key: str,
        max_input_tokens: int,
        bot: Bot,
        user_name: str,
        turns: Sequence[ChatTurn],
        transcript: Transcript | None = None,
        within_s: float = RENDER_S,
        begun: str = "",
    ) -> str:
        """Return the prompt, of at most ``max_input_tokens`` tokens; MessageTooLong, or PromptFailed by its template.

        Overloaded where too many wait for that template, or its turn does not come ``within_s``.
        With the ``transcript`` of the conversation only its new turns are read, where that is certain to make the same.
        With ``begun``, the reply so far, the prompt ends with it, so that the model goes on there.
        """
        if isinstance(formatter, UnknownPrompt):
            raise PromptFailed(UNKNOWN_PROMPT, "a newer version of Guanaco has stored it")
        until = time.monotonic() + within_s
        counter = self._counters.loaded_counter(artifact_key)
        if counter is None:
            counter = await self._counters.counter(artifact_key)
        if isinstance(formatter, PromptFormatter):
            known = transcript.layout if transcript is not None else None
            layout = layout_like(known, formatter, bot, user_name)
            if begun:
                layout, transcript = layout.with_begun(begun), None
            plain = _PlainPrompt(layout, max_input_tokens, bot, turns, transcript)
            return await _rendered(plain, counter)
        messages = with_greeting(bot, turns)
        template = None
        if is_by_chat_template(formatter):
            template = await self._chat_template(artifact_key, counter, until)

        def work() -> str:
            if isinstance(formatter, PoetPrompt):
                parts = self._poet.parts(formatter, bot, user_name, messages)
                return _poem(parts, template, counter, max_input_tokens, begun)
            layout = (
                self._files.layout(formatter, bot, user_name, messages)
                if isinstance(formatter, PromptFile)
                else chat_layout(bot)
            )
            if template is not None:
                return template.render(layout, messages, max_input_tokens, begun)
            if begun:
                layout = layout.with_begun(begun)
            return render(layout, messages, counter, max_input_tokens)

        return await self._in_turn((artifact_key, formatter), work, until)

    async def check(self, formatter: Prompt, files: dict[str, bytes], bot: Bot) -> None:
        """Before anything is served: MissingFile, BadChatTemplate or PromptFailed for what could make no prompt.

        ``files`` are those of ``FILES`` that the model's repo has.
        """
        this_one = object()  # a submission that is checked waits for no other one's check
        await self.check_own_jinja(formatter, bot, this_one)
        if is_by_chat_template(formatter):
            until = time.monotonic() + RENDER_S
            template = await self._in_turn(
                this_one, lambda: self._read_chat_template(files), until, is_check=True
            )
            await self._in_turn(this_one, template.require_fast, until, is_check=True)

    async def check_own_jinja(self, formatter: Prompt, bot: Bot, queue: Hashable) -> None:
        """The part of the check that needs no model. PromptFailed.

        Args:
            formatter: The prompt.
            bot: The bot that talks in the conversation that is rendered.
            queue: Checks of one queue are done one after another.
        """
        if isinstance(formatter, UnknownPrompt):
            raise PromptFailed(UNKNOWN_PROMPT, "a newer version of Guanaco has stored it")

        def check_prompt_file() -> None:
            if isinstance(formatter, PoetPrompt):
                turns = [Utterance(Sender.BOT, "Hello."), Utterance(Sender.USER, "Hi.")]
                self._poet.parts(formatter, bot, "You", turns)
            if isinstance(formatter, PromptFile):
                turns = [Utterance(Sender.BOT, "Hello."), Utterance(Sender.USER, "Hi.")]
                PromptFileRenderer(self._process).layout(formatter, bot, "You", turns)

        if isinstance(formatter, PromptFile | PoetPrompt):
            until = time.monotonic() + RENDER_S
            await self._in_turn(queue, check_prompt_file, until, is_check=True)

    async def check_served(self, formatter: Prompt, artifact_key: str, bot: Bot) -> None:
        """The same for a model whose artifact is there."""
        files = await self._template_files(artifact_key) if is_by_chat_template(formatter) else {}
        await self.check(formatter, files, bot)

    async def sizes(self, artifact_key: str, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each text alone, without special tokens."""
        counter = await self._counters.counter(artifact_key)
        return await counter.counted(lambda: [counter.alone(text) for text in texts])

    async def close(self) -> None:
        self._tokenizers.close()
        await threads.PROCESSES.run(self._process.close)
        await threads.PROCESSES.run(self._queue.close)

    async def _in_turn(
        self, template: Hashable, work: Callable[[], T], until: float, *, is_check: bool = False
    ) -> T:
        """Run ``work``, which renders one prompt, in the template process, and return its result."""
        allowance = Allowance(until=until)
        if is_check:
            allowance = Allowance(CHECK_STEPS, weighs_values=True, until=until)

        def allowed() -> T:
            with self._process.allowance(allowance):
                return work()

        return await self._queue.run(template, allowed, until)

    def _read_chat_template(self, files: dict[str, bytes]) -> ChatTemplate:
        try:
            found = self._process.read(files)
        except TemplateFault as fault:
            raise CorruptConfig(f"{str(fault).rstrip('.')}.") from None
        if found is None:
            raise MissingFile(NO_TEMPLATE, hint=NO_TEMPLATE_HINT)
        return ChatTemplate(found, self._process)

    async def _chat_template(
        self, artifact_key: str, counter: TokenCounter, until: float
    ) -> ChatTemplateCounter:
        known = self._chat_templates.get(artifact_key)
        if known is None:
            files = await self._template_files(artifact_key)

            def make() -> ChatTemplateCounter:
                made = self._chat_templates.get(artifact_key)  # by one that waited before
                if made is None:
                    made = ChatTemplateCounter(self._read_chat_template(files), counter)
                    self._chat_templates[artifact_key] = made
                return made

            known = await self._in_turn(artifact_key, make, until)
            if len(self._chat_templates) > KEPT:
                self._chat_templates.popitem(last=False)
        if artifact_key in self._chat_templates:
            self._chat_templates.move_to_end(artifact_key)
        return known

    async def _template_files(self, artifact_key: str) -> dict[str, bytes]:
        files = {}
        for name in FILES:
            with contextlib.suppress(FileNotFoundError):
                files[name] = await self._store.read(artifact_key, name)
        return files


async def _rendered(plain: _PlainPrompt, counter: TokenCounter) -> str:
    """Wait for nothing where all is counted, or short enough for any count."""
    prompt, missing = None, None
    try:
        prompt = plain.go_on(counter)
    except TextsNotCounted as uncounted:
        missing = uncounted.with_traceback(None)  # whose frames hold it: a cycle
    if prompt is None:
        prompt = plain.render_uncounted(counter)
    if prompt is None and missing is not None:
        prompt = await counter.counted(lambda: plain.go_on(counter), missing)
    if prompt is not None:
        return prompt
    if sum([len(turn.content) for turn in plain.turns]) > LONG_CHARS:
        return await threads.CHATS.run(lambda: plain.render(counter))
    return await counter.counted(lambda: plain.render(counter))


@dataclass(frozen=True)
class _PlainPrompt:
    """A prompt by templates, which needs nothing but counts."""

    layout: Layout
    budget: int
    bot: Bot
    turns: Sequence[ChatTurn]
    transcript: Transcript | None

    def go_on(self, counter: TokenCounter) -> str | None:
        """Go on from where the transcript is; None where that cannot be done."""
        if self.transcript is None:
            return None
        return self.transcript.next_prompt(self.layout, self.turns, counter, self.budget)

    def render_uncounted(self, counter: TokenCounter) -> str | None:
        """Render everything if its bytes alone show that it fits; else None."""
        return render_uncounted(self.layout, self._utterances(), counter, self.budget)

    def render(self, counter: TokenCounter) -> str:
        return render(self.layout, self._utterances(), counter, self.budget, self.transcript)

    def _utterances(self) -> Sequence[ChatTurn]:
        return with_greeting(self.bot, self.turns)


def _poem(
    parts: Sequence[PoetPart],
    template: ChatTemplateCounter | None,
    counter: TokenCounter,
    budget: int,
    begun: str,
) -> str:
    """Make a prompt of Prompt Poet's parts: their text, or messages for the model's own template."""

    def compose(kept: Sequence[PoetPart]) -> str:
        if template is None:
            return "".join([one.content for one in kept]) + begun
        return template.text([(one.role, one.content) for one in kept], begun)

    return cut(parts, budget, compose, counter.alone, counter.whole)


def is_by_chat_template(formatter: Prompt) -> bool:
    """Tell whether the formatter needs a chat template from the model's repo."""
    if isinstance(formatter, PromptFile | PoetPrompt):
        return formatter.render == "chat_template"
    return isinstance(formatter, ChatTemplatePrompt)


_chat_layouts: Generations[Bot, Layout] = Generations(KEPT_CHARS)


def chat_layout(bot: Bot) -> Layout:
    """Return the layout of a bot for chat templates, the same one for the same bot."""
    layout = _chat_layouts.find(bot)
    if layout is None:
        layout = _new_chat_layout(bot)
        _chat_layouts.keep(bot, layout, chars_of(bot))
    return layout


def _new_chat_layout(bot: Bot) -> Layout:
    """Persona and scenario as the system's message, and what was said as it is.

    Instructions behind the turns are the user's: a system message there would be moved to the beginning.
    """
    return Layout(
        before=(Part(persona(bot)), Part(bot.prompt, priority=1)),
        after=(Part(bot.post_history, role="user"),) if bot.post_history else (),
        turn_priority=2,
        turn_text=lambda turn: content_with_lore(bot, turn),
    )


def with_greeting(bot: Bot, turns: Sequence[ChatTurn]) -> Sequence[ChatTurn]:
    if not bot.first_message:
        return turns
    return [Utterance(Sender.BOT, bot.first_message), *turns]
