"""Tests who is in which variant, and what a variant changes."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guanaco.experiments import ExperimentRequest, Overrides, ParamChanges
from guanaco.prompts import PRESETS, PromptFormatter
from guanaco.submissions import GenerationParams, Status
from guanaco_server.experiments.variants import apply_variant, is_in_part, unit_of, variant_of
from guanaco_server.submissions.catalog import ServingSubmission

UNITS = [unit_of("app", f"user-{number}") for number in range(6_000)]


def experiment(name: str = "one", *shares: float, **rules: Any) -> ExperimentRequest:
    variants = [{"name": f"v{n}", "share": share} for n, share in enumerate(shares or (1, 1))]
    return ExperimentRequest.model_validate({"name": name, "variants": variants, **rules})


def serving(**params: Any) -> ServingSubmission:
    return ServingSubmission(
        id="a_v1",
        account_id="a",
        developer="ann",
        name="a",
        repo="acme/a",
        status=Status.DEPLOYED,
        params=GenerationParams(**params),
        formatter=PromptFormatter(),
        artifact_key="key",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_each_variant_has_its_share_of_the_users() -> None:
    one = experiment("one", 1, 2, 5)
    counts = Counter(variant_of(one, unit).name for unit in UNITS)
    for name, share in (("v0", 1), ("v1", 2), ("v2", 5)):
        assert counts[name] / len(UNITS) == pytest.approx(share / 8, abs=0.02)


def test_two_experiments_part_the_users_independently() -> None:
    one, other = experiment("one"), experiment("other")
    pairs = Counter((variant_of(one, unit).name, variant_of(other, unit).name) for unit in UNITS)
    assert all(count / len(UNITS) == pytest.approx(0.25, abs=0.03) for count in pairs.values())


@given(st.floats(0.01, 0.99))
def test_disjoint_parts_share_no_user_and_cover_all(border: float) -> None:
    below, above = experiment("one", users_to=border), experiment("other", users_from=border)
    assert not below.overlaps(above)
    assert all(is_in_part(below, unit) != is_in_part(above, unit) for unit in UNITS[:200])


def test_part_and_variant_of_a_user_are_independent() -> None:
    part = experiment("one", users_to=0.5)
    inside = [unit for unit in UNITS if is_in_part(part, unit)]
    share = sum(variant_of(part, unit).name == "v0" for unit in inside) / len(inside)
    assert share == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
    ("one", "other", "do_overlap"),
    [
        ({}, {}, True),
        ({"competition": "a"}, {"competition": "b"}, False),
        ({"competition": "a"}, {}, True),
        ({"users_to": 0.5}, {"users_from": 0.4}, True),
        ({"competition": "a", "users_to": 0.5}, {"competition": "a", "users_from": 0.5}, False),
    ],
)
def test_experiments_overlap_where_a_conversation_could_be_in_both(
    one: dict[str, Any], other: dict[str, Any], do_overlap: bool
) -> None:
    first, second = experiment("one", **one), experiment("other", **other)
    assert first.overlaps(second) == second.overlaps(first) == do_overlap


def test_a_variant_changes_what_it_names_and_nothing_else() -> None:
    plain = serving(temperature=0.7, top_k=5)
    assert apply_variant(plain, Overrides()) == plain
    changed = apply_variant(
        plain,
        Overrides(formatter=PRESETS["chatml"], params=ParamChanges(temperature=0.0)),
    )
    assert changed.formatter == PRESETS["chatml"]
    assert (changed.params.temperature, changed.params.top_k) == (0.0, 5)
    assert plain.params.temperature == 0.7


@given(st.integers(16, 131_072), st.integers(1, 4_096))
def test_token_budgets_never_grow(max_input: int, max_output: int) -> None:
    changes = ParamChanges(max_input_tokens=max_input, max_output_tokens=max_output)
    changed = apply_variant(serving(), Overrides(params=changes)).params
    assert changed.max_input_tokens == min(max_input, 1_024)
    assert changed.max_output_tokens == min(max_output, 64)
