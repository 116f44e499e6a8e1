"""The assignment policies: what each gives, whatever the entries; and that a choice can be made again."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guanaco.competitions import AssignmentKind, AssignmentRule
from guanaco_server.routing.policies.policies import Entry, NewestFirst, Shares, top_two
from guanaco_server.routing.policies.posterior import Posterior
from guanaco_server.routing.snapshot import (
    DecisionRecord,
    Pool,
    Snapshot,
    chances_of,
    draws,
    policy_of,
    replay,
)

KINDS = list(AssignmentKind)


def entry(name: str, age: float = 0, up: int = 0, down: int = 0, weight: float = 1) -> Entry:
    return Entry(name, -age, up, down, weight)


def snapshot(kind: AssignmentKind, entries: Sequence[Entry], **rule: float) -> Snapshot:
    newest_first = sorted(entries, key=lambda one: -one.created_at)
    return Snapshot(rule=AssignmentRule(kind=kind, **rule), entries=tuple(newest_first))


async def pool_of(taken: Snapshot) -> Pool:
    return Pool(taken, await policy_of(taken, Posterior()))


async def shares(taken: Snapshot, choices: int = 20_000) -> dict[str, float]:
    """Return how often each is chosen."""
    pool = await pool_of(taken)
    counts = Counter(pool.choose(1, f"conversation {number}") for number in range(choices))
    return {str(name): count / choices for name, count in counts.items()}


entries_strategy = st.lists(
    st.tuples(st.integers(0, 80), st.integers(0, 80), st.floats(0.1, 10)), min_size=1, max_size=12
).map(
    lambda rows: [
        entry(f"s{place}", place, up, down, weight) for place, (up, down, weight) in enumerate(rows)
    ]
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(entries=entries_strategy, data=st.data())
async def test_full_or_repeated_submissions_wait_while_others_are_free(
    kind: AssignmentKind, entries: list[Entry], data: st.DataObject
) -> None:
    names = [one.id for one in entries]
    full = frozenset(data.draw(st.sets(st.sampled_from(names))))
    seen = data.draw(st.lists(st.sampled_from([*names, "gone"]), unique=True))
    pool = await pool_of(snapshot(kind, entries))
    chosen = pool.choose(7, data.draw(st.text()), seen, full)
    unseen = set(names) - full - set(seen)
    had_before = [name for name in seen if name in names and name not in full]
    if unseen:
        assert chosen in unseen
    elif had_before:
        assert chosen == had_before[0], "the least recently had"
    else:
        assert chosen is None


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(entries=entries_strategy, seed=st.integers(0, 2**53 - 1), key=st.text(), data=st.data())
async def test_the_same_seed_key_and_snapshot_give_the_same_choice(
    kind: AssignmentKind, entries: list[Entry], seed: int, key: str, data: st.DataObject
) -> None:
    seen = data.draw(st.lists(st.sampled_from([one.id for one in entries]), unique=True))
    taken = snapshot(kind, entries)
    chosen = (await pool_of(taken)).choose(seed, key, seen)
    decision = DecisionRecord(snapshot=taken.digest, seed=seed, key=key, seen=tuple(seen))
    stored = Snapshot.model_validate_json(taken.model_dump_json())
    assert stored.digest == taken.digest
    assert (
        await replay(DecisionRecord.model_validate_json(decision.model_dump_json()), stored)
        == chosen
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_without_entries_there_is_nothing_to_choose(kind: AssignmentKind) -> None:
    assert (await pool_of(snapshot(kind, []))).choose(1, "key") is None


def test_other_key_or_seed_gives_other_uniform_draws() -> None:
    numbers = [next(draws(1, f"key {number}")) for number in range(4_000)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)
    tenths = Counter(int(number * 10) for number in numbers)
    assert all(330 < tenths[tenth] < 470 for tenth in range(10))
    assert next(draws(2, "key 0")) != numbers[0]
    stream = draws(1, "key")
    assert len({next(stream) for _ in range(100)}) == 100


@settings(max_examples=20, deadline=None)
@given(weights=st.lists(st.floats(0.1, 10), min_size=2, max_size=6))
async def test_uniform_gives_each_its_weight(weights: list[float]) -> None:
    entries = [entry(f"s{place}", weight=weight) for place, weight in enumerate(weights)]
    found = await shares(snapshot(AssignmentKind.UNIFORM, entries), 4_000)
    for one in entries:
        expected = one.weight / sum(weights)
        assert found.get(one.id, 0) == pytest.approx(expected, abs=0.04)


def test_what_is_barred_leaves_the_others_proportions_as_they_are() -> None:
    policy = Shares(["a", "b", "c"], [0.98, 0.015, 0.005])
    counts = Counter(policy.choose(draws(3, str(number)), {"a"}) for number in range(4_000))
    assert counts.keys() == {"b", "c"}
    assert counts["b"] / 4_000 == pytest.approx(0.75, abs=0.03)


def newest(entries: Sequence[Entry], until: int, *barred: str) -> str | None:
    return NewestFirst(entries, until).choose(draws(1, ""), set(barred))


def test_newest_submission_comes_first_until_it_has_its_ratings() -> None:
    entries = [entry("new", 1, up=3), entry("older", 2, up=1), entry("oldest", 3)]
    assert newest(entries, 4) == "new"
    assert newest(entries, 3) == "older"
    assert newest(entries, 3, "older") == "oldest"


def test_fewest_ratings_come_next_when_all_have_theirs() -> None:
    entries = [entry("new", 1, up=9), entry("older", 2, up=5, down=2), entry("oldest", 3, down=8)]
    assert newest(entries, 5) == "older"


def test_a_weight_of_two_means_twice_the_ratings() -> None:
    entries = [entry("new", 1, up=7, weight=2), entry("older", 2, up=1)]
    assert newest(entries, 4) == "new"
    assert newest(entries, 3) == "older"
    assert newest([entries[0], entry("older", 2, up=3)], 3) == "older"
    assert newest([entries[0], entry("older", 2, up=4)], 3) == "new", "7 / 2 is fewer than 4"


async def test_the_probability_of_being_the_best_is_what_sampling_gives() -> None:
    votes = [(60, 40), (55, 45), (58, 42), (3, 1), (0, 0), (10, 30)]
    found = await Posterior().best_probabilities(votes)
    chance = random.Random(5)
    samples = 40_000
    best = Counter(
        max(
            range(len(votes)),
            key=[chance.betavariate(1 + up, 1 + down) for up, down in votes].__getitem__,
        )
        for _ in range(samples)
    )
    assert math.isclose(sum(found), 1)
    for place, probability in enumerate(found):
        assert probability == pytest.approx(best[place] / samples, abs=0.01)


async def test_equals_share_alike_and_many_ratings_make_sure() -> None:
    found = await Posterior().best_probabilities([(5, 5)] * 400 + [(0, 0)] * 600)
    assert found[0] == pytest.approx(found[399])
    assert sum(found) == pytest.approx(1)
    assert (await Posterior().best_probabilities([(9_000, 1_000), (8_000, 2_000)]))[0] > 0.999


async def test_top_two_takes_the_second_best_half_the_time() -> None:
    assert top_two([1.0]) == [1.0]
    sure = top_two([1 - 1e-9, 9e-10, 1e-10])
    assert sure == pytest.approx([0.5, 0.45, 0.05], abs=1e-6)
    assert top_two([0.5, 0.5]) == pytest.approx([0.5, 0.5])
    chance, counts = random.Random(2), Counter[int]()
    best = [0.6, 0.3, 0.1]
    for _ in range(40_000):  # the algorithm itself
        chosen = first = chance.choices(range(3), best)[0]
        if chance.random() < 0.5:
            while chosen == first:
                chosen = chance.choices(range(3), best)[0]
        counts[chosen] += 1
    assert top_two(best) == pytest.approx([counts[place] / 40_000 for place in range(3)], abs=0.01)


async def test_adaptive_leaves_the_hopeless_and_keeps_the_new_their_share() -> None:
    entries = [
        entry("good", 3, up=800, down=200),
        entry("rival", 3, up=790, down=210),
        entry("poor", 3, up=200, down=800),
        entry("new but poor", 0, up=2, down=40),
    ]
    found = await shares(
        snapshot(AssignmentKind.ADAPTIVE, entries, recency_floor=0.2, newest_until=50)
    )
    assert found["new but poor"] == pytest.approx(0.2, abs=0.02)
    assert "poor" not in found
    assert found["good"] + found["rival"] == pytest.approx(0.8, abs=0.02)
    assert min(found["good"], found["rival"]) > 0.3


@pytest.mark.parametrize("kind", KINDS)
async def test_recomputed_chances_are_those_that_the_policy_draws_with(
    kind: AssignmentKind,
) -> None:
    """Over many keys each submission is chosen as often as its recorded decision says, exclusions included."""
    entries = [entry(f"s{n}", n, 3 * n, 10, 1 + n % 3) for n in range(7)]
    taken = snapshot(kind, entries)
    pool = await pool_of(taken)
    seen, barred, choices = ("s1", "s6"), frozenset({"s2", "s5"}), 20_000
    counts = Counter(pool.choose(7, f"key {n}", seen, barred) for n in range(choices))
    record = DecisionRecord(snapshot=taken.digest, seed=7, key="k", seen=seen, barred=tuple(barred))
    chances = await chances_of(record, Snapshot.model_validate_json(taken.model_dump_json()))
    assert chances.keys() == {"s0", "s3", "s4"}
    assert sum(chances.values()) == pytest.approx(1)
    for name, chance in chances.items():
        error = (chance * (1 - chance) / choices) ** 0.5
        assert counts[name] / choices == pytest.approx(chance, abs=4.5 * error)


@pytest.mark.parametrize("kind", KINDS)
async def test_who_had_all_gets_the_least_recent_with_certainty(kind: AssignmentKind) -> None:
    pool = await pool_of(snapshot(kind, [entry("a", 1, 1, 1, 1.0), entry("b", 2, 1, 1, 1.0)]))
    assert pool.chances(("b", "a")) == {"b": 1.0}
    assert pool.chances(("b", "a"), {"b"}) == {"a": 1.0}
    assert pool.chances((), {"a", "b"}) == {}
