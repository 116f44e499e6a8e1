"""Hostile templates: whatever they do, the process that renders them answers or is ended, and the next is served."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from guanaco_server.prompts.templates.files import TemplateFile
from guanaco_server.prompts.templates.process import Job, TemplateFault, TemplateProcess

pytestmark = pytest.mark.slow

HELLO = Job("Hello {{ name }}", {"name": "Sam"})


@pytest.fixture
def process() -> Iterator[TemplateProcess]:
    process = TemplateProcess()
    yield process
    process.close()


def test_jobs_are_rendered_in_their_order(process: TemplateProcess) -> None:
    assert process.render([HELLO, Job("{{ 1 + 1 }}\n", {})]) == ["Hello Sam", "2"]
    assert process.render([Job("{{ 1 + 1 }}\n", {}, is_strict=True)]) == ["2\n"]
    assert process.render([]) == []


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ caller() }}{% endmacro %}{% for i in range(99999) %}{% for j in range(99999) %}{% call f() %}x{% endcall %}{% endfor %}{% endfor %}",
        "{{ 10 ** (10 ** 9) }}",
        "{{ ('x' * 10 ** 8 * 10 ** 8) | length }}",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s | length }}",
        "{{ '%099999999999d' % 1 }}",
        "{{ '{:>99999999999}'.format(1) }}",
        "{{ 'x'.center(10 ** 12) }}",
        "{{ ('a' * 30) is filter }}{{ lipsum(n=10 ** 9) }}",
        "{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ name.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ '{0.__class__.__base__.__subclasses__}'.format('') }}",
        "{{ messages.append(1) }}{{ nothing.at.all }}",
        "{% include '/etc/passwd' %}",
        "{{ " + "(" * 5_000 + ")" * 5_000 + " }}",
        "{% if %}",
    ],
)
def test_a_hostile_template_is_refused_and_the_next_one_served(
    process: TemplateProcess, template: str
) -> None:
    with pytest.raises(TemplateFault) as fault:
        process.render([Job(template, {"name": "x", "messages": []})])
    assert "\n" not in str(fault.value)
    assert process.render([HELLO]) == ["Hello Sam"]


def test_template_with_too_many_steps_is_refused_for_a_while(
    process: TemplateProcess,
) -> None:
    endless = Job(
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}", {}
    )
    with pytest.raises(TemplateFault, match=r"more than 5,000,000 steps"):
        process.render([endless])
    with pytest.raises(TemplateFault, match="a moment ago") as refused:
        process.render([HELLO, endless])
    assert refused.value.job == 1


def test_an_unknown_variable_of_a_strict_template_is_named(process: TemplateProcess) -> None:
    with pytest.raises(TemplateFault, match="'nmae' is undefined") as fault:
        process.render([HELLO, Job("{{ nmae }}", {"name": "x"}, is_strict=True)])
    assert fault.value.job == 1


def test_the_child_has_no_secrets(
    process: TemplateProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    before = set(psutil.Process().children())
    process.render([HELLO])
    (child,) = set(psutil.Process().children()) - before
    assert "hf_secret" not in Path(f"/proc/{child.pid}/environ").read_text()


def test_a_models_files_are_read_in_the_process(process: TemplateProcess) -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": 7, "chat_template": "{{ bos_token }}"}
    found = process.read({"tokenizer_config.json": json.dumps(config).encode()})
    assert found == TemplateFile("{{ bos_token }}", {"bos_token": "<s>"})
    both = {"chat_template.jinja": b"own", "tokenizer_config.json": b"{}"}
    assert process.read(both) == TemplateFile("own", {})
    assert process.read({"tokenizer_config.json": b"{}"}) is None


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b'{"chat_template":',
        b"[" * 1_000_000,
        b'{"a":' * 500_000 + b"1" + b"}" * 500_000,
        b'{"a":[' + b"{}," * 1_300_000 + b"{}]}",
    ],
)
def test_a_hostile_config_is_refused_and_the_next_template_served(
    process: TemplateProcess, data: bytes
) -> None:
    with contextlib.suppress(TemplateFault):
        assert process.read({"tokenizer_config.json": data}) is None
    assert process.render([HELLO]) == ["Hello Sam"]
