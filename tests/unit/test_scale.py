"""docs/scale.md is what benchmarks/scale.py computes, from figures that the named documents have."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scale

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", scale.INPUTS)
def test_a_measured_input_is_what_its_document_says(name: str) -> None:
    one = scale.INPUTS[name]
    assert one.said in " ".join((ROOT / one.source).read_text().split())


def test_the_ids_are_those_of_the_benchmark() -> None:
    assert scale.IDS_SAID in (ROOT / scale.BENCHMARKS).read_text()
    said = [float(cell.replace(",", "")) for cell in scale.IDS_SAID.split("|")[2:-1]]
    assert said == [ids for _, ids in scale.IDS]


@pytest.mark.slow  # five simulated days
def test_the_document_has_what_is_computed() -> None:
    document = scale.DOCUMENT.read_text()
    assert document == scale.written(document), "`make scale` writes it anew"


def test_more_users_never_need_less() -> None:
    loads = [scale.Load(users) for users in (10, 1_000, 100_000, 10_000_000)]
    for need in (scale.gateways, scale.ids_a_day, scale.stored_gb_a_day):
        figures = [need(load) for load in loads]
        assert figures == sorted(figures)


def test_ids_of_a_gateway_fall_with_its_turns() -> None:
    assert scale.ids_for_a_thousand(0.1) == 2_000
    assert scale.ids_for_a_thousand(32 / scale.IDS_REPLY_S) == pytest.approx(1_272)
    assert scale.ids_for_a_thousand(1e6) == 96


@pytest.mark.slow
def test_simulated_day_loses_no_turn_and_repeats_exactly() -> None:
    load = scale.Load(2_000)
    day = scale.simulate(load, capacity=8, least=1)
    assert day.turns == pytest.approx(load.turns_a_day, rel=0.05)
    assert day.refused == 0
    assert day == scale.simulate.__wrapped__(load, capacity=8, least=1)


@pytest.mark.slow
def test_too_few_places_refuse_turns() -> None:
    day = scale.simulate(scale.Load(2_000), capacity=8, least=1, burst=50)
    assert day.refused > 0
    assert day.longest_wait_s >= 15


def test_ratings_wait_for_ever_where_a_day_is_not_enough() -> None:
    load = scale.Load(1_000_000)
    assert scale.longest_backlog_s(load, load.ratings * 0.9) == float("inf")
    assert 0 < scale.longest_backlog_s(load, load.ratings * 1.1) < scale.DAY_S
    assert scale.longest_backlog_s(load, load.ratings * 3) == 0
