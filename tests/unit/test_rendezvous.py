"""Tests which replica a conversation prefers, as any process would say."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from guanaco_server.routing.replicas import rendezvous

KEYS = [f"conversation-{number}" for number in range(2_000)]
endpoints_lists = st.lists(
    st.integers(1_024, 65_535).map("http://127.0.0.1:{}".format),
    min_size=1,
    max_size=8,
    unique=True,
)


@given(st.text(max_size=64), endpoints_lists, st.randoms(use_true_random=False))
def test_every_process_orders_replicas_alike(key: str, endpoints: list[str], dice: object) -> None:
    shuffled = list(endpoints)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    order = rendezvous(key, endpoints)
    assert order == rendezvous(key, shuffled)
    assert sorted(order) == sorted(endpoints)


@given(st.text(max_size=64), endpoints_lists)
def test_a_replica_that_goes_leaves_the_others_in_their_order(
    key: str, endpoints: list[str]
) -> None:
    order = rendezvous(key, endpoints)
    for gone in endpoints:
        left = [endpoint for endpoint in endpoints if endpoint != gone]
        assert rendezvous(key, left) == [endpoint for endpoint in order if endpoint != gone]


@settings(max_examples=15)
@given(endpoints_lists)
def test_new_replica_takes_its_share_and_moves_nothing_else(endpoints: list[str]) -> None:
    before = {key: rendezvous(key, endpoints)[0] for key in KEYS}
    after = {key: rendezvous(key, [*endpoints, "http://new"])[0] for key in KEYS}
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} == {"http://new"}
    share = len(KEYS) / (len(endpoints) + 1)
    assert abs(len(moved) - share) < 6 * share**0.5


@settings(max_examples=15)
@given(endpoints_lists)
def test_each_replica_is_first_for_its_share_of_the_conversations(endpoints: list[str]) -> None:
    counts = Counter(rendezvous(key, endpoints)[0] for key in KEYS)
    share = len(KEYS) / len(endpoints)
    assert all(abs(counts[endpoint] - share) < 6 * share**0.5 for endpoint in endpoints)


def test_keys_that_begin_alike_are_spread_as_evenly_as_others() -> None:
    endpoints = [f"http://127.0.0.1:{port}" for port in range(8_001, 8_006)]
    persona = "acc_0f36 None You are a helpful assistant that answers briefly. " * 8
    counts = Counter(rendezvous(persona + key, endpoints)[0] for key in KEYS)
    share = len(KEYS) / len(endpoints)
    assert all(abs(counts[endpoint] - share) < 6 * share**0.5 for endpoint in endpoints)


def test_without_replicas_there_is_none_to_prefer() -> None:
    assert rendezvous("conversation", []) == []
