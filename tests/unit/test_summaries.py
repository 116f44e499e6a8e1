"""Summaries: when one is due, of which turns, and which texts of a model are used."""

from __future__ import annotations

import pytest

from guanaco.chat import Sender
from guanaco_server.chat.memory.notes import keeps, readable, request, usable
from guanaco_server.prompts.history.summaries import unsummarized, within_budget
from guanaco_server.prompts.layouts import Summary, Utterance

LINE = "We went on along the river."  # seven tokens
ROOM = 100


def talk(count: int) -> list[Utterance]:
    return [
        Utterance(Sender.BOT if place % 2 else Sender.USER, LINE, position=place + 1)
        for place in range(count)
    ]


def test_the_first_summary_is_due_before_anything_is_cut() -> None:
    assert unsummarized(talk(8), room=ROOM) is None
    due = unsummarized(talk(10), room=ROOM)
    assert due is not None
    assert (due.previous, due.until, len(due.turns)) == (None, 8, 8)


def test_summary_is_due_when_a_third_of_room_is_new() -> None:
    turns = talk(16)
    turns[12] = turns[12]._replace(summary=Summary("They walked.", 8, "rule"))
    assert unsummarized(turns, room=ROOM) is None
    later = [*turns, *talk(19)[16:]]
    due = unsummarized(later, room=ROOM)
    assert due is not None
    assert due.previous == turns[12].summary
    assert [turn.position for turn in due.turns] == list(range(9, 19))


def test_newest_exchange_is_left_out_of_summaries() -> None:
    due = unsummarized(talk(12), room=ROOM)
    assert due is not None
    assert due.until == 10


def test_what_was_forgotten_is_not_summarized() -> None:
    due = unsummarized(talk(12), room=ROOM, forgotten_until=6)
    assert due is not None
    assert due.turns[0].position == 7


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("The user has a ferret called Quillon.", "The user has a ferret called Quillon."),
        ("Buy gold watches online, cheap casino bonus today!", ""),
        ("Yes.", ""),
        ("", ""),
    ],
)
def test_a_text_is_used_if_it_is_of_the_conversation(written: str, kept: str) -> None:
    assert usable(written, "My ferret is called Quillon, said the user.", 40) == kept


@pytest.mark.parametrize(
    ("written", "is_kept"),
    [
        ("Kim owns a ferret, Quillon, and moved to Bergen in 1990.", True),
        ("The wind was fair, and I love the sea, and the ferret is mine.", False),
        ("", False),
    ],
)
def test_a_text_must_keep_the_names_and_numbers(written: str, is_kept: bool) -> None:
    by_rule = "The user: My ferret is called Quillon. I moved to Bergen in 1990."
    assert keeps(written, by_rule) is is_kept


def test_a_text_is_cut_at_the_end_of_a_sentence() -> None:
    assert within_budget("One is here. Two is there. Three", 7) == "One is here. Two is there."
    assert within_budget("wordafterword and more", 4) == "wordafterword"


def test_the_request_has_the_summary_before_and_who_spoke() -> None:
    asked = request("Kim has a ferret.", talk(2), "Ada", "Kim", 50)
    assert asked.startswith("The notes so far:\nKim has a ferret.\n\nThen they said:\nKim: We went")
    assert "\nAda: We went" in asked


def test_a_model_reads_no_more_than_it_has_room_for() -> None:
    assert len(readable(talk(40), 100)) == 8
    assert len(readable(talk(3), 4)) == 1
