"""Prompts: what is in them, in which order, and what goes first when they are too long."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guanaco.chat import Bot, Sender, Turn
from guanaco.errors import InvalidFormatter, MessageTooLong
from guanaco.prompts import PRESETS, PromptFormatter, fill, parse_template
from guanaco_server.prompts.counting import TokenCounter
from guanaco_server.prompts.history.truncation import LOW_WATER
from guanaco_server.prompts.layouts import Layout, formatter_layout
from guanaco_server.prompts.rendering import render
from guanaco_server.prompts.service import with_greeting
from tests.fixtures.tokenizers import KINDS, counter_of, tokenizer_of

BOT = Bot(name="Nia", memory="PERSONA", prompt="SCENARIO", first_message="Ahoy")
PERSONA = "Nia's Persona: PERSONA\n####\n"
BREAKS = 60  # of 200 turns, at most; where the prompt was cut again
WORDS = [
    "a",
    "bb",
    "ccc",
    "sea",
    "lighthouse",
    "**waves**",
    "日本",
    "🦙",
    "\n",
    "\nSam:",
    "<|end|>",
    "  ",
]
words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join)
COUNTERS: dict[str, TokenCounter] = {}


def counter(kind: str = "word_level") -> TokenCounter:
    if kind not in COUNTERS:
        COUNTERS[kind] = counter_of(kind)
    return COUNTERS[kind]


def count(text: str, kind: str = "word_level") -> int:
    return len(tokenizer_of(kind).encode(text))


def turns(*contents: str) -> list[Turn]:
    """User and bot in turn."""
    senders = (Sender.USER, Sender.BOT)
    return [Turn(sender=senders[i % 2], content=text) for i, text in enumerate(contents)]


def prompt(
    budget: int,
    said: list[Turn],
    bot: Bot = BOT,
    formatter: PromptFormatter | None = None,
    kind: str = "word_level",
) -> str:
    layout = formatter_layout(formatter or PromptFormatter(), bot, "Sam")
    return render(layout, with_greeting(bot, said), counter(kind), budget)


def test_everything_is_there_in_its_order() -> None:
    assert prompt(100, turns("Hello", "Hi", "How?")) == (
        "Nia's Persona: PERSONA\n####\nSCENARIO\n<START>\n"
        "Nia: Ahoy\nSam: Hello\nNia: Hi\nSam: How?\nNia:"
    )


def test_the_oldest_turns_go_in_a_block_then_the_scenario() -> None:
    said = turns(*("word " * 5 for _ in range(9)))
    whole = count(prompt(10_000, said))
    made = prompt(whole, said)
    assert "Ahoy" not in made  # a few tokens are kept in reserve
    assert "SCENARIO" in made
    room = whole - count(PERSONA + "SCENARIO\n<START>\nNia:")
    assert count(made.split("<START>\n")[1]) <= LOW_WATER * room
    shortest = prompt(count(PERSONA + "Sam: word word word word word\nNia:"), said)
    assert shortest == PERSONA + "Sam: word word word word word \nNia:"


def test_too_long_a_persona_or_message_is_refused_with_figures() -> None:
    with pytest.raises(MessageTooLong, match="take 28 tokens; this model is given 20"):
        prompt(20, turns("word " * 17))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(said=st.lists(words, min_size=1, max_size=14), budget=st.integers(20, 160))
def test_prompt_keeps_persona_and_newest_message_within_its_budget(
    kind: str, said: list[str], budget: int
) -> None:
    newest = said[-1 - (len(said) % 2 == 0)]
    try:
        made = prompt(budget, turns(*said), kind=kind)
    except MessageTooLong:
        bare = f"{PERSONA}Sam: {newest}\n" + f"Nia: {said[-1]}\n" * (len(said) % 2 == 0) + "Nia:"
        assert count(bare, kind) > budget
        return
    assert count(made, kind) <= budget
    assert made.startswith(PERSONA)
    assert f"Sam: {newest}\n" in made


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt_2", "llama_2", "unigram", "word_piece", "far_reaching"])
def test_prompt_seldom_restarts_over_200_turns_and_drops_turns_forever(kind: str) -> None:
    random, budget = Random(kind), 1_000
    said = [f"{n}. " + " ".join(random.choices(WORDS, k=random.randint(1, 8))) for n in range(399)]
    before, oldest, new_beginnings = "", -1, 0
    for end in range(1, len(said) + 1, 2):
        made = prompt(budget, turns(*said[:end]), kind=kind)
        new_beginnings += not made.startswith(before.removesuffix("Nia:"))
        kept = [n for n in range(end) if f": {said[n]}\n" in made]
        assert kept == list(range(kept[0], end))
        assert kept[0] >= oldest
        assert count(made, kind) <= budget
        before, oldest = made, kept[0]
    assert 0 < new_beginnings <= BREAKS


@pytest.mark.slow
def test_any_process_finds_the_same_cut() -> None:
    said = turns(*(f"{n} and some more words" for n in range(301)))
    layout = formatter_layout(PromptFormatter(), BOT, "Sam")
    for end in range(1, 302, 2):
        cold = render(layout, with_greeting(BOT, said[:end]), counter_of("word_level"), 200)
        assert cold == prompt(200, said[:end])


def test_scenario_pushed_out_by_a_long_message_stays_out() -> None:
    said = turns("Hi", "Hello", "word " * 60, "Well", "Yes", "No", "So")
    ends = [1, 3, 5, 7]
    made = [prompt(74, said[:end]) for end in ends]
    assert ["SCENARIO" in text for text in made] == [True, False, False, False]


@pytest.mark.parametrize("kind", ["gpt_2", "far_reaching"])
def test_a_million_characters_are_cut_without_being_read(kind: str) -> None:
    said = turns(*(f"{n} " + "word " * 200 for n in range(1_001)))
    fresh = counter_of(kind)
    asked: list[str] = []
    layout = formatter_layout(PromptFormatter(), BOT, "Sam")

    def turn_text(turn: Turn) -> str:
        asked.append(turn.content)
        return layout.turn_text(turn)

    watched = Layout(layout.before, layout.after, layout.turn_priority, turn_text)
    made = render(watched, said, fresh, 1_000)
    assert count(made, kind) <= 1_000
    assert sum(map(len, asked)) < 100_000


def test_without_a_user_message_every_turn_may_go() -> None:
    assert prompt(count(PERSONA + "Nia:"), []) == PERSONA + "Nia:"


@pytest.mark.parametrize("text", ["{bot_name.__class__}", "{user_name}", "{", "{0!r:>9}", "{{x}}"])
def test_a_strangers_text_is_never_a_template(text: str) -> None:
    bot = Bot(name="Nia", memory=text, prompt=text)
    made = prompt(1_000, [Turn(sender=Sender.USER, content=text)], bot)
    assert made.count(text) == 3


@pytest.mark.parametrize(
    "template",
    ["{bot_name.__class__}", "{bot_name[0]}", "{0}", "{}", "{memory!r}", "{memory:>9}", "{secret}", "{", "}"],
)  # fmt: skip
def test_a_template_holds_plain_known_fields_only(template: str) -> None:
    with pytest.raises(InvalidFormatter):
        parse_template(template)


def test_doubled_braces_are_braces() -> None:
    assert fill("{{{memory}}}", memory="x") == "{x}"


@pytest.mark.parametrize(
    "name", ["memory_template", "prompt_template", "bot_template", "user_template"]
)
def test_a_formatter_needs_its_fields(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must contain"):
        PromptFormatter.model_validate({name: "nothing"})


@pytest.mark.parametrize("formatter", PRESETS.values(), ids=PRESETS)
def test_every_preset_renders_all_parts(formatter: PromptFormatter) -> None:
    made = prompt(1_000, turns("Hello"), formatter=formatter)
    for part in ("PERSONA", "SCENARIO", "Ahoy", "Hello"):
        assert part in made
