"""A prompt that goes on with what is kept of the last one is the prompt that is rendered from nothing."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guanaco.chat import MAX_MESSAGE_CHARS, Bot, Sender
from guanaco.errors import MessageTooLong
from guanaco.prompts import PRESETS, PromptFormatter
from guanaco_server.chat.conversations.history import History
from guanaco_server.prompts.counting import TokenCounter
from guanaco_server.prompts.history import lore
from guanaco_server.prompts.history.transcript import Transcript
from guanaco_server.prompts.layouts import (
    KEPT_CHARS,
    ChatTurn,
    Layout,
    Utterance,
    formatter_layout,
    layout_like,
)
from guanaco_server.prompts.rendering import render
from guanaco_server.prompts.service import with_greeting
from tests.fixtures.tokenizers import KINDS, counter_of

BARE = PromptFormatter(bot_template="{message}", user_template="{message}")
FORMATTERS = [*PRESETS.values(), BARE]
SILENT = Bot(name="Nia", memory="PERSONA " * 3, prompt="SCENARIO " * 4)
GREETING = SILENT.model_copy(update={"first_message": "Ahoy " * 3})
WORDS = ["a", "sea", "lighthouse", "**waves**", "日本", "🦙", "\n", "\nSam:", "<|im_end|>", "  "]
COUNTERS: dict[str, TokenCounter] = {}

texts = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
long_texts = st.builds(lambda word, times: word * times, st.sampled_from(WORDS), st.integers(0, 90))
contents = texts | texts | long_texts


def ask(kept: History, content: str) -> None:
    kept.asked(lore.asked(kept.bot, kept.turns, content))


moves = st.sampled_from(["reply", "reply", "reply", "regenerate", "ask again", "other budget"])


def counter(kind: str) -> TokenCounter:
    if kind not in COUNTERS:
        COUNTERS[kind] = counter_of(kind)
    return COUNTERS[kind]


def history(bot: Bot = GREETING) -> History:
    return History("conv_1", "acc_1", "org-model_v1", "user-1", "Sam", bot, message_count=0)


class Teller:
    """Renders a history both ways."""

    def __init__(self, layout: Layout, counter: TokenCounter) -> None:
        self._layout = layout
        self._counter = counter
        self.went_on = 0

    def tell(self, history: History, budget: int) -> str | None:
        """Return None for MessageTooLong, as a fresh rendering does."""
        turns = history.turns[: len(history.turns) - len(history.tail)]
        plain = self._rendered(history, turns, budget, None)
        transcript = history.transcript
        prompt = transcript.next_prompt(self._layout, turns, self._counter, budget)
        self.went_on += prompt is not None
        if prompt is None:
            prompt = self._rendered(history, turns, budget, transcript)
        assert prompt == plain
        return plain

    def _rendered(
        self, history: History, turns: list[Utterance], budget: int, transcript: Transcript | None
    ) -> str | None:
        said = with_greeting(history.bot, turns)
        try:
            return render(self._layout, said, self._counter, budget, transcript)
        except MessageTooLong:
            return None


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(
    formatter=st.sampled_from(FORMATTERS),
    bot=st.sampled_from([SILENT, GREETING]),
    budget=st.integers(8, 300),
    talk=st.lists(st.tuples(moves, contents, contents), min_size=1, max_size=30),
)
def test_each_prompt_of_a_conversation_equals_a_fresh_rendering(
    kind: str,
    formatter: PromptFormatter,
    bot: Bot,
    budget: int,
    talk: list[tuple[str, str, str]],
) -> None:
    teller = Teller(formatter_layout(formatter, bot, "Sam"), counter(kind))
    kept = history(bot)
    ask(kept, "Hi")
    for number, (move, asked, replied) in enumerate(talk):
        if move == "other budget":
            budget += 7
        if move != "regenerate":
            ask(kept, asked)
        teller.tell(kept, budget)
        if move != "ask again":
            kept.replied(f"msg_{number}", replied)


@pytest.mark.parametrize("kind", ["gpt_2", "llama_2", "unigram", "word_piece"])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1_000), budget=st.integers(150, 400))
def test_it_goes_on_over_cuts_and_epochs(kind: str, seed: int, budget: int) -> None:
    random = Random(seed)
    teller = Teller(formatter_layout(PromptFormatter(), GREETING, "Sam"), counter(kind))
    kept = history()
    for number in range(250):
        ask(kept, " ".join(random.choices(WORDS[:4], k=random.randint(1, 12))))
        assert teller.tell(kept, budget) is not None
        kept.replied(f"msg_{number}", f"{number} " + "sea " * random.randint(0, 40))
    assert teller.went_on >= 245


def test_only_new_turns_are_read() -> None:
    layout = formatter_layout(PromptFormatter(), GREETING, "Sam")
    read: list[str] = []

    def turn_text(turn: ChatTurn) -> str:
        read.append(turn.content)
        return layout.turn_text(turn)

    watched = Layout(layout.before, layout.after, layout.turn_priority, turn_text)
    kept, transcript = history(), Transcript()
    for number in range(20):
        ask(kept, f"{number}?")
        kept.replied(f"msg_{number}", f"{number}!")
    ask(kept, "And?")
    render(watched, kept.turns, counter("gpt_2"), 1_000, transcript)
    kept.replied("msg_20", "Then")
    ask(kept, "So?")
    read.clear()
    assert transcript.next_prompt(watched, kept.turns, counter("gpt_2"), 1_000)
    assert read == ["Then", "So?"]


def test_what_belongs_to_another_is_not_gone_on_with() -> None:
    layout = formatter_layout(PromptFormatter(), GREETING, "Sam")
    kept = history()
    ask(kept, "Hi")
    gpt_2 = counter("gpt_2")
    render(layout, kept.turns, gpt_2, 500, kept.transcript)
    others = [
        (formatter_layout(BARE, GREETING, "Sam"), kept.turns, gpt_2, 500),
        (layout, [Utterance(Sender.USER, "Hi")], gpt_2, 500),
        (layout, kept.turns, counter_of("gpt_2"), 500),
        (layout, kept.turns, gpt_2, 400),
    ]
    assert [kept.transcript.next_prompt(*other) for other in others] == [None] * 4
    assert kept.transcript.next_prompt(layout, kept.turns, gpt_2, 500)


def test_layout_is_kept_when_more_bots_exist_than_remembered() -> None:
    layout = formatter_layout(PromptFormatter(), GREETING, "Sam")
    for number in range(2 * KEPT_CHARS // (2 * MAX_MESSAGE_CHARS) + 2):
        other = Bot(name=f"Bot {number}", memory="m" * MAX_MESSAGE_CHARS)
        formatter_layout(PromptFormatter(), other, "Sam")
    again = GREETING.model_copy()
    assert layout_like(layout, PromptFormatter(), again, "Sam") is layout
    assert layout_like(layout, PromptFormatter(), again, "Kim") is not layout
    assert layout_like(None, PromptFormatter(), again, "Sam") is not layout


def test_histories_share_their_bot() -> None:
    assert history(GREETING.model_copy()).bot is history(GREETING.model_copy()).bot
