"""The choice of a replica: who is busy, who is ill, and for how long. The clock is ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from guanaco.errors import Overloaded
from guanaco_server.routing.replicas import FREE_LOAD, Ask, ReplicaChooser, rendezvous

PAIR = ("http://one", "http://two")
KEY = "conv_1"
NEAR, FAR = rendezvous(KEY, PAIR)


class Room:
    """A chooser and its clock."""

    def __init__(self, max_streams: int = 64, longest_queue_s: float = 15) -> None:
        self.now = 100.0
        self.chooser = ReplicaChooser(max_streams, longest_queue_s, lambda: self.now)

    def choose(self, key: str = KEY) -> str | None:
        return self.chooser.choose(key, PAIR)

    def reply(self, endpoint: str, ttft_s: float = 0.1) -> None:
        with self.chooser.ask(endpoint, PAIR) as ask:
            self.now += ttft_s
            ask.note_first_token()
            ask.note_end()

    def fail(self, endpoint: str, after_first_token: bool = False) -> None:
        with self.chooser.ask(endpoint, PAIR) as ask:
            if after_first_token:
                ask.note_first_token()
            ask.note_fault()

    def is_well(self, endpoint: str) -> bool:
        return self.chooser.of(endpoint).is_well(self.now)

    def ejected_for(self, endpoint: str) -> float:
        return max(0.0, self.chooser.of(endpoint).ejected_until - self.now)

    @contextmanager
    def under_way(self, endpoint: str, count: int) -> Iterator[list[Ask]]:
        with ExitStack() as stack:
            yield [stack.enter_context(self.chooser.ask(endpoint, PAIR)) for _ in range(count)]


@pytest.fixture
def room() -> Room:
    return Room()


def test_a_conversation_keeps_to_its_replica_until_that_is_busy(room: Room) -> None:
    with room.under_way(NEAR, FREE_LOAD - 1):
        assert room.choose() == NEAR
    with room.under_way(NEAR, FREE_LOAD):
        assert room.choose() == FAR
    with room.under_way(NEAR, 20), room.under_way(FAR, 20):
        assert room.choose() == NEAR, "both have their fair share"


def test_replicas_of_a_busy_model_get_their_share_of_places(room: Room) -> None:
    with room.under_way(NEAR, 2):
        assert room.chooser.choose(KEY, PAIR, places=6) == NEAR
        assert room.chooser.choose(KEY, PAIR, places=4) == FAR
        assert room.chooser.choose(KEY, PAIR) == NEAR, "where the places are not short"


def test_full_replica_passes_to_the_next_and_finally_nobody(room: Room) -> None:
    with room.under_way(NEAR, 64):
        assert room.choose() == FAR
        with room.under_way(FAR, 64), pytest.raises(Overloaded):
            room.choose()


def test_a_queue_that_has_waited_too_long_takes_nobody_more(room: Room) -> None:
    with room.under_way(NEAR, 2) as asks, room.under_way(FAR, 1) as others:
        room.now += 14
        assert room.choose() == NEAR
        room.now += 2
        with pytest.raises(Overloaded):
            room.choose()
        others[0].note_first_token()
        assert room.choose() == FAR
        asks[1].note_first_token()
        assert room.choose() == NEAR, "the first one was overtaken: it says nothing about the queue"


def test_replies_that_come_whole_are_no_queue(room: Room) -> None:
    with room.chooser.ask(NEAR, PAIR, candidates=2):
        room.now += 20
        assert room.choose() == NEAR


@pytest.mark.parametrize("after_first_token", [False, True])
def test_three_faults_without_a_whole_reply_between_them_eject(
    room: Room, after_first_token: bool
) -> None:
    for _ in range(2):
        room.fail(NEAR, after_first_token)
    room.reply(NEAR)
    for _ in range(2):
        room.fail(NEAR, after_first_token)
    assert room.choose() == NEAR
    room.fail(NEAR, after_first_token)
    assert room.choose() == FAR


def test_replies_under_way_at_a_death_are_one_fault(room: Room) -> None:
    with room.under_way(NEAR, 30) as asks:
        for ask in asks:
            ask.note_fault()
    assert room.ejected_for(NEAR) == 1


def test_one_whole_trial_reply_ends_an_ejection(room: Room) -> None:
    for _ in range(3):
        room.fail(NEAR)
    room.now += 1
    assert room.choose() == NEAR
    with room.under_way(NEAR, 1) as (probe,):
        assert room.choose() == FAR
        probe.note_first_token()
        assert room.choose() == FAR, "it may still break"
        probe.note_end()
    with room.under_way(NEAR, 1):
        assert room.choose() == NEAR


def test_failed_probe_doubles_the_next_ejection(room: Room) -> None:
    for _ in range(3):
        room.fail(NEAR)
    lasted = []
    for _ in range(7):
        lasted.append(room.ejected_for(NEAR))
        room.now += lasted[-1]
        room.fail(NEAR)
    assert lasted == [1, 2, 4, 8, 16, 30, 30]


def test_a_probe_whose_user_leaves_decides_nothing(room: Room) -> None:
    for _ in range(3):
        room.fail(NEAR)
    room.now += 1
    with room.under_way(NEAR, 1):
        pass
    with room.under_way(NEAR, 1):
        assert room.choose() == FAR


def test_ejections_are_forgotten_after_ten_whole_replies(room: Room) -> None:
    for _ in range(3):
        room.fail(NEAR)
    room.now += 1
    for _ in range(10):
        room.reply(NEAR)
    for _ in range(3):
        room.fail(NEAR)
    assert room.ejected_for(NEAR) == 1


def test_slow_replica_is_ejected_longer_each_time(room: Room) -> None:
    for _ in range(20):
        room.reply(FAR, 0.2)
    for _ in range(9):
        room.reply(NEAR, 5)
    assert room.is_well(NEAR)
    room.reply(NEAR, 5)
    lasted = []
    for _ in range(4):
        lasted.append(round(room.ejected_for(NEAR)))
        room.now = room.chooser.of(NEAR).ejected_until
        room.reply(NEAR, 5)
    assert lasted == [1, 2, 4, 8]


def test_the_last_one_is_never_ejected_for_being_slow(room: Room) -> None:
    for _ in range(20):
        room.reply(FAR, 0.2)
    for _ in range(3):
        room.fail(FAR)
    for _ in range(20):
        room.reply(NEAR, 1.0)
        room.chooser.of(FAR).ejected_until = room.now + 1
    assert room.is_well(NEAR)


def test_soonest_recovering_replica_is_asked_when_all_are_ill(room: Room) -> None:
    for _ in range(3):
        room.fail(NEAR)
    room.now += 0.5
    for _ in range(3):
        room.fail(FAR)
    assert room.choose() == NEAR


def test_replica_that_answers_others_is_busy_not_ill(room: Room) -> None:
    with room.under_way(NEAR, 2) as (first, second):
        room.now += 1
        assert not first.is_answering
        second.note_first_token()
        assert first.is_answering
