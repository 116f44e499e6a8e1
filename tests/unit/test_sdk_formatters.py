from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from guanaco.errors import InvalidFormatter
from guanaco.formatters import load_formatter
from guanaco.prompts import PRESETS, ChatTemplatePrompt, Prompt, PromptFile, PromptFormatter


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_found_by_its_name(name: str) -> None:
    assert load_formatter(name) == PRESETS[name]


def test_a_json_and_a_yaml_file_give_the_same(tmp_path: Path) -> None:
    wanted = PromptFormatter(user_template="{user_name} says: {message}\n")
    (tmp_path / "f.json").write_text(wanted.model_dump_json())
    (tmp_path / "f.yaml").write_text('user_template: "{user_name} says: {message}\\n"\n')
    assert load_formatter(tmp_path / "f.json") == wanted
    assert load_formatter(str(tmp_path / "f.yaml")) == wanted


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("f.json", "{", "is not JSON"),
        (
            "f.json",
            '{"a": 1,\n "b": [{"a": 2}],\n "\\u0061": 3}',
            "f.json: line 3 repeats the key 'a'.",
        ),
        ("f.yaml", "a: 1\nb: 2\na: 3", "f.yaml: line 3 repeats the key 'a'."),
        ("f.yaml", "a: [", "is not YAML: line 1: "),
        ("f.yaml", "[" * 5_000, "is not YAML"),
        ("f.yaml", "!!python/object/apply:os.system ['true']", "is not YAML"),
        ("f.yaml", "just text", "holds no mapping"),
        ("f.yaml", "", "holds no mapping"),
        ("f.yaml", 'memory_template: "none"', "must contain {memory}"),
        ("f.yaml", 'bot_template: "{bot_name.__class__}: {message}"', "bot_name.__class__"),
        (
            "f.yaml",
            "bot_templte: x",
            "bot_templte: There is no such field; perhaps you mean bot_template.",
        ),
        ("f.yaml", "x" * 200_000, "is over"),
        ("f.yaml", "a: \udcff", "is not YAML"),
        ("types.yaml", "bot_template: !!bool maybe", "a value that is not of its type"),
        ("types.yaml", "bot_template: !!timestamp soon", "a value that is not of its type"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, name: str, content: str, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(InvalidFormatter) as caught:
        load_formatter(path)
    assert says in caught.value.detail
    assert "\n" not in caught.value.detail


def test_a_name_that_is_nothing_lists_the_presets(tmp_path: Path) -> None:
    with pytest.raises(InvalidFormatter, match="neither a preset nor a file") as caught:
        load_formatter("chatlm")
    assert "chatml" in str(caught.value.hint)
    with pytest.raises(InvalidFormatter, match="cannot be read"):
        load_formatter(tmp_path)


def test_the_models_own_template_has_a_name() -> None:
    assert load_formatter("chat-template") == ChatTemplatePrompt()


PARTS = """
parts:
  - {name: persona, content: "{{ memory }}"}
  - {name: chat, each: turn, truncation_priority: 1, content: "{{ name }}: {{ message }}"}
"""


def test_a_file_with_parts_is_a_prompt_file(tmp_path: Path) -> None:
    path = tmp_path / "prompt.yaml"
    path.write_text(PARTS)
    prompt = load_formatter(path)
    assert isinstance(prompt, PromptFile)
    assert prompt.turn_part.name == "chat"
    assert prompt.parts[0].truncation_priority == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (PARTS.replace("each: turn, ", ""), "Exactly one part must have each: turn"),
        (PARTS.replace("truncation_priority", "priority"), "part 'chat' priority: There is no such field"),
        (PARTS.replace("truncation_priority: 1", "truncation_priority: -1"), "part 'chat' truncation_priority: "),
        (PARTS.replace("name: persona", "name: chat"), "There are 2 parts of the name 'chat'"),
        (PARTS.replace("name: persona, ", ""), "part 0 name: Field required"),
        (PARTS.replace("each: turn", "each: turn, role: user"), "'chat' has a role"),
        (PARTS + "render: chat_template\n", "'persona' needs a role"),
        (PARTS + "stuff: 1\n", "stuff: There is no such field"),
        ("parts: many\n", "parts: Input should be"),
        ("a: &a [x]\nparts: [*a, *a]\n", "alias"),
        ("kind: other\n", "The kind of a prompt is templates, chat_template, file or poet"),
    ],
)  # fmt: skip
def test_bad_prompt_file_is_one_sentence_naming_the_part(
    tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "prompt.yaml"
    path.write_text(content)
    with pytest.raises(InvalidFormatter) as caught:
        load_formatter(path)
    assert says in caught.value.detail
    assert "\n" not in caught.value.detail


def test_what_is_stored_without_a_kind_is_a_formatter() -> None:
    stored = PromptFormatter().model_dump(exclude={"kind"})
    adapter: TypeAdapter[Prompt] = TypeAdapter(Prompt)
    assert adapter.validate_python(stored) == PromptFormatter()
    for prompt in (PromptFormatter(), ChatTemplatePrompt()):
        assert adapter.validate_python(prompt.model_dump(mode="json")) == prompt
