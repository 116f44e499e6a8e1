"""Tests whose turn is answered next, and whose is refused when too many wait."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from guanaco_server.chat.gateway.places.place_shares import (
    ANY_APP,
    PlaceClaim,
    parts_here,
    places_for,
)
from guanaco_server.chat.gateway.places.turn_queue import Asker, Ticket, TurnQueue


def of(name: str) -> Asker:
    """``app/user``, or ``submission/app/user``."""
    *key, app, user = name.split("/")
    return Asker(app, user, *key)


def claim(held: int, order: bytes = b"", **demands: int) -> PlaceClaim:
    """One submission's, by app."""
    return PlaceClaim(held, {("", app): count for app, count in demands.items()}, order)


def served(queue: TurnQueue, count: int, *, places: int = 1) -> list[str]:
    """Return who gets the next places; ``at_once`` are under way at a time."""
    under_way: list[Asker] = []
    given = []
    for _ in range(count):
        if len(under_way) == places:
            queue.end(under_way.pop(0))
        ticket = queue.next(1, 1)
        assert ticket is not None
        under_way.append(ticket.asker)
        given.append("/".join(name for name in ticket.asker.path if name))
    return given


def test_apps_take_turns_however_many_turns_one_of_them_sends() -> None:
    queue = TurnQueue()
    for _ in range(100):
        queue.add(of("loud/a"))
    for name in ("quiet/a", "quiet/b", "other/a"):
        queue.add(of(name))
    assert served(queue, 6) == ["loud/a", "quiet/a", "other/a", "loud/a", "quiet/b", "loud/a"]


def test_submissions_take_turns_before_apps() -> None:
    queue = TurnQueue()
    for number in range(100):
        queue.add(of(f"loud/app-{number}/a"))
    for name in ("quiet/app-0/a", "quiet/app-0/a"):
        queue.add(of(name))
    given = served(queue, 5)
    assert [name.split("/")[0] for name in given] == ["loud", "quiet", "loud", "quiet", "loud"]
    assert queue.evict_newest().asker.key == "loud", "whoever floods waits for themselves"


def test_users_of_an_app_take_turns() -> None:
    queue = TurnQueue()
    for name in ("app/greedy", "app/greedy", "app/greedy", "app/b", "app/c"):
        queue.add(of(name))
    order = ["app/greedy", "app/b", "app/c", "app/greedy", "app/greedy"]
    assert served(queue, 5) == order


def test_whoever_has_the_fewest_turns_under_way_comes_first() -> None:
    queue = TurnQueue()
    for _ in range(3):
        queue.begin(of("slow/a"))
    queue.add(of("slow/a"))
    queue.add(of("slow/b"))
    queue.add(of("quick/a"))
    queue.add(of("quick/a"))
    assert served(queue, 4, places=4) == ["quick/a", "quick/a", "slow/b", "slow/a"]


def test_newest_turn_of_the_longest_waiter_is_crowded_out() -> None:
    queue = TurnQueue()
    queue.add(of("quiet/a"))
    queue.add(of("loud/a"))
    queue.add(of("loud/b"))
    newest = queue.add(of("loud/b"))
    queue.add(of("quiet/b"))
    assert queue.evict_newest() is newest
    assert served(queue, 4) == ["quiet/a", "loud/a", "quiet/b", "loud/b"]


def places(tickets: Iterable[Ticket]) -> int:
    return sum(ticket.places for ticket in tickets)


def begun_in_turn(queue: TurnQueue, rounds: int, *, capacity: int, **turns: int) -> Counter[str]:
    """Have each submission always want another turn of that number of places; turns end in the order in which they began. Return the places of those that began."""
    under_way: list[Ticket] = []
    begun = Counter[str]()
    for name, count in turns.items():
        for _ in range(capacity):
            queue.add(of(f"{name}/app/user"), count)
    for _ in range(rounds):
        while (ticket := queue.next(capacity - queue.in_flight, capacity)) is not None:
            under_way.append(ticket)
            begun[ticket.asker.key] += ticket.places
            queue.add(ticket.asker, turns[ticket.asker.key])
        assert queue.in_flight <= capacity
        ended = under_way.pop(0)
        queue.end(ended.asker, ended.places)
    return begun


