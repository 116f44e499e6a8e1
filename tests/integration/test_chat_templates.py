"""Chat templates from strangers, rendered in a child process that is killed when it overruns.

Most are judged in the test's own process, because a child takes a quarter of a second.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guanaco_server.serializer.reporting import JobFailed
from guanaco_server.serializer.templates.chat_template import check_chat_templates, refusal_of

pytestmark = pytest.mark.slow

LLAMA_3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
ALTERNATING = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ raise_exception('Only system messages.') }}{% endif %}{% endfor %}"
)
MODERN = (
    "{%- set today = strftime_now('%d %B %Y') %}{{ today }}{{ messages | tojson(indent=2) }}"
    "{%- for message in messages %}{%- if message.role == 'system' %}{% continue %}{% endif %}"
    "{% generation %}{{ message.content }}{% endgeneration %}{% break %}{% endfor %}"
)
MACRO = "{% macro say(x) %}<{{ x }}>{% endmacro %}{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ say(m.content) }}{% endfor %}{{ ns.n }}"


def folder_with(path: Path, template: Any, **config: Any) -> Path:
    content = {"bos_token": "<s>", "chat_template": template} | config
    (path / "tokenizer_config.json").write_text(json.dumps(content))
    return path


def refusal(folder: Path) -> str:
    with pytest.raises(JobFailed) as failed:
        check_chat_templates(folder)
    assert failed.value.code == "bad_chat_template"
    assert failed.value.message.startswith("The chat template cannot be used: ")
    assert len(failed.value.message) < 400
    return failed.value.message


@pytest.mark.parametrize(
    "template",
    [LLAMA_3, ALTERNATING, MODERN, MACRO, "", None, [{"name": "default", "template": LLAMA_3}]],
    ids=["llama-3", "alternating", "modern", "macro", "empty", "none", "named"],
)
def test_a_good_template_is_accepted(tmp_path: Path, template: Any) -> None:
    assert refusal_of(folder_with(tmp_path, template)) is None


def test_a_token_may_be_an_object(tmp_path: Path) -> None:
    check_chat_templates(folder_with(tmp_path, LLAMA_3, bos_token={"content": "<s>"}))


def test_a_folder_without_templates_is_accepted(tmp_path: Path) -> None:
    check_chat_templates(tmp_path)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for x in", "line 1"),
        ("{{ 'a' | no_such_filter }}", "No filter named 'no_such_filter'"),
        ("{% include 'secrets' %}", "no loader"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "what the sandbox forbids"),
        ("{{ messages.append(1) }}", "what the sandbox forbids"),
        ("{{ raise_exception.__globals__['sys'] }}", "what the sandbox forbids"),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "what the sandbox forbids"),
        ("{{ '{0.__class__.__base__}'.format('') }}{{ ''['__class__']['x'] }}", "what the sandbox forbids"),
        ("{{ messages[0].content.no.such }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for i in range(10**9) %}{% endfor %}", "OverflowError"),
        ("{% for i in range(90000) %}{{ 'x' * 100 }}{% endfor %}", "more than 1,000,000 characters"),
        ("{{ 'x' * (2 * 10**6) }}", "more than 1,000,000 characters"),
        ("{{ 'x' * 10**10 }}", "more than 500,000 steps"),
        ("{% set ns = namespace(x='y') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "more than 500,000 steps"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deeply"),
        ("{{ " + "(" * 5_000 + ")" * 5_000 + " }}", "nested too deeply"),
        (["x"] * 33, "33 of them, and 32 are allowed"),
        ([{"name": "x"}], "is no text"),
        (5, "is no text"),
    ],
)  # fmt: skip
def test_a_bad_template_is_refused_with_what_is_wrong(
    tmp_path: Path, template: Any, says: str
) -> None:
    reason = refusal_of(folder_with(tmp_path, template))
    assert reason is not None
    assert says in reason
    assert len(reason) < 360


def test_a_template_that_takes_too_much_memory_is_refused(tmp_path: Path) -> None:
    assert "512 MB of memory" in refusal(folder_with(tmp_path, "{{ '%0999999999d' % 1 }}"))


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set x = 'a' * 100000 %}{% for a in range(90000) %}{% set y = x | upper | reverse | list | length %}{% endfor %}",
    ],
    ids=["loop", "constant", "filter"],
)
def test_a_template_without_an_end_is_refused(tmp_path: Path, template: str) -> None:
    assert "more than 500,000 steps" in refusal(folder_with(tmp_path, template))


def test_a_template_file_is_tried_too(tmp_path: Path) -> None:
    folder_with(tmp_path, LLAMA_3)
    (tmp_path / "chat_template.jinja").write_text("{{ 1 / 0 }}")
    assert "ZeroDivisionError" in refusal(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("x" * 1_000_001)
    assert "over 1,000,000 bytes" in refusal(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    assert "corrupt" in refusal(tmp_path)


@pytest.mark.parametrize("config", [b"[" * 100_000, b"[]", b"{", b"\xff"])
def test_a_corrupt_config_is_refused(tmp_path: Path, config: bytes) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes(config)
    assert refusal_of(tmp_path)
