"""The steps of a template: the same in each run, and no operation works long without taking many."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from guanaco_server.serializer.templates.chat_template import environment
from guanaco_server.serializer.templates.metered_jinja import (
    CHECK_STEPS,
    MAX_NODES,
    StepLimitExceeded,
)

LLAMA_3 = "{% for m in messages %}{% set content = '<|start|>' + m['role'] + '<|end|>\n\n' + m['content'] | trim + '<|eot|>' %}{% if loop.index0 == 0 %}{% set content = 'b' + content %}{% endif %}{{ content }}{% endfor %}"
LIMIT = CHECK_STEPS // 10
MESSAGES = [{"role": "user", "content": "All of these words. " * 10}] * 51


def steps(template: str, *, weighs_values: bool = True, **variables: Any) -> int:
    """Return how many steps rendering takes. Raises StepLimitExceeded beyond the limit."""
    metered = environment(weighs_values=weighs_values)
    metered.meter.left = LIMIT
    for _ in metered.metered(template).generate(**variables):
        pass
    return LIMIT - metered.meter.left


def test_the_same_template_takes_the_same_steps_each_time() -> None:
    assert len({steps(LLAMA_3, messages=MESSAGES) for _ in range(3)}) == 1


def test_an_honest_template_takes_a_hundredth_of_the_steps() -> None:
    assert steps(LLAMA_3, messages=MESSAGES) < CHECK_STEPS / 50


def test_steps_grow_with_the_messages() -> None:
    counts = [steps(LLAMA_3, messages=MESSAGES[:n], weighs_values=False) for n in (0, 1, 2, 3)]
    assert counts[0] == 0
    assert len({after - before for before, after in pairwise(counts)}) == 1


@pytest.mark.parametrize("weighs_values", [False, True])
@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% for a in range(90000) if range(9) %}{% for b in range(90000) if false %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ caller() }}{% endmacro %}{% for i in range(99999) %}{% for j in range(99999) %}{% call f() %}x{% endcall %}{% endfor %}{% endfor %}",
        "{% block b %}x{% endblock %}{% for i in range(99999) %}{% for j in range(99999) %}{{ self.b() }}{% endfor %}{% endfor %}",
        "{% macro f(x) %}{% for i in x recursive %}{{ loop(range(99)) if loop.depth < 5 }}{% endfor %}{% endmacro %}{{ f(range(99)) }}",
    ],
)
def test_what_repeats_takes_steps(template: str, weighs_values: bool) -> None:
    with pytest.raises(StepLimitExceeded):
        steps(template, weighs_values=weighs_values)


DOUBLED = "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
LONG = "{% set x = 'a,' * 45000 %}"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 10 ** (10 ** 9) }}",
        "{{ (3 ** 90000) % (7 ** 40000) }}",
        "{{ ('x' * 10 ** 8 * 10 ** 8) | length }}",
        "{{ ([1] * 10 ** 8) | length }}",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        DOUBLED + "{{ ns.s }}",
        DOUBLED + "{{ ns.s ~ '' }}",
        DOUBLED + "{{ ns.s | string | length }}",
        DOUBLED + "{{ ns.s | tojson | length }}",
        DOUBLED + "{{ '%s' % ns.s }}",
        DOUBLED + "{{ '{}'.format(ns.s) }}",
        DOUBLED + "{% set a = ns.s %}" + DOUBLED + "{{ a == ns.s }}",
        DOUBLED + "{% set a = ns.s %}" + DOUBLED + "{{ [a] | select('eq', ns.s) | list }}",
        "{{ lipsum(n=10 ** 9) }}",
        "{{ 1 | round(10 ** 8, 'ceil') }}",
        "{{ 'x'.center(2 * 10 ** 7) | length }}",
        "{{ range(90000) | map('string') | map('center', 1000) | join | length }}",
        "{{ range(90000) | list | sort | sort | sort }}",
        "{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}",
        LONG + "{% for i in range(1000) %}{% set y = x | upper %}{% endfor %}",
        LONG + "{% for i in range(1000) %}{% set y = x.split(',') %}{% endfor %}",
        LONG + "{% for i in range(1000) %}{% set y = x[1:] %}{% endfor %}",
        LONG + "{% for i in range(1000) %}{% if 'b' in x %}{% endif %}{% endfor %}",
        LONG + "{% for i in range(1000) %}{% if x is lower %}{% endif %}{% endfor %}",
        LONG + "{% for i in range(1000) %}{{ (x | list | length) }}{% endfor %}",
        LONG + "{{ (x * 10) | urlize | length }}",
        "{% set x = '<!--' * 90000 %}{{ x | striptags | length }}",
        "{{ range(90000) | batch(1) | sum(start=[]) | length }}",
    ],
)
def test_an_operation_on_large_values_takes_many_steps(template: str) -> None:
    with pytest.raises(StepLimitExceeded):
        steps(template)


def test_value_passed_through_costs_no_steps_for_its_size() -> None:
    passed = "{% set y = messages %}{% set z = y %}{{ z | length }}"
    assert steps(passed, messages=["x" * 1_000_000]) < 10


def test_a_template_that_would_compile_for_long_is_refused() -> None:
    with pytest.raises(ValueError, match=f"more than {MAX_NODES:,} parts"):
        steps("{{ x }}" * MAX_NODES)
    with pytest.raises(ValueError, match="longer than 200,000 characters"):
        steps(" " * 200_001)