@pytest.mark.parametrize("capacity", [8, 12, 64])
@pytest.mark.parametrize("light", [1, 2, 5])
def test_turns_of_many_places_and_of_one_share_places(capacity: int, light: int) -> None:
    """Whoever floods: one submission with eight candidates a reply, and others with one."""
    flooding = {f"light-{number}": 1 for number in range(light)}
    begun = begun_in_turn(TurnQueue(), 4_000, capacity=capacity, heavy=8, **flooding)
    fair = sum(begun.values()) / (light + 1)
    assert all(0.6 * fair < count < 1.6 * fair for count in begun.values()), begun


def test_a_due_turn_of_many_places_is_not_overtaken() -> None:
    queue = TurnQueue()
    for _ in range(4):
        queue.begin(of("light/app/a"))
    heavy = queue.add(of("heavy/app/a"), 4)
    assert queue.next(0, 4) is None
    queue.end(of("light/app/a"))
    assert queue.next(1, 4) is None
    newcomer = queue.add(of("new/app/a"))
    for free in (2, 3):
        queue.end(of("light/app/a"))
        assert queue.next(free, 4) is None, "the newcomer waits too"
    queue.end(of("light/app/a"))
    assert queue.next(4, 4) is heavy
    queue.end(heavy.asker, heavy.places)
    assert queue.next(4, 4) is newcomer


def test_those_behind_a_due_turn_go_on_once_it_leaves() -> None:
    queue = TurnQueue()
    heavy = queue.add(of("heavy/app/a"), 4)
    assert queue.next(1, 4) is None
    newcomer = queue.add(of("new/app/a"))
    queue.leave(heavy)
    assert queue.next(1, 4) is newcomer


def test_a_turn_takes_no_more_places_than_there_are() -> None:
    queue = TurnQueue()
    ticket = queue.add(of("heavy/app/a"), 16)
    assert queue.next(3, 4) is None
    assert queue.next(4, 4) is ticket
    assert (ticket.places, queue.in_flight, queue.waiting) == (4, 4, 0)


def test_the_only_turn_of_many_places_is_not_crowded_out() -> None:
    queue = TurnQueue()
    queue.add(of("heavy/app/a"), 16)
    queue.add(of("light/app/a"))
    newest = queue.add(of("light/app/a"))
    assert queue.evict_newest() is newest, "it would still have one waiting"


@pytest.mark.parametrize("seed", range(20))
def test_the_counts_stay_true_whatever_happens(seed: int) -> None:
    chance, queue = random.Random(seed), TurnQueue()
    waiting, under_way = list[Ticket](), list[Ticket]()
    for _ in range(2_000):
        asker = of(f"s-{chance.randrange(2)}/app-{chance.randrange(3)}/user-{chance.randrange(5)}")
        match chance.randrange(5):
            case 0 | 1:
                waiting.append(queue.add(asker, chance.choice((1, 1, 4))))
            case 2 if (ticket := queue.next(chance.randrange(6), 3)) is not None:
                waiting.remove(ticket)
                under_way.append(ticket)
            case 3 if under_way:
                ended = under_way.pop(chance.randrange(len(under_way)))
                queue.end(ended.asker, ended.places)
            case 4 if waiting:
                queue.leave(waiting.pop(chance.randrange(len(waiting))))
        assert (queue.waiting, queue.in_flight) == (places(waiting), places(under_way))
    for ticket in waiting:
        queue.leave(ticket)
    for ticket in under_way:
        queue.end(ticket.asker, ticket.places)
    assert (queue.waiting, queue.in_flight, queue.next(1, 1)) == (0, 0, None)
    assert not queue._engine.children, "nothing is kept of those who have gone"


def test_a_gateway_alone_holds_what_it_needs_and_a_reserve() -> None:
    assert places_for(claim(0, app=0), [], 8) == 2
    assert places_for(claim(4, app=5), [], 8) == 8
    assert places_for(claim(0, app=100), [], 8) == 8


def test_gateways_share_scarce_places_in_proportion() -> None:
    assert places_for(claim(0, b"a", app=30), [claim(0, b"b", app=10)], 8) == 6
    assert places_for(claim(0, b"b", app=10), [claim(0, b"a", app=30)], 8) == 2
    assert places_for(claim(0, b"b", app=1), [claim(0, b"a", app=1_000)], 8) == 1, (
        "nobody gets none"
    )


