"""Prompts: what is in them, in which order, and what goes first when they are too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guanaco.chat import Bot, Sender, Turn
from guanaco.errors import InvalidFormatter, MessageTooLong
from guanaco.prompts import PRESETS, PromptFormatter, fill, parse_template
from guanaco_server.prompts.rendering import render

BOT = Bot(name="Nia", memory="PERSONA", prompt="SCENARIO", first_message="Ahoy")
words = st.lists(st.sampled_from(["a", "bb", "ccc"]), min_size=1, max_size=6).map(" ".join)


def count(text: str) -> int:
    return len(text.split())


def turns(*contents: str) -> list[Turn]:
    """User and bot in turn."""
    senders = (Sender.USER, Sender.BOT)
    return [Turn(sender=senders[i % 2], content=text) for i, text in enumerate(contents)]


def prompt(
    budget: int, said: list[Turn], bot: Bot = BOT, formatter: PromptFormatter | None = None
) -> str:
    return render(
        formatter=formatter or PromptFormatter(),
        bot=bot,
        user_name="Sam",
        turns=said,
        count_tokens=count,
        max_input_tokens=budget,
    )


def test_everything_is_there_in_its_order() -> None:
    assert prompt(100, turns("Hello", "Hi", "How?")) == (
        "Nia's Persona: PERSONA\n####\nSCENARIO\n<START>\n"
        "Nia: Ahoy\nSam: Hello\nNia: Hi\nSam: How?\nNia:"
    )


def test_the_oldest_turns_go_first_then_the_scenario() -> None:
    said = turns("one", "two", "three")
    whole = count(prompt(100, said))
    assert "Ahoy" not in prompt(whole - 1, said)
    assert "one" in prompt(whole - 2, said)
    shortest = prompt(count("Nia's Persona: PERSONA #### Sam: three Nia:"), said)
    assert shortest == "Nia's Persona: PERSONA\n####\nSam: three\nNia:"


def test_too_long_a_persona_or_message_is_refused_with_both_figures() -> None:
    with pytest.raises(MessageTooLong, match="take 23 tokens; this model is given 20"):
        prompt(20, turns("word " * 17))


@given(st.lists(words, min_size=1, max_size=12), st.integers(1, 60))
def test_a_prompt_is_within_its_budget_and_keeps_persona_and_newest_message(
    contents: list[str], budget: int
) -> None:
    said = turns(*contents)
    newest = next(turn.content for turn in reversed(said) if turn.sender is Sender.USER)
    try:
        made = prompt(budget, said)
    except MessageTooLong:
        return
    assert count(made) <= budget
    assert made.startswith("Nia's Persona: PERSONA\n####\n")
    assert f"Sam: {newest}\n" in made


@given(st.lists(words, min_size=1, max_size=12), st.integers(1, 60))
def test_no_more_is_dropped_than_must_be(contents: list[str], budget: int) -> None:
    said = turns(*contents)
    everything = prompt(10_000, said)
    persona, rest = everything.split("SCENARIO", 1)
    lines = rest.removeprefix("\n<START>\n").removesuffix("\nNia:").split("\n")
    newest = 1 + (len(contents) % 2 == 0)  # a bot's turn after the newest user message stays too
    longest_first = [
        f"{persona}SCENARIO\n<START>\n" + "".join(f"{line}\n" for line in kept) + "Nia:"
        for kept in (lines[dropped:] for dropped in range(len(lines) - newest + 1))
    ]
    fitting = [candidate for candidate in longest_first if count(candidate) <= budget]
    if fitting:
        assert prompt(budget, said) == fitting[0]


def test_without_a_user_message_every_turn_may_go() -> None:
    bare = prompt(count("Nia's Persona: PERSONA #### Nia:"), [])
    assert bare == "Nia's Persona: PERSONA\n####\nNia:"


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
