"""Tests which earlier turns a message calls back."""

from __future__ import annotations

from guanaco.chat import Bot, Sender
from guanaco_server.prompts.history.recall import passages, recalled
from guanaco_server.prompts.layouts import Utterance

ROOM = 100  # tokens, of which a cut leaves 65: some five turns of filler


def talk(*said: str, filler: int = 30) -> list[Utterance]:
    texts = [*said, *(f"Step {n}, and so we went on along the long river." for n in range(filler))]
    return [Utterance(Sender.USER, one, position=place) for place, one in enumerate(texts, 1)]


def test_the_turn_that_shares_the_rarest_words_comes_first() -> None:
    turns = talk("I like tea.", "My ferret likes tea.", "The ferret Quillon bit me.")
    assert recalled(turns, "Tell me of Quillon", room=ROOM, budget=15) == (3,)


def test_what_the_prompt_still_holds_is_not_searched() -> None:
    turns = talk("The ferret Quillon bit me.", filler=2)
    assert recalled(turns, "Quillon?", room=ROOM, budget=100) == ()


def test_words_of_many_turns_call_nothing_back() -> None:
    assert recalled(talk(filler=60), "the long river", room=ROOM, budget=100) == ()


def test_a_turn_in_force_is_not_recalled_again() -> None:
    turns = talk("The ferret Quillon bit me.")
    turns[-1] = turns[-1]._replace(recalled=(1,))
    assert recalled(turns, "Quillon?", room=ROOM, budget=100) == ()
    turns += talk(filler=20)
    assert recalled(turns, "Quillon?", room=ROOM, budget=100) == (1,)


def test_only_so_many_characters_are_searched() -> None:
    turns = talk("The ferret Quillon bit me.", filler=150)
    filled = [*turns[:1], *(turn._replace(content=turn.content * 80) for turn in turns[1:])]
    assert recalled(turns, "Quillon?", room=ROOM, budget=100) == (1,)
    assert recalled(filled, "Quillon?", room=ROOM, budget=100) == ()


def test_passages_say_who_spoke_on_one_line_each() -> None:
    turns = [Utterance(Sender.USER, "a\nb", position=1), Utterance(Sender.BOT, "c", position=4)]
    assert (
        passages(Bot(name="Ada"), turns, (1, 3, 4))
        == "Earlier, the user said: a b\nEarlier, Ada said: c"
    )