def test_gateways_share_by_app_first() -> None:
    """One app has ten times the turns, at both gateways; the other is at one gateway only."""
    mixed, other = (
        claim(0, b"a", large=50, small=10),
        claim(0, b"b", large=50),
    )
    assert places_for(mixed, [other], 16) == 12, (
        "half for the small one, and half of the other half"
    )
    assert places_for(other, [mixed], 16) == 4
    assert parts_here(mixed, [other], 16) == {("", "large"): 4, ("", "small"): 8, ("",): 12}
    assert parts_here(mixed, [], 100) == {}, "there is enough for all"


def test_gateways_share_by_submission_before_app() -> None:
    """One submission has two apps and a hundred turns, its sibling one app with ten."""
    flooded = PlaceClaim(0, {("loud", "a"): 50, ("loud", "b"): 50}, b"a")
    sibling = PlaceClaim(0, {("quiet", "a"): 10}, b"b")
    assert places_for(flooded, [sibling], 16) == 8
    assert places_for(sibling, [flooded], 16) == 8
    one = PlaceClaim(0, flooded.demands | sibling.demands, b"a")
    parts = parts_here(one, [], 16)
    assert (parts["loud",], parts["quiet",], parts["loud", "a"]) == (8, 8, 4)


def test_what_a_submission_does_not_use_its_sibling_may() -> None:
    flooded = PlaceClaim(0, {("loud", "a"): 50}, b"a")
    assert places_for(flooded, [PlaceClaim(0, {("quiet", "a"): 2}, b"b")], 16) == 14
    assert places_for(flooded, [PlaceClaim(0, {}, b"b")], 16) == 16


def test_a_gateway_of_the_version_before_counts_as_one_app() -> None:
    before = PlaceClaim(0, {("", ANY_APP): 90}, b"b")
    assert places_for(claim(0, b"a", app=10), [before], 8) == 4


def test_apps_take_turns_by_their_parts() -> None:
    queue = TurnQueue()
    queue.parts = {("", "large"): 1.0, ("", "small"): 3.0}
    for app in ("large", "small"):
        for _ in range(8):
            queue.add(Asker(app, "user"))
    taken = Counter(ticket.asker.account_id for _ in range(8) if (ticket := queue.next(1, 1)))
    assert taken == {"large": 2, "small": 6}


def test_no_place_is_taken_before_it_was_given_up() -> None:
    assert places_for(claim(0, app=10), [claim(7, app=10)], 8) == 1
    assert places_for(claim(7, app=10), [claim(1, app=10)], 8) == 4, "three of them end first"


@pytest.mark.parametrize("seed", range(10))
def test_gateways_never_exceed_the_places_and_finally_agree(seed: int) -> None:
    """Each decides in its turn, of what the others wrote down last."""
    chance = random.Random(seed)
    capacity = chance.randint(1, 12)
    gateways = [PlaceClaim(0, {}, bytes([number])) for number in range(4)]
    busy = [0] * 4
    for _ in range(400):
        number = chance.randrange(4)
        wanted = chance.randint(0, 12)
        mine = PlaceClaim(
            min(busy[number], gateways[number].held), {("", "app"): wanted}, bytes([number])
        )
        others = gateways[:number] + gateways[number + 1 :]
        held = max(mine.held, places_for(mine, others, capacity))
        gateways[number] = PlaceClaim(held, {("", "app"): wanted}, bytes([number]))
        busy[number] = chance.randint(0, min(held, wanted))
        assert sum(claim.held for claim in gateways) <= capacity
    for _ in range(2):
        for number in range(4):
            others = gateways[:number] + gateways[number + 1 :]
            held = places_for(PlaceClaim(0, {("", "app"): 10}, bytes([number])), others, capacity)
            gateways[number] = PlaceClaim(held, {("", "app"): 10}, bytes([number]))
    held_by = Counter(claim.held for claim in gateways)
    assert sum(claim.held for claim in gateways) == capacity
    assert max(held_by) - min(held_by) <= 1
